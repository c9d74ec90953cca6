"""The table and the picture of benchmarks/fewer_rounds.py, for docs/performance.md. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure

from benchmarks.fewer_rounds import RECOMMENDED, Result, settings
from benchmarks.fewer_rounds_problems import PROBLEMS, Problem
from benchmarks.lines import Line, slug
from efvfl.experiments.tables import as_markdown
from efvfl.runs.plots import BLUE, GREY, ORANGE, SOFT, TEAL, VIOLET, tidy

PICTURE = "results/fewer_rounds.svg"
SHOWN = {  # the curves of the picture, and their colours
    "SVFL": GREY,
    "CELU, 4 local steps": ORANGE,
    "EF-VFL, top-k 10 %": VIOLET,
    "EF-VFL, ternary": TEAL,
    RECOMMENDED: BLUE,
}
# Targets of the recommended setting against SVFL: times sooner, times fewer bytes up.
TARGETS = {"MNIST": (8.0, 50.0), "credit": (2.5, 20.0)}
BEHIND = 0.3  # points of the metric that it may be behind

TEXT = """## Fewer rounds over a slow line

![Validation metric by seconds on the line]({picture})

Time and bytes until a target is reached, over a line with a round trip of 20 ms and 10 Mbit/s up (100 Mbit/s down),
emulated for each party, with mutual TLS and private labels. Rounds and bytes are counted in one process, which trains
the same model bit for bit (`python -m benchmarks.fewer_rounds count`). The seconds of a round are measured over the
line, as many rounds as the target takes and at least 60 (`python -m benchmarks.fewer_rounds time`): server, TLS, logs
and line are real, and parties have machines of their own, which two cores are not: each sleeps for as long as its
computing took alone on a core, and sends what it computed then (`benchmarks/replay.py`).

Each setting has the learning rate, of a small grid, that reaches the target soonest with another seed. Rounds, bytes
and seconds are means over three seeds; the range of rounds is in brackets. "Kept" is the metric of test rows, in per
cent, of the model that is best on validation rows, which early stopping keeps, with its standard deviation over the
seeds; "last" is that of the last model. The setting in bold, "recommended" in the picture, is what `efvfl plan` tries
first ([why](slow-lines.md#fewer-rounds)). Ternary is `uniform` with one level on each side of zero and a scale for each
row, and seven levels for the cotangents; the others send exact cotangents. Cached steps remember the batches of one
epoch, unless it says otherwise. "Both" is a window of 2 and 9 cached steps. FedBCD and CELU are without compression
and error feedback, as in their papers, with four local steps between two rounds.

What the table says: rounding to few levels saves the bytes, cached steps save rounds, a window shortens them. Error
feedback adds little to that at these sizes: CVFL with the same rounding does nearly as well, and sends a little more.
With top-k, which leaves most of a row untouched, and qsgd, which damps it, error feedback makes the larger difference
(MNIST), but most of these runs do not reach the target in time.
"""


def page(found: Mapping[tuple[str, str], Result]) -> str:
    """Return the section of the page."""
    parts = [TEXT.format(picture=PICTURE)]
    for problem in PROBLEMS:
        results = [found[problem.name, s.key] for s in settings() if (problem.name, s.key) in found]
        parts += [f"### {problem.name}: {_what(problem)}", table(problem, results)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _what(problem: Problem) -> str:
    percent = f"{100 * problem.target:g}"
    if problem.metric == "accuracy":
        return f"an accuracy of {percent} % in at most {problem.rounds} rounds, batch 1,024, four parties"
    return f"an AUC of {problem.target:g} in at most {problem.rounds} rounds, batch 256, two parties"


def table(problem: Problem, results: Sequence[Result]) -> str:
    """Return one problem's table."""
    exact = next(one for one in results if one.setting == "SVFL")
    headings = [
        "setting",
        "rate",
        "rounds",
        "ms a round",
        "seconds",
        "sooner",
        "MB up",
        "fewer",
        "MB down",
        "kept",
        "last",
    ]
    return as_markdown(headings, [_row(one, exact) for one in results])


def _row(one: Result, exact: Result) -> list[str]:
    name = f"**{one.setting}**" if one.setting == RECOMMENDED else one.setting
    kept = [100 * run.kept for run in one.runs]
    ends = [f"{mean(kept):.2f} ± {stdev(kept):.2f}", f"{100 * mean(run.last for run in one.runs):.2f}"]
    round_time = f"{1e3 * one.seconds_a_round:.0f}" if one.timed else ""
    reached = sum(run.rounds > 0 for run in one.runs)
    if reached < len(one.runs):
        return [name, f"{one.rate:g}", f"reached by {reached} of {len(one.runs)}", round_time, *[""] * 5, *ends]
    rounds = [run.rounds for run in one.runs]
    return [
        name,
        f"{one.rate:g}",
        f"{mean(rounds):.0f} ({min(rounds)} to {max(rounds)})",
        round_time,
        f"{seconds(one):.2f}" if one.timed else "",
        f"{seconds(exact) / seconds(one):.1f} x" if one.timed and exact.timed else "",
        f"{_megabytes(one, 'bytes_up'):.2f}",
        f"{_megabytes(exact, 'bytes_up') / _megabytes(one, 'bytes_up'):.0f} x",
        f"{_megabytes(one, 'bytes_down'):.2f}",
        *ends,
    ]


def seconds(one: Result) -> float:
    """Return the mean time to the target."""
    return one.seconds_a_round * mean(run.rounds for run in one.runs)


def _megabytes(one: Result, direction: str) -> float:
    return mean(getattr(run, direction) for run in one.runs) / 1e6


def lines(found: Mapping[tuple[str, str], Result]) -> list[Line]:
    """Return the recommended setting beside its targets."""
    out = []
    for name, (sooner, fewer) in TARGETS.items():
        exact, best = found[name, "SVFL"], found[name, RECOMMENDED]
        ratios = {
            "sooner": (seconds(exact) / seconds(best), sooner),
            "fewer bytes up": (_megabytes(exact, "bytes_up") / _megabytes(best, "bytes_up"), fewer),
        }
        what = f"{name}, {RECOMMENDED}"
        out += [
            Line(slug(f"line {name} {goal}"), f"{what}: times {goal} than SVFL", value, target=target, floor=True)
            for goal, (value, target) in ratios.items()
        ]
        behind = 100 * (mean(run.kept for run in exact.runs) - mean(run.kept for run in best.runs))
        text = f"{what}: points by which the model kept is behind SVFL's"
        out.append(Line(slug(f"line {name} behind"), text, behind, "points", BEHIND))
    return out


def draw(found: Mapping[tuple[str, str], Result]) -> Figure:
    """Plot the metric of validation rows by seconds on the line, for one seed."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, problem in zip(figure.subplots(1, len(PROBLEMS)), PROBLEMS, strict=True):
        for name, colour in SHOWN.items():
            _curve(axes, found[problem.name, name], colour)
        axes.axhline(problem.target, color=SOFT, linewidth=1, linestyle=":")
        axes.set(title=problem.name, xlabel="seconds on the line (20 ms, 10 Mbit/s up)", xscale="log")
        axes.set_ylabel(f"validation {problem.metric if problem.metric != 'auc' else 'AUC'}")
        axes.set_ylim(bottom=problem.target - (0.5 if problem.metric == "accuracy" else 0.06))
        tidy(axes)
    curves, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(curves, names, frameon=False, fontsize="small", loc="outside upper center", ncols=len(names))
    return figure


def _curve(axes: Any, one: Result, colour: str) -> None:
    times = [rounds * one.seconds_a_round for rounds, _ in one.runs[0].curve]
    axes.plot(
        times,
        [value for _, value in one.runs[0].curve],
        label="recommended" if one.setting == RECOMMENDED else one.setting,
        color=colour,
    )

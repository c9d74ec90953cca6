"""Write docs/comparison.md and its picture from benchmarks/results/comparison.jsonl. Nothing is trained here.

python -m tools.comparison
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.comparison.jobs import CLOSE, REFERENCE, TARGET_SHARE, Found, read, target
from benchmarks.comparison.measures import (
    BUDGET_SHARE,
    LINE,
    MEASURES,
    Measure,
    Standing,
    budget,
    leader,
    sent,
    standings,
)
from benchmarks.comparison.methods import ENTRANTS, LATE, NARROW, REMEMBERED, UPDATES
from benchmarks.comparison.problems import CONTESTS, Contest
from benchmarks.comparison.training import TUNING_SEED, Curve
from matplotlib.figure import Figure
from tools.comparison_text import AGAIN, TEXT

from efvfl.experiments.tables import as_markdown
from efvfl.runs.plots import BLUE, GREY, INK, ORANGE, RED, SOFT, TEAL, VIOLET, tidy
from efvfl.util.files import write_atomically

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PICTURE = DOCS / "comparison.md", "results/comparison.png"
OURS = "EF-VFL, ternary"  # what the library recommends, and what losses are counted for
SHOWN: Mapping[str, tuple[str, str]] = {  # the curves of the picture: colour and line
    "SVFL": (GREY, "-"),
    "SVFL, narrower": (GREY, ":"),
    "CELU": (ORANGE, "-"),
    "randomised top-k 10 %": (RED, "-"),
    "C-VFL, ternary": (VIOLET, "--"),
    "EF-VFL, ternary": (TEAL, "-"),
    "EF-VFL, ternary, cached steps": (BLUE, "-"),
}
PAIRS = ("top-k 10 %", "qsgd 4 bit", "ternary")  # compressors with and without error feedback


def page(found: Found) -> str:
    """Return the page."""
    problems = {name: standings(found, name) for name in CONTESTS if has_runs(found, name)}
    counts = sorted({len(one.runs) for of in problems.values() for one in of.values()})
    seeds = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    text = TEXT.format(
        methods=max(len(of) for of in problems.values()),
        problems=len(problems),
        done=f"Numbers are means over {seeds}" + (", ± the standard deviation." if counts[-1] > 1 else "."),
        picture=PICTURE,
        short=short(problems),
        losses=losses(problems),
        feedback=feedback(problems),
        rates=len(next(iter(CONTESTS.values())).rates),
        tuning_seed=TUNING_SEED,
        close=f"{CLOSE:g}",
        target_share=f"{100 * TARGET_SHARE:.0f} %",
        budget_share=f"{100 * BUDGET_SHARE:.0f} %",
        megabits=f"{LINE.up / 1e6:g}",
        milliseconds=f"{1e3 * LINE.round_trip:g}",
        narrow=NARROW,
        updates=UPDATES,
        remembered=REMEMBERED,
        late=LATE,
        edges=edges(problems),
    )
    sections = [section(found, CONTESTS[name], of) for name, of in problems.items()]
    minutes = sum(curve.seconds for curve in found.values()) / 60
    return "\n".join([text, *sections, AGAIN.format(runs=len(found), minutes=minutes)])


def edges(problems: Mapping[str, Mapping[str, Standing]]) -> str:
    """Return how often the chosen rate is the largest or the smallest of the grid: others may be better still."""
    rates = [(one.rate, CONTESTS[name].rates) for name, of in problems.items() for one in of.values()]
    largest, smallest = (sum(rate == end(grid) for rate, grid in rates) for end in (max, min))
    return f"{largest} of {len(rates)} times the largest of its grid, {smallest} times the smallest"


def has_runs(found: Found, problem: str) -> bool:
    """Whether a problem has runs of the two methods that others are measured against."""
    return {REFERENCE, OURS} <= {key[1] for key in found if key[0] == problem and not key[-1]}


def shown(measure: Measure, value: float, accuracy: bool) -> str:
    """Return a value as the tables have it: accuracy in per cent, AUC as it is."""
    if measure.larger:
        return f"{100 * value:.1f}" if accuracy else f"{value:.4f}"
    return f"{value:.0f}" if measure.unit == "rounds" else f"{value:#.3g}"


def section(found: Found, contest: Contest, of: Mapping[str, Standing]) -> str:
    """Return a problem's part."""
    accuracy = contest.metric == "accuracy"
    metric = "accuracy, %" if accuracy else "AUC"
    wanted, most = target(found, contest.name), budget(found, contest.name) / 1e6
    goal = f"{100 * wanted:.1f} %" if accuracy else f"{wanted:.3f}"
    rates = ", ".join(f"{rate:g}" for rate in contest.rates)
    lead = (
        f"{capital(contest.about)}. {contest.rounds} rounds, evaluated every {contest.every}; rates {rates}. Target: "
        f"an {'accuracy' if accuracy else 'AUC'} of {goal} on validation rows. Budget: {most:.2f} MB. "
        f"Bold: the best mean of {max(len(one.runs) for one in of.values())} seeds."
    )
    headings = [
        "method",
        "rate",
        f"{metric} in {most:.2f} MB",
        "MB to target",
        "rounds",
        "seconds",
        f"{metric} at the end",
    ]
    best = {measure.name: leader(of, measure) for measure in MEASURES}
    body = []
    for name, one in of.items():
        cells = [cell(one, measure, accuracy, best[measure.name] == name) for measure in MEASURES]
        body.append([name, f"{one.rate:g}", *cells])
    return "\n".join([f"## {contest.name}\n", lead, "", as_markdown(headings, body), ""])


def cell(one: Standing, measure: Measure, accuracy: bool, best: bool) -> str:
    """Return a mean with its deviation, or how many seeds got there."""
    value = one.mean(measure)
    if value is None and measure.unit not in ("", "MB"):
        return ""  # said in the column before
    if value is None:
        return f"{len(one.values(measure))} of {len(one.runs)} seeds"
    text = shown(measure, value, accuracy)
    digits = len(text.partition(".")[2])  # a deviation has as many
    spread = f"{one.deviation(measure) * (100 if measure.larger and accuracy else 1):.{digits}f}"
    text = f"**{text}**" if best else text
    return f"{text} ± {spread}" if len(one.runs) > 1 else text


def short(problems: Mapping[str, Mapping[str, Standing]]) -> str:
    """Return what the recommended method takes to the target beside SVFL, over the problems where both get there."""
    parts = []
    for measure, words in zip(MEASURES[1:4], ("bytes", "rounds", "seconds on the line"), strict=True):
        means = [(of[OURS].mean(measure), of[REFERENCE].mean(measure)) for of in problems.values()]
        shares = [100 * a / b for a, b in means if a is not None and b is not None]
        if shares:
            parts.append(f"{min(shares):.0f} to {max(shares):.0f} % of the {words}")
    both = sum(all(one.mean(MEASURES[1]) is not None for one in (of[OURS], of[REFERENCE])) for of in problems.values())
    return (
        f"To the target, {OURS} takes {', '.join(parts)} that SVFL takes, on the {both} problems where both get there."
    )


def losses(problems: Mapping[str, Mapping[str, Standing]]) -> str:
    """Return where the recommended method is not the best, measure by measure."""
    lines = [
        "## Where EF-VFL loses",
        "",
        f"{OURS}, the rounding that is recommended for slow lines, against every method that is not EF-VFL. In "
        "brackets: its mean and that of the best of them, and in how many seeds that one is better. The best of "
        f"{len([one for one in ENTRANTS.values() if one.family != 'EF-VFL'])} is partly so by chance.",
        "",
    ]
    for measure in MEASURES:
        won, lost = [], []
        for name, of in problems.items():
            said = lost_to(of, measure, CONTESTS[name].metric == "accuracy")
            (lost if said else won).append(f"{name} {said}" if said else name)
        lines.append(f"- **{capital(measure.name)}**: {verdict(won, lost)}")
    return "\n".join([*lines, "", *among_ours(problems)])


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[0].upper() + text[1:]


def verdict(won: list[str], lost: list[str]) -> str:
    """Return a sentence of two lists."""
    if not lost:
        return "none of them is ahead on any problem."
    best = f"; none of them is ahead on {', '.join(won)}." if won else "."
    return f"it loses on {', on '.join(lost)}{best}"


def lost_to(of: Mapping[str, Standing], measure: Measure, accuracy: bool) -> str:
    """Return who is ahead of the recommended method, by how much and in how many seeds; empty: nobody that shows."""
    others = {name: one for name, one in of.items() if ENTRANTS[name].family != "EF-VFL"}
    best, ours = leader(others, measure), of[OURS].mean(measure)
    if best is None:
        return "" if ours is not None else "as all do (nobody gets there)"
    theirs = others[best].mean(measure)
    assert theirs is not None, "a leader has a mean"
    if ours is None:
        return f"to {best}, because some of its seeds do not get there"
    if not measure.better(theirs, ours):
        return ""
    by_seed = {run.seed: measure.of(run) for run in of[OURS].runs}
    pairs = [(measure.of(run), by_seed.get(run.seed)) for run in others[best].runs]
    seeds = sum(a is not None and b is not None and measure.better(a, b) for a, b in pairs)
    texts = [shown(measure, value, accuracy) for value in (ours, theirs)]
    if len(set(texts)) == 1:
        return ""  # by less than is shown
    numbers = " against ".join(texts)
    unit = f" {measure.unit}" if measure.unit else " %" if accuracy else ""
    return f"to {best} ({numbers}{unit}; {seeds} of {len(pairs)})"


def among_ours(problems: Mapping[str, Mapping[str, Standing]]) -> Iterable[str]:
    """Yield where another setting of EF-VFL is better than the recommended one."""
    parts = []
    for measure in MEASURES[1:4]:
        ahead: dict[str, list[str]] = {}
        for name, of in problems.items():
            ours = {key: one for key, one in of.items() if ENTRANTS[key].family == "EF-VFL"}
            if (best := leader(ours, measure)) and best != OURS:
                ahead.setdefault(best, []).append(name)
        said = "; ".join(f"{best} on {', '.join(names)}" for best, names in ahead.items())
        if said:
            parts.append(f"- {capital(measure.name)}: {said}.")
    if parts:
        yield from ["Other settings of EF-VFL that are ahead of it:", "", *parts]


def feedback(problems: Mapping[str, Mapping[str, Standing]]) -> str:
    """Return what error feedback adds to a compressor: EF-VFL less C-VFL, in points of the metric."""
    body = []
    for name, of in problems.items():
        cells = []
        for measure in (MEASURES[0], MEASURES[-1]):
            cells += [difference(of.get(f"EF-VFL, {what}"), of.get(f"C-VFL, {what}"), measure) for what in PAIRS]
        body.append([name, *cells])
    headings = ["problem", *(f"{what}, budget" for what in PAIRS), *(f"{what}, end" for what in PAIRS)]
    return "\n".join(
        [
            "## What error feedback adds",
            "",
            "EF-VFL less C-VFL with the same compressor, seed by seed, in points of the test metric (accuracy in per "
            "cent, 100 times the AUC): within the budget, and at the end. Below zero, error feedback does worse.",
            "",
            as_markdown(headings, body),
        ]
    )


def difference(ours: Standing | None, theirs: Standing | None, measure: Measure) -> str:
    """Return the mean difference in points and its deviation; empty: somebody has no value."""
    if ours is None or theirs is None:
        return ""
    other = {run.seed: measure.of(run) for run in theirs.runs}
    pairs = [(measure.of(run), other.get(run.seed)) for run in ours.runs]
    apart = [100 * (a - b) for a, b in pairs if a is not None and b is not None]
    if not apart:
        return ""
    return f"{mean(apart):+.2f}" + (f" ± {stdev(apart):.2f}" if len(apart) > 1 else "")


def draw(found: Found) -> Figure:
    """Plot the metric of validation rows by what was sent, a panel for each problem."""
    names = [name for name in CONTESTS if has_runs(found, name)]
    figure = Figure(figsize=(13.3, 7.5), layout="constrained")
    panels = figure.subplots(2, -(-len(names) // 2), squeeze=False).flat
    for axes, name in zip(panels, names, strict=False):
        _panel(axes, found, CONTESTS[name])
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=13, loc="outside lower center", ncols=4)
    figure.suptitle(
        "What a megabyte buys: best validation metric so far by megabytes sent, both directions", color=INK, fontsize=17
    )
    return figure


def _panel(axes: Any, found: Found, contest: Contest) -> None:
    wanted = target(found, contest.name)
    of, top = standings(found, contest.name), 0.0
    for name, (colour, line) in SHOWN.items():
        if name not in of:
            continue
        runs = [found[contest.name, name, of[name].rate, run.seed, False] for run in of[name].runs]
        sizes, values = mean_curve(runs)
        top = max([top, *values])
        axes.plot(sizes, values, label=name, color=colour, linestyle=line, linewidth=3 if name.startswith("EF") else 2)
    axes.axhline(wanted, color=SOFT, linewidth=1.2, linestyle=":")
    axes.axvline(budget(found, contest.name) / 1e6, color=SOFT, linewidth=1.2, linestyle=":")
    bottom = contest.chance + 0.7 * (wanted - contest.chance)
    axes.set(title=contest.name, xscale="log", ylim=(bottom, top + 0.05 * (top - bottom)))
    axes.set_xlabel("MB sent", fontsize=12)
    axes.set_ylabel("AUC" if contest.metric == "auc" else "accuracy", fontsize=12)
    axes.title.set_fontsize(15)
    axes.tick_params(labelsize=11)
    tidy(axes)


def mean_curve(runs: list[Curve]) -> tuple[list[float], list[float]]:
    """Return megabytes, and the best metric of validation rows so far, means over the runs at every evaluation."""
    together = list(zip(*(run.points for run in runs), strict=False))
    sizes = [mean(sent(point) for point in points) / 1e6 for points in together]
    best = [list(accumulate((point.validation for point in run.points), max)) for run in runs]
    return sizes, [mean(values) for values in zip(*best, strict=False)]


def main() -> None:
    """Write both."""
    found = read()
    write_atomically(PAGE, page(found).encode(), public=True)
    image = io.BytesIO()
    draw(found).savefig(image, format="png", dpi=110)
    write_atomically(DOCS / PICTURE, image.getvalue(), public=True)


if __name__ == "__main__":
    main()

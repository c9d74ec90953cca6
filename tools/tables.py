"""Write the benchmark's part of docs/tables.md and its picture from benchmarks/results. Nothing is trained here.

python -m tools.tables
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.tables import choose, small
from benchmarks.tables.problems import CHOICE, TEST
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import t as student

from efvfl.experiments import figures
from efvfl.runs.plots import BLUE, GREY, ORANGE, RED, TEAL, VIOLET, tidy
from efvfl.util.files import write_atomically

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE, PICTURE = ROOT / "docs" / "tables.md", "results/tables.svg"
START, END = "<!-- made by tools/tables.py -->", "<!-- end -->"
OURS, SVFL, TREES, NETWORK = "EF-VFL", "SVFL", "gradient-boosted trees, joined", "same network, joined"
LOGISTIC = "logistic regression, joined"
HIGHEST = 0.65  # log loss in the picture; what diverges leaves it
WITHIN = 0.005  # of the trees' area under the curve

Found = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by problem, by what was trained, by seed


def read(name: str) -> Found:
    """Return the results in a file."""
    found: Found = json.loads((RESULTS / f"tables{name}.json").read_text(encoding="utf-8"))
    return found


def values(found: Found, problem: str, what: str, score: str) -> list[float]:
    """Return a score of all seeds."""
    return [result.get(score, 0.0) for result in found[problem][what].values()]


def mean(found: Found, problem: str, what: str, score: str) -> float:
    """Return the mean of a score over seeds."""
    return float(np.mean(values(found, problem, what, score)))


def complete(found: Found, models: Iterable[str]) -> Found:
    """Return the splits on which all models were trained, without tables that have none."""
    chosen = list(models)
    common = {problem: set.intersection(*(set(runs.get(m, {})) for m in chosen)) for problem, runs in found.items()}
    return {
        problem: {what: {s: r for s, r in found[problem][what].items() if s in seeds} for what in chosen}
        for problem, seeds in common.items()
        if seeds
    }


def score_table(found: Found, score: str, title: str) -> list[str]:
    """Return a row for each model and a column for each table: mean and standard deviation over seeds."""
    problems = list(found)
    lines = [f"| {title} | {' | '.join(problems)} | mean |", f"| --- |{' ---: |' * (len(problems) + 1)}"]
    for what in found[problems[0]]:
        parts = [values(found, problem, what, score) for problem in problems]
        means = [float(np.mean(part)) for part in parts]
        lines.append(f"| {what} | {' | '.join(map(cell, parts))} | {np.mean(means):.4f} |")
    counts = [len(found[problem][OURS]) for problem in problems]
    return [*lines, f"| *splits* | {' | '.join(map(str, counts))} | |"]


def cell(part: list[float]) -> str:
    """Return mean and standard deviation over splits."""
    return f"{np.mean(part):.4f} ± {np.std(part, ddof=1):.4f}" if len(part) > 1 else f"{part[0]:.4f}"


def byte_table(found: Found) -> list[str]:
    """Return what one training sent, and how long it was."""
    lines = ["| one training | epochs | MB up | MB down | up, of SVFL | down, of SVFL |", "| --- |" + " ---: |" * 5]
    for problem in found:
        epochs, plain = (mean(found, problem, what, "epochs") for what in (OURS, SVFL))
        up, down = (mean(found, problem, OURS, f"bytes_{way}") for way in ("up", "down"))
        # An epoch of one beside an epoch of the other: they do not stop after as many.
        shares = [
            (sent / epochs) / (mean(found, problem, SVFL, f"bytes_{way}") / plain)
            for way, sent in (("up", up), ("down", down))
        ]
        lines.append(
            f"| {problem} | {epochs:.0f} | {up / 1e6:.2f} | {down / 1e6:.2f} | {shares[0]:.1%} | {shares[1]:.1%} |"
        )
    return lines


def by_split(found: Found, problem: str, other: str, score: str = "auc") -> NDArray[np.float64]:
    """Return by how much the default federation's score is above another model's, on every split that both have."""
    pair = complete({problem: found[problem]}, (OURS, other))
    return np.subtract(*(values(pair, problem, what, score) for what in (OURS, other)))


def differences(found: Found, problem: str, other: str) -> tuple[float, float]:
    """Return by how much the default federation's AUC is above another model's: mean over splits, standard error."""
    apart = by_split(found, problem, other)
    return float(np.mean(apart)), standard_error(apart, TEST)


def plain_error(apart: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the standard error of a mean over splits: how far more splits of the very same rows could move it."""
    return float(np.std(apart, ddof=1) / len(apart) ** 0.5) if len(apart) > 1 else float("nan")


def standard_error(apart: Sequence[float] | NDArray[np.float64], held: float) -> float:
    """Return the standard error of a mean difference over splits that hold out a share of the rows.

    Splits of one table have rows in common, so their scores are not independent: the error is the corrected one of
    Nadeau and Bengio (Inference for the Generalization Error, 2003). It is about other rows of the same kind, of which
    a table is but one draw: more splits of it do not bring it to zero.
    """
    if len(apart) < 2:
        return float("nan")
    return float(np.std(apart, ddof=1) * (1 / len(apart) + held / (1 - held)) ** 0.5)


def difference_table(found: Found) -> list[str]:
    """Return what the default federation is above or below its rivals but the linear one, paired by split."""
    lines = [f"| EF-VFL less the other, AUC | {' | '.join(found)} |", f"| --- |{' ---: |' * len(found)}"]
    for other in (NETWORK, TREES, SVFL):
        cells = [differences(found, problem, other) for problem in found]
        lines.append(f"| {other} | {' | '.join(f'{mean:+.4f} ± {error:.4f}' for mean, error in cells)} |")
    return lines


def linear_table(found: Found) -> list[str]:
    """Return the difference to logistic regression with both errors: of more splits, and of other rows."""
    lines = [
        f"| EF-VFL less *{LOGISTIC}* | splits | ahead, behind "
        "| AUC | of splits | of rows | log loss | of splits | of rows |",
        "| --- |" + " ---: |" * 8,
    ]
    for problem in found:
        apart, loss = (by_split(found, problem, LOGISTIC, score) for score in ("auc", "log_loss"))
        lines.append(
            f"| {problem} | {len(apart)} | {np.sum(apart > 0)}, {np.sum(apart < 0)} | {np.mean(apart):+.5f} "
            f"| ± {plain_error(apart):.5f} | ± {standard_error(apart, TEST):.5f} "
            f"| {np.mean(loss):+.4f} | ± {plain_error(loss):.4f} | ± {standard_error(loss, TEST):.4f} |"
        )
    return lines


def verdict(found: Found) -> str:
    """Return how the default federation stands to what it is compared with."""
    mean_behind = -float(np.mean([differences(found, problem, TREES)[0] for problem in found]))
    goal = "met" if mean_behind <= WITHIN else "missed"
    text = [
        f"The default federation's AUC is {abs(mean_behind):.4f} "
        f"{'below' if mean_behind > 0 else 'above'} that of the joined table's gradient-boosted trees, mean over "
        f"the {len(found)} tables (goal: at most {WITHIN} below: {goal})."
    ]
    for other in (LOGISTIC, NETWORK):
        by_sign: dict[int, list[str]] = {1: [], 0: [], -1: []}
        for problem in found:
            by_sign[_sign(found, problem, other)].append(problem)
        text.append(
            f"Beside *{other}* it is better on {_listed(by_sign[1])}, worse on {_listed(by_sign[-1])}, and cannot be "
            f"told apart on {_listed(by_sign[0])}."
        )
    return " ".join(text)


def _sign(found: Found, problem: str, other: str) -> int:
    """Return 1 if the default federation is better, -1 if it is worse, 0 if these splits do not tell (5 %)."""
    apart, error = differences(found, problem, other)
    splits = len(by_split(found, problem, other))
    return int(np.sign(apart)) if splits > 1 and abs(apart) > student.ppf(0.975, splits - 1) * error else 0


def _listed(problems: Sequence[str]) -> str:
    return ", ".join(problems) or "none"


def choice_table(found: Found) -> list[str]:
    """Return the candidates beside the defaults: means over tables and seeds, and the difference to the defaults."""
    lines = ["| | AUC | log loss | log loss, less the default's | MB up | MB down |", "| --- |" + " ---: |" * 5]
    topic, default = "", ""
    for c in choose.CANDIDATES:
        if any(c.name not in found[p] for p in found):
            continue
        if c.topic != topic:
            topic = c.topic
            lines.append(f"| *{topic}* | | | | | |")
        default = c.name if c.is_default else default
        scores = [
            float(np.mean([mean(found, p, c.name, score) for p in found]))
            for score in ("auc", "log_loss", "bytes_up", "bytes_down")
        ]
        apart = "" if c.is_default else _apart(found, c.name, default)
        sent = (f"{sent / 1e6:.2f}" if sent else "" for sent in scores[2:])
        lines.append(f"| {c.name} | {scores[0]:.4f} | {scores[1]:.4f} | {apart} | {' | '.join(sent)} |")
    return lines


def _apart(found: Found, what: str, default: str) -> str:
    """Return the difference of log losses, mean over tables, with its standard error over splits."""
    of_tables = [
        [runs[what][seed]["log_loss"] - runs[default][seed]["log_loss"] for seed in runs[what] if seed in runs[default]]
        for runs in found.values()
    ]
    shown = f"{np.mean([np.mean(part) for part in of_tables]):+.4f}"
    if min(map(len, of_tables)) < 2:
        return shown
    error = np.linalg.norm([standard_error(part, CHOICE) for part in of_tables]) / len(of_tables)
    return f"{shown} ± {error:.4f}"


def small_table(found: Found) -> list[str]:
    """Return what was tried on the table of few rows: means over cuts, and the difference to the defaults."""
    lines = [f"| {small.PROBLEM} | AUC | log loss | log loss, less the default's |", "| --- |" + " ---: |" * 3]
    for name in small.NAMES:
        auc, loss = (mean(found, small.PROBLEM, name, score) for score in ("auc", "log_loss"))
        apart = "" if name == small.NAMES[0] else _apart(found, name, small.NAMES[0])
        lines.append(f"| {name} | {auc:.4f} | {loss:.4f} | {apart} |")
    return lines


def part(test: Found, choice: Found, few: Found) -> str:
    """Return the generated part of the page."""
    whole = complete(test, next(iter(test.values())))
    lines: Sequence[str] = [
        START,
        *score_table(whole, "auc", "area under the ROC curve"),
        "",
        *score_table(whole, "log_loss", "log loss"),
        "",
        *difference_table(whole),
        "",
        *linear_table(test),
        "",
        verdict(test),
        "",
        *byte_table(whole),
        "",
        f"What else was tried, each in one respect: means over {', '.join(choice)}, on validation rows.",
        "",
        *choice_table(choice),
        "",
        f"And on the table of few rows, {len(small.SEEDS)} cuts of the training rows of {small.SPLITS} splits:",
        "",
        *small_table(few),
        END,
    ]
    return "\n".join(lines)


def with_part(page: str, made: str) -> str:
    """Return the page with another generated part, in place of the one that begins with the same line."""
    before, _, rest = page.partition(made.partition("\n")[0])
    _, _, after = rest.partition(END)
    return before + made + after


def draw(found: Found) -> Figure:
    """Return two panels: the validation loss by epoch, and by megabytes sent, both directions."""
    canvas = Figure(figsize=(9.6, 3.6), layout="constrained")
    left, right = canvas.subplots(1, 2, sharey=True)
    (runs,) = found.values()
    colours, lowest = (GREY, TEAL, BLUE, VIOLET, ORANGE, RED), HIGHEST
    for colour, (name, by_seed) in zip(colours, runs.items(), strict=False):
        loss = np.mean([result["loss"] for result in by_seed.values()], axis=0)
        megabytes = np.mean([sum(result["bytes"]) for result in by_seed.values()]) / 1e6
        epochs = np.arange(1, len(loss) + 1)
        left.plot(epochs, loss, label=name, color=colour)
        right.plot(epochs * megabytes, loss, color=colour)
        lowest = min(lowest, float(loss.min()))
    left.set(xlabel="epoch", ylabel="validation log loss", ylim=(lowest - 0.01, HIGHEST))
    right.set(xlabel="MB sent, both ways", xscale="log")
    for axes in (left, right):
        tidy(axes)
    canvas.legend(loc="outside lower center", ncols=3, frameon=False)
    return canvas


def main() -> None:
    """Write both."""
    write_atomically(PAGE.parent / PICTURE, figures.image(draw(read("_curve")), "svg"))
    text = with_part(PAGE.read_text(encoding="utf-8"), part(read(""), read("_choice"), read("_small")))
    write_atomically(PAGE, text.encode())


if __name__ == "__main__":
    main()

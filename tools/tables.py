"""Write the benchmark's part of docs/tables.md and its picture from benchmarks/results. Nothing is trained here.

python -m tools.tables
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.tables import choose
from matplotlib.figure import Figure

from efvfl.experiments import figures
from efvfl.util.files import write_atomically

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE, PICTURE = ROOT / "docs" / "tables.md", "results/tables.svg"
START, END = "<!-- made by tools/tables.py -->", "<!-- end -->"
OURS, SVFL, TREES, NETWORK = "EF-VFL", "SVFL", "gradient-boosted trees, joined", "same network, joined"
LOGISTIC = "logistic regression, joined"
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


def score_table(found: Found, score: str, title: str) -> list[str]:
    """Return a row for each model and a column for each table: mean and standard deviation over seeds."""
    problems = list(found)
    lines = [f"| {title} | {' | '.join(problems)} | mean |", f"| --- |{' ---: |' * (len(problems) + 1)}"]
    for what in found[problems[0]]:
        parts = [values(found, problem, what, score) for problem in problems]
        means = [float(np.mean(part)) for part in parts]
        lines.append(f"| {what} | {' | '.join(map(_cell, parts))} | {np.mean(means):.4f} |")
    counts = [len(found[problem][OURS]) for problem in problems]
    return [*lines, f"| *splits* | {' | '.join(map(str, counts))} | |"]


def _cell(part: list[float]) -> str:
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


def verdict(found: Found) -> str:
    """Return how the default federation stands to what it is compared with."""
    behind = [mean(found, p, TREES, "auc") - mean(found, p, OURS, "auc") for p in found]
    mean_behind = float(np.mean(behind))
    goal = "met" if mean_behind <= WITHIN else "missed"
    text = [
        f"The default federation's AUC is {abs(mean_behind):.4f} "
        f"{'below' if mean_behind > 0 else 'above'} that of the joined table's gradient-boosted trees, mean over "
        f"the {len(found)} tables (goal: at most {WITHIN} below: {goal})."
    ]
    for other in (LOGISTIC, NETWORK):
        lower = [p for p in found if mean(found, p, OURS, "auc") < mean(found, p, other, "auc")]
        gaps = ", ".join(f"{p} ({mean(found, p, OURS, 'auc') - mean(found, p, other, 'auc'):+.4f})" for p in lower)
        text.append(
            f"Beside *{other}* it is at least as good on {len(found) - len(lower)} of {len(found)}{_but(gaps)}."
        )
    return " ".join(text)


def _but(gaps: str) -> str:
    return f"; not on {gaps}" if gaps else ""


def choice_table(found: Found) -> list[str]:
    """Return the candidates beside the defaults, in the mean over tables and seeds."""
    problems = list(found)
    lines = ["| | mean AUC | mean log loss | MB up | MB down |", "| --- |" + " ---: |" * 4]
    topic = ""
    for c in choose.CANDIDATES:
        if any(c.name not in found[p] for p in problems):
            continue
        if c.topic != topic:
            topic = c.topic
            lines.append(f"| *{topic}* | | | | |")
        scores = [
            float(np.mean([mean(found, p, c.name, score) for p in problems]))
            for score in ("auc", "log_loss", "bytes_up", "bytes_down")
        ]
        cells = [f"{scores[0]:.4f}", f"{scores[1]:.4f}", *(f"{sent / 1e6:.2f}" for sent in scores[2:])]
        lines.append(f"| {c.name} | {' | '.join(cells)} |")
    return lines


def part(test: Found, choice: Found) -> str:
    """Return the generated part of the page."""
    lines: Sequence[str] = [
        START,
        *score_table(test, "auc", "area under the ROC curve"),
        "",
        *score_table(test, "log_loss", "log loss"),
        "",
        *byte_table(test),
        "",
        verdict(test),
        "",
        f"What else was tried, each in one respect: means over {', '.join(choice)}, on validation rows.",
        "",
        *choice_table(choice),
        END,
    ]
    return "\n".join(lines)


def with_part(page: str, made: str) -> str:
    """Return the page with another generated part."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return before + made + after


def draw(found: Found) -> Figure:
    """Return two panels: the validation loss by epoch, and by megabytes sent, both directions."""
    canvas = Figure(figsize=(9.6, 3.6), layout="constrained")
    left, right = canvas.subplots(1, 2, sharey=True)
    (runs,) = found.values()
    for name, by_seed in runs.items():
        loss = np.mean([result["loss"] for result in by_seed.values()], axis=0)
        megabytes = np.mean([sum(result["bytes"]) for result in by_seed.values()]) / 1e6
        epochs = np.arange(1, len(loss) + 1)
        left.plot(epochs, loss, label=name)
        right.plot(epochs * megabytes, loss)
    left.set(xlabel="epoch", ylabel="validation log loss")
    right.set(xlabel="MB sent, both ways", xscale="log")
    for axes in (left, right):
        axes.grid(True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    canvas.legend(loc="outside lower center", ncols=3, frameon=False)
    return canvas


def main() -> None:
    """Write both."""
    write_atomically(PAGE.parent / PICTURE, figures.image(draw(read("_curve")), "svg"))
    text = with_part(PAGE.read_text(encoding="utf-8"), part(read(""), read("_choice")))
    write_atomically(PAGE, text.encode())


if __name__ == "__main__":
    main()

"""Write the measured part of docs/privacy.md about randomised labels from benchmarks/results. Nothing is trained here.

python -m tools.randomised_labels
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from benchmarks.randomised_labels import EPSILONS, RESULTS, Found, name_of

from efvfl.experiments.tables import as_markdown
from efvfl.util.files import write_atomically

PAGE = Path(__file__).parent.parent / "docs" / "privacy.md"
START, END = "<!-- made by tools/randomised_labels.py -->", "<!-- end of randomised labels -->"
WAYS = {"corrected": "private labels", "plain": "without correction", "shared": "shared labels"}
SCORES = {
    "credit": [("auc", "test AUC", 1, 4), ("log_loss", "log loss", 1, 3)],
    "mnist": [("accuracy", "test %", 100, 2), ("log_loss", "log loss", 1, 3)],
}


def read() -> Found:
    """Return what was measured."""
    found: Found = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def values(found: Found, problem: str, name: str, score: str) -> list[float]:
    """Return a score of all seeds."""
    return [result[score] for result in found[problem].get(name, {}).values()]


def table(found: Found, problem: str) -> str:
    """Return a row for each epsilon, and columns for each way to train and score."""
    ways = {way: text for way, text in WAYS.items() if any(name.endswith(f", {way}") for name in found[problem])}
    headings = ["ε", *(f"{text}: {what}" for text in ways.values() for _, what, _, _ in SCORES[problem])]
    body = []
    for epsilon in (0.0, *EPSILONS[problem]):
        cells = [f"{epsilon:g}" if epsilon else "∞"]
        for way in ways:
            name = name_of(epsilon, "private" if not epsilon and way == "corrected" else way)
            for score, _, times, places in SCORES[problem]:
                part = [times * value for value in values(found, problem, name, score)]
                spread = f" ± {np.std(part, ddof=1):.{places}f}" if len(part) > 1 and score != "log_loss" else ""
                cells.append(f"{np.mean(part):.{places}f}{spread}" if part else "")
        body.append(cells)
    return as_markdown(headings, body)


def part(found: Found) -> str:
    """Return the generated part of the page."""
    seeds = max(len(by_seed) for runs in found.values() for by_seed in runs.values())
    lines = [START, "", f"Means and standard deviations over {seeds} seeds."]
    lines += ["", "**Credit**, 30,000 rows of two banks, 22 % positive:", "", table(found, "credit")]
    lines += ["", "**MNIST**, quarters of 60,000 images, 10 classes, 10 epochs:", "", table(found, "mnist"), "", END]
    return "\n".join(lines)


def with_part(page: str, made: str) -> str:
    """Return the page with another generated part."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return before + made + after


def main() -> None:
    """Write it."""
    text = with_part(PAGE.read_text(encoding="utf-8"), part(read()))
    write_atomically(PAGE, text.encode(), public=True)


if __name__ == "__main__":
    main()

"""Write the measured part of docs/subsets.md from benchmarks/results. Nothing is trained here.

python -m tools.missing_rows
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.tables.missing import ALONE, CANDIDATES, CASES, DEFAULT, INTERSECTION, MODELS, OURS, TRIED
from benchmarks.tables.problems import TEST
from numpy.typing import NDArray
from tools.tables import END, Found, cell, complete, plain_error, read, standard_error, values, with_part

from efvfl.util.files import write_atomically

PAGE = Path(__file__).parent.parent / "docs" / "subsets.md"
START = "<!-- made by tools/missing_rows.py -->"
WITHIN = 0.003  # of the plain model's AUC, where nothing is missing


def score_table(found: Found) -> list[str]:
    """Return the AUC on all test rows, mean and standard deviation over splits, and the difference to the better."""
    lines = [
        f"| AUC on all test rows | splits | {OURS} | {ALONE} | {INTERSECTION} | ours less the better one | of splits |",
        "| --- |" + " ---: |" * 6,
    ]
    for case in found:
        parts = [values(found, case, what, "auc") for what in (OURS, ALONE, INTERSECTION)]
        cells = " | ".join(map(cell, parts))
        apart = beside_the_better(found, case, OURS)
        around = [
            f"± {error:.4f}" if len(apart) > 1 else "" for error in (standard_error(apart, TEST), plain_error(apart))
        ]
        lines.append(f"| {case} | {len(apart)} | {cells} | {np.mean(apart):+.4f} {around[0]} | {around[1]} |")
    return lines


def beside_the_better(found: Found, case: str, what: str) -> NDArray[np.float64]:
    """Return by how much what was trained is above the better of the other two models, for every split.

    The better one is that with the higher mean, the same for all splits: nobody could choose by test rows.
    """
    rival = max((ALONE, INTERSECTION), key=lambda other: float(np.mean(values(found, case, other, "auc"))))
    return np.subtract(values(found, case, what, "auc"), values(found, case, rival, "auc"))


def difference(found: Found, case: str) -> tuple[float, float]:
    """Return the mean of that over splits, and its standard error."""
    apart = beside_the_better(found, case, OURS)
    return float(np.mean(apart)), standard_error(apart, TEST)


def alone_table(found: Found) -> list[str]:
    """Return how well the label holder predicts alone: by the model of all rows, and by one of its columns alone."""
    lines = [
        "| AUC of the label holder's columns alone | by the model of all rows | by a model of them alone |",
        "| --- | ---: | ---: |",
    ]
    for case in found:
        parts = [values(found, case, OURS, "alone_auc"), values(found, case, ALONE, "auc")]
        lines.append(f"| {case} | {' | '.join(map(cell, parts))} |")
    return lines


def verdicts(found: Found) -> list[str]:
    """Return for every case whether what was wanted came."""
    lines = []
    for case in found:
        apart, error = difference(found, case)
        if CASES[case].rate == 0 and CASES[case].table != "all flights":
            came = "met" if apart >= -WITHIN else "missed"
            lines.append(f"- {case}: {apart:+.4f} beside the plain model (wanted: at most {WITHIN} below): **{came}**.")
        else:
            came = "met" if apart >= 0 else "missed"
            told = ", by less than two standard errors" if abs(apart) <= 2 * error else ""
            lines.append(f"- {case}: {apart:+.4f} (wanted: 0 or more): **{came}**{told}.")
    return lines


def choice_table(found: Found) -> list[str]:
    """Return what was tried on rows that the benchmark does not have, beside the better of the other two models."""
    lines = [
        "| rows not in the tables above | loss | splits | AUC | less the better one | AUC, label holder alone |",
        "| --- | --- |" + " ---: |" * 4,
    ]
    for case in found:
        for what in TRIED:
            scores, alone = (values(found, case, what, score) for score in ("auc", "alone_auc"))
            apart = beside_the_better(found, case, what)
            lines.append(
                f"| {case} | {what}{' (default)' if what == DEFAULT else ''} | {len(apart)} | {np.mean(scores):.4f} "
                f"| {np.mean(apart):+.4f} ± {plain_error(apart):.4f} | {np.mean(alone):.4f} |"
            )
    return lines


def part(test: Found, choice: Found) -> str:
    """Return the generated part of the page."""
    test, choice = complete(test, MODELS), complete(choice, CANDIDATES)
    lines = [START, *score_table(test), "", *verdicts(test), "", *alone_table(test), "", *choice_table(choice), END]
    return "\n".join(lines)


def main() -> None:
    """Write it."""
    text = with_part(PAGE.read_text(encoding="utf-8"), part(read("_missing"), read("_missing_choice")))
    write_atomically(PAGE, text.encode())


if __name__ == "__main__":
    main()

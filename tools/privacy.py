"""Write the tables of attacks in docs/privacy.md from benchmarks/results/attacks.json. Nothing is trained here.

python -m tools.privacy
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.attacks.jobs import FILE, KNOWN, SHADOW
from benchmarks.attacks.problems import TASKS

from efvfl.experiments.tables import as_markdown
from efvfl.util.files import write_atomically

PAGE = Path(__file__).parent.parent / "docs" / "privacy.md"
START, END = "<!-- attacks: made by `python -m tools.privacy` -->", "<!-- end of attacks -->"
LABELS = {
    "norm": "norm",
    "direction": "direction",
    "spectral": "spectral",
    "completion": "completion",
    "active-completion": "active",
    "batch-inversion": "batch inversion",
}
COLUMNS = {
    "inverse": "inverse",
    "generative": "generative",
    "inverse-held-out": "inverse, held-out",
    "generative-held-out": "generative, held-out",
}
BASELINES = {"completion": "columns-alone", "inverse": "without-uplink"}  # what is told without the federation
HEADINGS = ["", *LABELS.values(), *COLUMNS.values(), "test AUC", "test %"]

Runs = Mapping[str, Mapping[str, Any]]  # by setting, by seed


def read() -> Mapping[str, Runs]:
    """Return the results by task."""
    found: Mapping[str, Runs] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def value(by_seed: Mapping[str, Any], name: str, part: str = "found") -> float | None:
    """Return the mean over seeds; None: the attack does not apply."""
    found = [result[part][name] for result in by_seed.values() if name in result[part]]
    return mean(found) if found else None


def _cell(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def table(runs: Runs) -> str:
    """Return a row for each setting, and one for what is told without the federation."""
    lines = []
    for name, by_seed in runs.items():
        cells = {attack: _cell(value(by_seed, attack)) for attack in (*LABELS, *COLUMNS)}
        given = value(by_seed, "shared-labels")
        if given is not None:
            cells["direction"] = f"{given:.2f} (given)"
        accuracy = value(by_seed, "accuracy", "scores")
        price = [_cell(value(by_seed, "auc", "scores")), "" if accuracy is None else f"{100 * accuracy:.1f}"]
        lines.append([name, *cells.values(), *price])
    first = next(iter(runs.values()))
    alone = {attack: _cell(value(first, BASELINES.get(attack, ""))) for attack in (*LABELS, *COLUMNS)}
    return as_markdown(HEADINGS, [*lines, ["*without the federation*", *alone.values(), "", ""]])


def part(found: Mapping[str, Runs]) -> str:
    """Return what stands between the marks."""
    texts = []
    for name, runs in found.items():
        task, seeds = TASKS[name], len(next(iter(runs.values())))
        about = f"**{name}**: {task.epochs} epochs in batches of {task.batch_size}, representations of {task.width}"
        over = f"means over {seeds} seeds" if seeds > 1 else "one seed"
        known = f"{KNOWN} known labels of each class, {SHADOW} shadow rows; {over}."
        texts.append(f"{about}, {known}\n\n{table(runs)}")
    minutes = sum(r["cpu_seconds"] for runs in found.values() for s in runs.values() for r in s.values()) / 60
    texts.append(f"All of it took {minutes:.0f} minutes of one core.")
    return "\n\n".join(texts)


def with_part(page: str, made: str) -> str:
    """Return the page with this between the marks."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{made}\n\n{END}{after}"


def main() -> None:
    """Write the page."""
    page = PAGE.read_text(encoding="utf-8")
    if page.count(START) != 1 or page.count(END) != 1:
        raise SystemExit(f"expected {START} and {END} once in {PAGE}.")
    write_atomically(PAGE, with_part(page, part(read())).encode())


if __name__ == "__main__":
    main()

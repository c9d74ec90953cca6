"""A row of the table: the checked measurement of a script, or the reason why there is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

TOLERANCE = 1e-4  # allowed difference of losses from plain SGD's: float32 sums in another order
REFERENCES = {"efvfl-local": "EF-VFL in one process", "efvfl-network": "EF-VFL over mutual TLS"}


class Failed(Exception):
    """Raised if nothing was measured; the text is the reason."""


@dataclass(frozen=True)
class Row:
    """One library in one mode."""

    case: str  # its name for `--only`
    peer: str = ""
    version: str = ""
    mode: str = ""
    parties: int = 0
    batch: int = 0
    steps: int = 0  # timed
    milliseconds: tuple[float, ...] = ()  # per step, one number per block of steps
    up: float = 0.0  # bytes per step, of all parties
    down: float = 0.0
    loss: tuple[float, float] = (0.0, 0.0)  # mean of the first steps and of the last
    deviation: float | None = None  # largest difference of losses from plain SGD's; None: the method differs by design
    failure: str = ""  # why nothing was measured

    @property
    def middle(self) -> float:
        """The median of the milliseconds."""
        return median(self.milliseconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of the milliseconds."""
        low, _, high = quantiles(self.milliseconds, n=4)
        return low, high


def _found(output: str) -> dict[str, Any]:
    """Return the last line that is a JSON object: libraries print other lines."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                table = json.loads(line)
            except ValueError:
                continue
            if isinstance(table, dict):
                return table
    raise Failed("the script ended well but printed no line of JSON")


def read(case: str, output: str) -> Row:
    """Return the row that a script printed, after checking that it measured a training that learns."""
    table = _found(output)
    try:
        row = Row(
            case=case,
            peer=str(table["peer"]),
            version=str(table["version"]),
            mode=str(table["mode"]),
            parties=int(table["parties"]),
            batch=int(table["batch"]),
            steps=int(table["steps"]),
            milliseconds=tuple(round(float(sample), 4) for sample in table["milliseconds"]),
            up=float(table["bytes"]["up"]),
            down=float(table["bytes"]["down"]),
            loss=(float(table["loss"][0]), float(table["loss"][1])),
            deviation=None if table["deviation"] is None else float(table["deviation"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Failed(f"the script's line is not a measurement: {type(error).__name__}: {error}") from error
    if len(row.milliseconds) < 2 or min(row.milliseconds) <= 0:
        raise Failed(f"the script's line has {len(row.milliseconds)} times, two or more above zero are needed")
    if not row.loss[1] < row.loss[0]:
        raise Failed(f"nothing was learnt: the loss was {row.loss[0]:.4f} at first and {row.loss[1]:.4f} at last")
    if row.deviation is not None and not row.deviation <= TOLERANCE:
        raise Failed(f"another network was trained: losses differ from plain SGD's by up to {row.deviation:.2g}")
    return row


def join(rounds: Sequence[Row]) -> Row:
    """Return the rounds of one case as one row; if one failed, the row is a failure."""
    for row in rounds:
        if row.failure:
            return row
    return replace(
        rounds[0],
        steps=sum(row.steps for row in rounds),
        milliseconds=tuple(sample for row in rounds for sample in row.milliseconds),
    )


def _ratio(row: Row, reference: Row | None) -> str:
    if reference is None or reference.failure:
        return ""
    return f"{row.middle / reference.middle:.2f}"


def _text(text: str) -> str:
    """Return text that cannot end its cell."""
    return " ".join(text.split()).replace("|", "\\|")


def table_of(rows: Sequence[Row]) -> str:
    """Return the table as Markdown; times are also given as multiples of ours."""
    headings = ["library", "mode", "ms a step", "quartiles", "bytes up", "bytes down", "loss", "off central SGD"]
    headings += [f"times {title}" for title in REFERENCES.values()]
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    by_case = {row.case: row for row in rows}
    for row in rows:
        if row.failure:
            cells = [row.case, f"not measured: {_text(row.failure)}", *[""] * (len(headings) - 2)]
        else:
            low, high = row.quartiles
            cells = [
                _text(f"{row.peer} {row.version}"),
                _text(row.mode),
                f"{row.middle:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{row.up:,.0f}",
                f"{row.down:,.0f}",
                f"{row.loss[0]:.4f} to {row.loss[1]:.4f}",
                "by design" if row.deviation is None else f"{row.deviation:.0e}",
                *(_ratio(row, by_case.get(case)) for case in REFERENCES),
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)

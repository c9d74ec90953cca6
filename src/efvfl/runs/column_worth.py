"""Which columns of a run matter, as a file in a participant's folder: `efvfl value` and the report show it.

The label holder's folder has the columns of parties that told it their names, a party's folder has its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from efvfl.errors import DataError
from efvfl.runs.party_worth import estimate_of
from efvfl.training.values import ValueEstimate
from efvfl.util.files import write_atomically

FILE = "column_values.json"


@dataclass(frozen=True)
class ColumnWorth:
    """What is lost without the order of each column, on the rows of one split."""

    split: str
    rows: int  # that were looked at
    metric: str
    parties: dict[str, dict[str, ValueEstimate]]  # by party and column

    def ordered(self, party: str) -> dict[str, ValueEstimate]:
        """Return the columns of a party, those that matter most first."""
        return dict(sorted(self.parties[party].items(), key=lambda item: -item[1].value))

    def note(self) -> str:
        """Say what the numbers are."""
        return (
            f"By how much {self.metric} falls on {self.rows:,} {self.split} rows when a column's values stand at other "
            "rows of its party, with intervals of 95 % from drawing the rows again. Columns that say the same stand in "
            "for each other: each alone then seems to matter little."
        )

    def save(self, folder: Path) -> None:
        """Write it to a folder."""
        write_atomically(folder / FILE, (json.dumps(asdict(self), indent=1) + "\n").encode())


def load_column_values(folder: Path) -> ColumnWorth | None:
    """Return what `save` wrote; None if there is no file."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        parties = {
            str(party): {str(name): estimate_of(e) for name, e in columns.items()}
            for party, columns in table["parties"].items()
        }
        return ColumnWorth(str(table["split"]), int(table["rows"]), str(table["metric"]), parties)
    except (OSError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"expected which columns matter in {path}: {error}. Delete it.") from error


def numbers_of(estimate: ValueEstimate) -> list[float]:
    """Return an estimate as a message carries it: to four places, which is all that anybody reads."""
    return [round(number, 4) + 0.0 for number in (estimate.value, estimate.low, estimate.high)]


def told(columns: Mapping[str, Any]) -> dict[str, ValueEstimate]:
    """Return estimates by column from numbers that came in a message, or raise a ValueError."""
    found = {}
    for name, numbers in columns.items():
        if not isinstance(numbers, list) or len(numbers) != 3:
            raise ValueError(f"expected 3 numbers for a column, got {numbers!s:.80}")
        if not all(type(n) in (int, float) and isfinite(n) for n in numbers):
            raise ValueError(f"expected 3 finite numbers for a column, got {numbers!s:.80}")
        found[name] = ValueEstimate(*map(float, numbers))
    return found

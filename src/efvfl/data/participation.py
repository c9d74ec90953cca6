"""How many rows of each table take part in training, and why the others do not."""

from __future__ import annotations

from dataclasses import asdict, dataclass

# The names of rows where they are compared with training rows.
LATER = "validation and test"
EVERY = "all, beside those of the trained run"  # of a warm start, whose columns are read as that run read them


@dataclass(frozen=True)
class Participation:
    """The rows of one table."""

    rows: int  # in the file
    unlabelled: int  # left out because they have no label
    without_id: int  # left out because they have no id
    duplicates: int  # left out because another row has the same id
    unmatched: int  # left out because of who else has their id: not all tables, or too few
    weightless: int = 0  # left out because their weight is 0
    outer: bool = False  # rows that some tables lack take part, too: the unmatched are not on the label holder's list

    @property
    def taking_part(self) -> int:
        """The number of rows that take part."""
        left_out = self.unlabelled + self.without_id + self.duplicates + self.unmatched + self.weightless
        return self.rows - left_out

    @property
    def complete(self) -> bool:
        """Whether no row is left out."""
        return self.taking_part == self.rows

    def text(self) -> str:
        """Return a sentence for users.

        >>> Participation(rows=1200, unlabelled=3, without_id=0, duplicates=0, unmatched=1000).text()
        '197 of 1,200 rows take part. Left out: 1,000 whose id is not in all tables, 3 without a label.'
        """
        if self.complete:
            return f"all {self.rows:,} rows take part."
        reasons = {
            f"whose id is not {'on the list' if self.outer else 'in all tables'}": self.unmatched,
            "without a label": self.unlabelled,
            "without an id": self.without_id,
            "that share an id": self.duplicates,
            "with a weight of 0": self.weightless,
        }
        left = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        return f"{self.taking_part:,} of {self.rows:,} rows take part. Left out: {left}."

    def counts(self) -> dict[str, int]:
        """Return all numbers by name, for a file."""
        numbers = {name: value for name, value in asdict(self).items() if name != "outer"}
        return numbers | {"taking_part": self.taking_part}

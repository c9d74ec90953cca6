"""The table [data] of a run file: where the rows come from, and how those of several parties are brought together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from efvfl.core import ranges
from efvfl.errors import ConfigError


@dataclass(frozen=True)
class DataConfig:
    """Where the rows come from."""

    name: str = "digits"  # one of `efvfl data list`, "npz" or "table"
    path: str = ""  # npz and table: the file, relative to this one; of the labels alone, if parties have their own
    validation: float = 0.15  # digits, npz and tables: shares of the rows; the others have splits of their own
    test: float = 0.15
    subset: int = 0  # so many training rows, chosen by seed; 0: all
    held_out: int = 0  # at most so many validation rows, and so many test rows, chosen by seed; 0: all
    augment: bool = True  # CIFAR: random crops and flips
    id: str = ""  # table of the labels: the column that names the rows
    label: str = ""  # table of the labels: the column to predict
    weight: str = ""  # table of the labels: the column that says how much a row counts in the loss; none: all alike
    align: Literal["psi", "hash", "outer", "none"] = "psi"  # tables: how rows are found; outer: also such as some lack
    min_parties: int = 1  # outer: rows that fewer parties have are left out; a label holder with columns counts as one
    id_format: tuple[Literal["strip", "case", "zeros"], ...] = ("strip",)  # what makes no difference between ids
    duplicates: Literal["refuse", "first", "drop"] = "refuse"  # rows of one table with the same id
    stratify: bool = False  # tables: every split has the same shares of classes
    ids: int = 0  # `efvfl align`: announced size of the label holder's table; parties refuse 10 % more; 0: any size

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        ranges.check_fields(self, "data")
        if self.validation + self.test >= 1:
            raise ConfigError(
                f"data.validation = {self.validation} and data.test = {self.test} leave no rows to train on: expected "
                "a sum below 1."
            )
        if self.min_parties != 1 and self.align != "outer":
            raise ConfigError(
                f"data.min_parties is set, but it would have no effect: with align = {self.align!r} all parties have "
                "every row. Leave it out, or set align = 'outer'."
            )

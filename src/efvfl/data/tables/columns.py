"""How one column becomes numbers: learnt from training rows, then the same for every row."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np
import polars
from numpy.typing import NDArray

from efvfl.data.tables.texts import as_text
from efvfl.data.tables.values import Kind, moments, numbers_of
from efvfl.errors import DataError

MOST_LEVELS = 1_000
MOST_CODES = 2**24  # a code is a float32, and these are whole up to here
LARGEST_SCALED = 1e6  # so that a broken value cannot become infinite as a float32
CYCLES = {
    "date": ("month sine", "month cosine", "weekday sine", "weekday cosine"),
    "time": ("day sine", "day cosine"),
}


@dataclass(frozen=True)
class Number:
    """A number, a date or a time, standardised; or a boolean, as it is."""

    name: str
    kind: Literal["number", "boolean", "date", "time"]
    median: float  # in place of missing values
    mean: float  # of training rows, once they are filled
    scale: float  # their standard deviation; 0: all are the same, and the column is all zeros
    missing: bool  # training rows had missing values, so one more column says where

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant."""
        if not (isfinite(self.median) and isfinite(self.mean) and isfinite(self.scale) and self.scale >= 0):
            raise DataError(f"column {self.name!r} of an encoder has numbers that are not finite.")

    @classmethod
    def fit(cls, values: polars.Series, kind: Literal["number", "boolean", "date", "time"]) -> Number:
        """Learn from training rows."""
        numbers = numbers_of(values, kind)
        gaps = np.isnan(numbers)
        if gaps.all():
            raise all_missing(values.name)
        if kind == "boolean":
            return cls(values.name, kind, 0.0, 0.0, 1.0, bool(gaps.any()))
        median = float(np.median(numbers[~gaps]))
        filled = np.where(gaps, median, numbers)
        # The spread of equal numbers can come out as a rounding error instead of zero.
        scale = float(filled.std()) if filled.min() < filled.max() else 0.0
        return cls(values.name, kind, median, float(filled.mean()), scale, bool(gaps.any()))

    @property
    def names(self) -> list[str]:
        """What each number is called."""
        cycles = [f"{self.name}: {cycle}" for cycle in CYCLES.get(self.kind, ())]
        return [self.name, *cycles, *([f"{self.name} is missing"] if self.missing else [])]

    def numbers(self, values: polars.Series) -> NDArray[np.float64]:
        """Return the numbers of every row, shape (rows, len(names))."""
        plain = numbers_of(values, self.kind)
        gaps = np.isnan(plain)
        filled = np.where(gaps, self.median, plain)
        scaled = (filled - self.mean) / self.scale if self.scale else np.zeros_like(filled)
        parts = [np.clip(scaled, -LARGEST_SCALED, LARGEST_SCALED), *self._cycles(values, plain)]
        return np.stack([*parts, gaps] if self.missing else parts, axis=1)

    def _cycles(self, values: polars.Series, plain: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return where each row is in a year and a week, or in a day; (0, 0) where that is missing."""
        if self.kind == "date":
            moment = moments(values)
            turns = [(moment.dt.month() - 1) / 12, (moment.dt.weekday() - 1) / 7]
            angles = [2 * np.pi * turn.cast(polars.Float64).to_numpy() for turn in turns]
        else:
            angles = [2 * np.pi * plain] if self.kind == "time" else []
        return [np.nan_to_num(wave(angle)) for angle in angles for wave in (np.sin, np.cos)]


@dataclass(frozen=True)
class Category:
    """A category: a column of 0 and 1 for each level, or one column of codes for the model to look up."""

    name: str
    levels: tuple[str, ...]  # of training rows, sorted
    missing: bool  # training rows had missing values, so missing is one more level of the columns of 0 and 1
    embed: bool  # codes: 0 is unseen or missing, then the levels

    def __post_init__(self) -> None:
        """Refuse levels that no training rows can have given."""
        if not self.levels or any(a >= b for a, b in zip(self.levels, self.levels[1:], strict=False)):
            raise DataError(f"column {self.name!r} of an encoder needs levels, sorted and each once.")

    @classmethod
    def fit(cls, values: polars.Series, embed: bool, declared: bool) -> Category:
        """Learn from training rows; `declared` categories may look like ids."""
        text = as_text(values)
        levels = sorted(text.drop_nulls().unique())
        if not levels:
            raise all_missing(values.name)
        if not declared and (len(levels) > MOST_LEVELS or (len(levels) == len(text) > 1)):
            raise DataError(
                f"column {values.name!r} is text with {len(levels):,} different values in {len(text):,} training rows, "
                f"such as {levels[0]!r}: it looks like an id or free text.",
                "Name it in `leave_out`, or say in `types` what it is.",
            )
        if len(levels) > (MOST_CODES - 1 if embed else MOST_LEVELS):
            advice = "Name it in `leave_out`" if embed else "Set `categories` to 'embed', or name it in `leave_out`"
            raise DataError(f"category {values.name!r} has {len(levels):,} levels, which are too many.", f"{advice}.")
        return cls(values.name, tuple(levels), text.null_count() > 0, embed)

    @property
    def names(self) -> list[str]:
        """What each column of 0 and 1 is called, or the one of codes."""
        if self.embed:
            return [self.name]
        return [f"{self.name} = {level}" for level in self.levels] + [f"{self.name} is missing"] * self.missing

    @property
    def level_names(self) -> list[str]:
        """What each code stands for."""
        return [f"{self.name} is unseen or missing"] + [f"{self.name} = {level}" for level in self.levels]

    def codes(self, values: polars.Series) -> NDArray[np.int64]:
        """Return the code of every row."""
        found = as_text(values).replace_strict(
            self.levels, range(1, len(self.levels) + 1), default=0, return_dtype=polars.Int64
        )
        return found.to_numpy().astype(np.int64)

    def numbers(self, values: polars.Series) -> NDArray[np.float32]:
        """Return the codes, or 0 and 1 for each level: all 0 for one that training rows did not have."""
        codes = self.codes(values)
        if self.embed:
            return codes[:, np.newaxis].astype(np.float32)
        if self.missing:
            codes[as_text(values).is_null().to_numpy()] = len(self.levels) + 1
        return np.eye(len(self.names) + 1, dtype=np.float32)[codes, 1:]

    def unseen(self, values: polars.Series) -> int:
        """Return how many rows have a level that training rows did not have; missing ones are not counted."""
        return int(((self.codes(values) == 0) & as_text(values).is_not_null().to_numpy()).sum())


Column = Number | Category


def fit_column(values: polars.Series, kind: Kind, embed: bool, declared: bool) -> Column:
    """Learn how a column of this kind becomes numbers."""
    return Category.fit(values, embed, declared) if kind == "category" else Number.fit(values, kind)


def all_missing(name: str) -> DataError:
    """Return the error about a column without any value."""
    return DataError(f"column {name!r} has no value in any training row.", "Name it in `leave_out`.")

"""Encoders of single columns: fitted to the training rows, then applied to every row."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np
import polars
from numpy.typing import NDArray

from efvfl.data.tables import bins, forms
from efvfl.data.tables.recognise import FEW, Reading
from efvfl.data.tables.texts import as_text
from efvfl.data.tables.values import check_readable, moments, numbers_of, unreadable
from efvfl.errors import DataError

MOST_LEVELS = 1_000
MOST_CODES = 2**24  # codes are stored as float32, which is exact up to here
LARGEST_SCALED = 1e6  # so that an outlier cannot become infinite as a float32
CYCLES = {
    "date": ("month sine", "month cosine", "weekday sine", "weekday cosine"),
    "time": ("day sine", "day cosine"),
}


@dataclass(frozen=True)
class Number:
    """A number, a date or a time, standardised; or a boolean as 0 and 1."""

    name: str
    kind: Literal["number", "boolean", "date", "time"]
    median: float  # replaces missing values
    mean: float  # of the training rows, after filling missing values
    scale: float  # standard deviation; 0: all values are equal, and the column becomes zeros
    missing: bool  # training rows had missing values, so another column marks them
    form: str = ""  # how texts were written in training rows; empty: plainly
    low: float = 0.0  # the smallest and the largest value of training rows, to compare later rows with
    high: float = 0.0
    gaps: float = 0.0  # share of training rows without a value
    edges: tuple[float, ...] = ()  # of the bins of the training rows; none: the column is constant or a boolean

    def __post_init__(self) -> None:
        """Check that the statistics are finite, and the form is known."""
        if not forms.is_known(self.form):
            raise DataError(f"there is no form {self.form!r} of column {self.name!r} in an encoder: fit it again.")
        found = (self.median, self.mean, self.scale, self.low, self.high, self.gaps)
        ordered = self.low <= self.high and bins.valid(self.edges)
        if not (all(map(isfinite, found)) and self.scale >= 0 and ordered and 0 <= self.gaps < 1):
            raise DataError(f"expected finite statistics of column {self.name!r} in an encoder: fit it again.")

    @classmethod
    def fit(
        cls,
        values: polars.Series,
        kind: Literal["number", "boolean", "date", "time"],
        form: str = "",
        most_bins: int = bins.MOST_BINS,
    ) -> Number:
        """Return an encoder fitted to training rows, of which a few may be unreadable."""
        check_readable(values, kind, form, FEW)
        numbers = numbers_of(values, kind, form)
        gaps = np.isnan(numbers)
        if gaps.all():
            raise all_missing(values.name)
        seen = (float(numbers[~gaps].min()), float(numbers[~gaps].max()), float(gaps.mean()))
        if kind == "boolean":
            return cls(values.name, kind, 0.0, 0.0, 1.0, bool(gaps.any()), form, *seen)
        median = float(np.median(numbers[~gaps]))
        filled = np.where(gaps, median, numbers)
        # The standard deviation of equal numbers can be a rounding error instead of zero.
        scale = float(filled.std()) if filled.min() < filled.max() else 0.0
        edges = bins.edges_of(numbers[~gaps], most_bins)
        return cls(values.name, kind, median, float(filled.mean()), scale, bool(gaps.any()), form, *seen, edges)

    @property
    def names(self) -> list[str]:
        """The names of the output columns."""
        cycles = [f"{self.name}: {cycle}" for cycle in CYCLES.get(self.kind, ())]
        return [self.name, *cycles, *([f"{self.name} is missing"] if self.missing else [])]

    def numbers(self, values: polars.Series) -> NDArray[np.float64]:
        """Return the encoded rows, shape (rows, len(names))."""
        plain = numbers_of(values, self.kind, self.form)
        gaps = np.isnan(plain)
        filled = np.where(gaps, self.median, plain)
        parts = [self._scaled(filled), *self._cycles(values, plain)]
        return np.stack([*parts, gaps] if self.missing else parts, axis=1)

    @property
    def scaled_edges(self) -> tuple[tuple[float, ...], ...]:
        """The edges of the bins of every output column, in its own unit; those of sines and marks are empty."""
        return (tuple(self._scaled(np.array(self.edges)).tolist()), *((),) * (len(self.names) - 1))

    def _scaled(self, filled: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers in standard deviations from the mean."""
        scaled = (filled - self.mean) / self.scale if self.scale else np.zeros_like(filled)
        return np.clip(scaled, -LARGEST_SCALED, LARGEST_SCALED)

    def unreadable(self, values: polars.Series) -> NDArray[np.int64]:
        """Return the places of values that are there but cannot be read, and count as missing."""
        return unreadable(values, self.kind, self.form)

    def _cycles(self, values: polars.Series, plain: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return sine and cosine of the position in the year and week, or in the day; (0, 0) if missing."""
        if self.kind == "date":
            moment = moments(values, self.form)
            turns = [(moment.dt.month() - 1) / 12, (moment.dt.weekday() - 1) / 7]
            angles = [2 * np.pi * turn.cast(polars.Float64).to_numpy() for turn in turns]
        else:
            angles = [2 * np.pi * plain] if self.kind == "time" else []
        return [np.nan_to_num(wave(angle)) for angle in angles for wave in (np.sin, np.cos)]


@dataclass(frozen=True)
class Category:
    """A category: one column of 0 and 1 per level, or one column of codes for an embedding."""

    name: str
    levels: tuple[str, ...]  # of the training rows, sorted
    missing: bool  # training rows had missing values, so one-hot encoding has a level for them
    embed: bool  # use codes: 0 for unseen or missing, then the levels
    gaps: float = 0.0  # share of training rows without a value

    def __post_init__(self) -> None:
        """Check that there are levels, sorted and unique."""
        if not self.levels or any(a >= b for a, b in zip(self.levels, self.levels[1:], strict=False)):
            raise DataError(f"expected sorted, unique levels of column {self.name!r} in an encoder: fit it again.")
        if not 0 <= self.gaps < 1:
            raise DataError(f"expected a share of missing values of {self.name!r} in an encoder: fit it again.")

    @classmethod
    def fit(cls, values: polars.Series, embed: bool, declared: bool) -> Category:
        """Return an encoder fitted to training rows; `declared` categories may look like ids."""
        text = as_text(values)
        levels = sorted(text.drop_nulls().unique())
        if not levels:
            raise all_missing(values.name)
        if not declared and (len(levels) > MOST_LEVELS or (len(levels) == len(text) > 1)):
            raise DataError(
                f"column {values.name!r} is text with {len(levels):,} different values in {len(text):,} training rows, "
                f"such as {levels[0]!r}: it looks like an id or free text.",
                "Name it in `leave_out`, or set its type in `types`.",
            )
        if len(levels) > (MOST_CODES - 1 if embed else MOST_LEVELS):
            advice = "Name it in `leave_out`" if embed else "Set `categories` to 'embed', or name it in `leave_out`"
            raise DataError(f"category {values.name!r} has too many levels, {len(levels):,}.", f"{advice}.")
        return cls(values.name, tuple(levels), text.null_count() > 0, embed, text.null_count() / len(text))

    @property
    def names(self) -> list[str]:
        """The names of the output columns."""
        if self.embed:
            return [self.name]
        return [f"{self.name} = {level}" for level in self.levels] + [f"{self.name} is missing"] * self.missing

    @property
    def scaled_edges(self) -> tuple[tuple[float, ...], ...]:
        """Categories have no bins."""
        return ((),) * len(self.names)

    @property
    def level_names(self) -> list[str]:
        """The meaning of each code."""
        return [f"{self.name} is unseen or missing"] + [f"{self.name} = {level}" for level in self.levels]

    def codes(self, values: polars.Series) -> NDArray[np.int64]:
        """Return the code of every row."""
        found = as_text(values).replace_strict(
            self.levels, range(1, len(self.levels) + 1), default=0, return_dtype=polars.Int64
        )
        return found.to_numpy().astype(np.int64)

    def numbers(self, values: polars.Series) -> NDArray[np.float32]:
        """Return codes, shape (rows, 1), or one-hot rows, shape (rows, len(names)); unseen levels are all 0."""
        codes = self.codes(values)
        if self.embed:
            return codes[:, np.newaxis].astype(np.float32)
        if self.missing:
            codes[as_text(values).is_null().to_numpy()] = len(self.levels) + 1
        return np.eye(len(self.names) + 1, dtype=np.float32)[codes, 1:]

    def unseen(self, values: polars.Series) -> polars.Series:
        """Return the values of all rows with a level that the training rows did not have, as strings."""
        text = as_text(values).drop_nulls()
        return text.filter(~text.is_in(list(self.levels)))


Column = Number | Category


def fit_column(
    values: polars.Series, reading: Reading, embed: bool, declared: bool, most_bins: int = bins.MOST_BINS
) -> Column:
    """Return an encoder of a column that is read in this way, fitted to training rows."""
    if reading.kind == "category":
        return Category.fit(values, embed, declared)
    return Number.fit(values, reading.kind, reading.form, most_bins)


def all_missing(name: str) -> DataError:
    """Return the error about a column without any value."""
    return DataError(f"column {name!r} has no value in any training row.", "Name it in `leave_out`.")

"""Labels as numbers: class indices in the order of their names, or regression targets. And weights of rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.config.column_types import ColumnType
from efvfl.data.tables.recognise import Reading, reading_of, shown
from efvfl.data.tables.texts import as_text, cells
from efvfl.data.tables.values import TEXTS, numbers_of, unreadable
from efvfl.errors import DataError

TARGETS = ("mse", "huber")  # regression losses; all others are for classes
MOST_CLASSES = 100  # that are numbers: more are a regression target
FAR_TARGETS, NARROW_TARGETS = 10, 0.1  # root mean square and deviation: steps of 0.001 hardly get there
FEW_CLASSES = 20  # whole numbers other than 0, 1, 2, ...: more are a regression target, if no loss says otherwise


@dataclass(frozen=True)
class Labels:
    """The encoding of labels as numbers."""

    names: tuple[str, ...] = ()  # of the classes, by index; empty: labels are already numbers
    form: str | None = None  # how texts that are numbers are written; None: they are not, or are numbers already
    loss: str = ""  # that was asked for, or follows from them
    doubt: str = field(default="", compare=False)  # what the owner should look at

    @classmethod
    def of(cls, values: polars.Series, loss: str, declared: ColumnType | None = None) -> Labels:
        """Return the encoding of these labels; class indices 0, 1, ... and regression targets stay unchanged.

        Numbers may be written as in other columns, such as 1.234,5 or 12 %; `declared` is what `types` says of them.
        A loss that is empty follows from the labels.
        """
        if values.null_count():
            raise DataError(
                f"the label {values.name!r} is missing in {values.null_count():,} of {len(values):,} shared rows: "
                "remove these rows from the table."
            )
        loss = loss or _loss_of(values, declared)
        if loss in TARGETS:
            return replace(cls._of_targets(values, loss, declared), loss=loss)
        return replace(cls._of_classes(values, declared), loss=loss)

    @classmethod
    def _of_targets(cls, values: polars.Series, loss: str, declared: ColumnType | None) -> Labels:
        reading = _number_reading(values, f"loss {loss!r}: expected numbers as the label", declared)
        doubts = [reading.doubt, _scale_doubt(numbers_of(values, "number", reading.form), loss)]
        form = reading.form if values.dtype in TEXTS else None
        return cls(form=form, doubt=" ".join(filter(None, doubts)))

    @classmethod
    def _of_classes(cls, values: polars.Series, declared: ColumnType | None) -> Labels:
        if values.dtype.is_integer() and _are_indices(values):
            return cls()
        encoding = cls._of_numbers(values, declared) or cls._of_texts(values)
        names = encoding.names
        if len(names) < 2:
            raise DataError(f"expected two or more classes as the label {values.name!r}, got {list(names)}.")
        if (values.dtype.is_float() or encoding.form is not None) and len(names) > MOST_CLASSES:
            raise DataError(
                f"the label {values.name!r} has {len(names):,} different numbers, too many for classes: for a "
                "regression target set loss = 'mse' or 'huber'."
            )
        return encoding

    @classmethod
    def _of_texts(cls, values: polars.Series) -> Labels:
        names = as_text(values).unique().drop_nulls().to_list()
        return cls(tuple(sorted(names, key=_order)))

    @classmethod
    def _of_numbers(cls, values: polars.Series, declared: ColumnType | None) -> Labels | None:
        """Return classes that are numbers, but not written as programs do; None if they are anything else.

        They are in the order of these numbers; two spellings of one number are one class with the first name by text.
        """
        if values.dtype not in TEXTS:
            return None
        reading = reading_of(values.cast(polars.String), declared, typed=False)
        if reading.kind != "number" or not reading.form:
            return None
        numbers = numbers_of(values, "number", reading.form)
        if np.isnan(numbers).any():
            return None
        spellings = sorted(zip(numbers.tolist(), cells(values), strict=True), reverse=True)
        return cls(tuple(name for _, name in sorted(dict(spellings).items())), reading.form, reading.doubt)

    def encode(self, values: polars.Series) -> Tensor:
        """Return the encoded labels, shape (rows,): int64 for classes, float32 for regression targets."""
        if self.form is not None:
            numbers = numbers_of(values, "number", self.form)
            if not self.names:
                return torch.from_numpy(numbers.astype(np.float32))
            known = numbers_of(polars.Series(self.names), "number", self.form)
            return torch.from_numpy(np.searchsorted(known, numbers).astype(np.int64))
        if not self.names:
            kind = np.int64 if values.dtype.is_integer() else np.float32
            return torch.from_numpy(values.to_numpy().astype(kind))
        indices = {name: number for number, name in enumerate(self.names)}
        return torch.tensor([indices[name] for name in as_text(values)], dtype=torch.int64)


def _scale_doubt(targets: NDArray[np.float64], loss: str) -> str:
    """Say if targets are on a scale that a model with the usual rate of learning is slow to reach."""
    mean, deviation = float(np.mean(targets)), float(np.std(targets))
    if float(np.hypot(mean, deviation)) <= FAR_TARGETS and (not deviation or deviation >= NARROW_TARGETS):
        return ""
    return (
        f"loss {loss!r} takes numbers as they are, and these have a mean of {mean:.4g} and a standard deviation of "
        f"{deviation:.4g}: subtract and divide, so that they are about 0 and 1, or training may be slow and the model "
        "poor."
    )


def _loss_of(values: polars.Series, declared: ColumnType | None) -> str:
    """Return the loss that labels call for: of two classes, of more, or of numbers.

    Numbers are classes if there are two of them, if they are 0, 1, 2, ..., or if they are whole and few; not if they
    are declared to be numbers.
    """
    numbers = _numbers(values, declared)
    if numbers is None:
        return "binary_cross_entropy" if as_text(values).n_unique() == 2 else "cross_entropy"
    found = numbers.unique().sort()
    if len(found) == 2:
        return "binary_cross_entropy"
    whole = bool((found == found.floor()).all())
    few = len(found) <= (MOST_CLASSES if _are_indices(found) else FEW_CLASSES)
    return "cross_entropy" if whole and few and declared != "number" else "mse"


def _numbers(values: polars.Series, declared: ColumnType | None) -> polars.Series | None:
    """Return labels as numbers; None if they are not numbers, or are declared to be something else."""
    if declared and not declared.startswith("number"):
        return None
    if values.dtype in TEXTS:
        reading = reading_of(values.cast(polars.String), declared, typed=False)
        read = numbers_of(values, "number", reading.form) if reading.kind == "number" else None
        return None if read is None or np.isnan(read).any() else polars.Series(read)
    return values.cast(polars.Float64) if values.dtype.is_numeric() else None


def _are_indices(values: polars.Series) -> bool:
    """Whether these are the numbers 0, 1, 2, ... without a gap."""
    found = values.unique().sort().to_list()
    return found == list(range(len(found)))


def row_weights(values: polars.Series, declared: ColumnType | None = None) -> NDArray[np.float64]:
    """Return the weights of rows that a column gives, each a number of 0 or more."""
    if values.null_count():
        raise DataError(
            f"the weight {values.name!r} is missing in {values.null_count():,} of {len(values):,} rows: fill it, with "
            "0 where a row is to be left out."
        )
    reading = _number_reading(values, "expected numbers as the weight", declared)
    numbers = numbers_of(values, "number", reading.form)
    wrong = ~(numbers >= 0)
    if wrong.any():
        example = values.gather([int(wrong.argmax())])[0]
        raise DataError(f"expected numbers of 0 or more as the weight {values.name!r}, got {example}: correct it.")
    if not numbers.any():
        raise DataError(f"the weight {values.name!r} is zero in all rows, so none would count: correct it.")
    return numbers


def _number_reading(values: polars.Series, expected: str, declared: ColumnType | None) -> Reading:
    """Return how to read a column of which every value must be a number."""
    if not (values.dtype.is_numeric() or values.dtype in TEXTS):
        raise DataError(f"{expected} {values.name!r}, got {values.dtype}.")
    declared = declared if declared and declared.startswith("number") else "number"
    reading = reading_of(values, declared, typed=False)
    wrong = unreadable(values, "number", reading.form)
    if not len(wrong):  # texts such as NA can be read, as nothing
        wrong = np.flatnonzero(np.isnan(numbers_of(values, "number", reading.form)))
    if len(wrong):
        examples = ", ".join(shown(value) for value in values.gather(wrong[:3]))
        raise DataError(f"{expected} {values.name!r}, got {len(wrong):,} other values, such as {examples}.")
    return reading


def _order(name: str) -> tuple[bool, float, str]:
    """Return a sort key: numbers by value, then strings in alphabetical order."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name

"""Encoding of tables as numbers: fitted to the training rows, saved as JSON, and applied to every later row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import polars
from numpy.typing import NDArray

from efvfl.config.column_types import ColumnType
from efvfl.config.run_file import OwnData
from efvfl.config.run_file import read as read_table
from efvfl.core import ranges
from efvfl.data.tables.bins import MOST_BINS
from efvfl.data.tables.columns import Category, Column, Number, fit_column
from efvfl.data.tables.recognise import reading_of, shown
from efvfl.data.tables.table import column
from efvfl.data.tables.unreadable import Unreadable, unreadable_in
from efvfl.errors import ConfigError, DataError, nearest

VERSION = 4


@dataclass(frozen=True)
class TableSettings:
    """Which columns are used, and with which types."""

    columns: tuple[str, ...] = ()  # empty: all others
    leave_out: tuple[str, ...] = ()
    types: Mapping[str, ColumnType] = field(default_factory=dict)  # overrides the types of the table
    categories: Literal["onehot", "embed"] = "onehot"
    id: str = ""  # never used as a feature, like the label
    label: str = ""
    weight: str = ""  # of rows in the loss; no feature either
    missing: tuple[str, ...] | None = None  # texts that mean a missing value; None: the usual ones, in a CSV
    bins: int = MOST_BINS  # of a number, for the model that efvfl makes; 0: none
    typed: bool = True  # the table has types of its own, unlike a CSV: digits in a text are not meant as a number

    def __post_init__(self) -> None:
        """Check the types and numbers, and that no column is both used and left out."""
        ranges.check("data.bins", self.bins)
        for name, kind in self.types.items():
            if kind not in get_args(ColumnType):
                raise ConfigError(
                    f"types: unknown type {kind!r} of {name!r}. {nearest(str(kind), get_args(ColumnType))}"
                )
        for name in self.columns:
            if name in (*self._roles, *self.leave_out):
                raise ConfigError(
                    f"columns: {name!r} is also the id, the label, the weight or in `leave_out`. Remove one of them."
                )
        if self.weight and not self.label:
            raise ConfigError(f"weight = {self.weight!r} needs `label`: weights belong to the labels.")

    @classmethod
    def of(cls, data: OwnData) -> TableSettings:
        """Return the settings of a party's data."""
        chosen = (data.columns, data.leave_out, data.types, data.categories, data.id, data.label, data.weight)
        return cls(*chosen, data.missing, data.bins)

    @property
    def _roles(self) -> tuple[str, ...]:
        """The columns that are no features; empty where there is none."""
        return self.id, self.label, self.weight

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns to read as strings, to preserve leading zeros: the id and the declared categories."""
        categories = (name for name, kind in self.types.items() if kind == "category")
        return tuple(dict.fromkeys(name for name in (self.id, *categories) if name))

    def chosen(self, frame: polars.DataFrame) -> list[str]:
        """Return the names of the used columns, in order."""
        for setting, asked in (("columns", self.columns), ("leave_out", self.leave_out), ("types", self.types)):
            for name in asked:
                if name not in frame.columns:
                    raise ConfigError(f"{setting}: the table has no column {name!r}. {nearest(name, frame.columns)}")
        not_used = {*self._roles, *self.leave_out}
        return list(self.columns) or [name for name in frame.columns if name not in not_used]


@dataclass(frozen=True)
class Layout:
    """The layout of encoded rows."""

    numbers: int  # number of leading columns with numbers
    codes: tuple[int, ...]  # number of codes, including 0, of each embedded category; their columns follow
    edges: tuple[tuple[float, ...], ...] = ()  # of the bins of every number, as it is encoded; empty: it has none

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.numbers + len(self.codes)


@dataclass(frozen=True)
class Encoder:
    """The encoders of all used columns of a table.

    >>> frame = polars.DataFrame({"age": [20.0, 40.0], "city": ["Bonn", "Kiel"]})
    >>> encoder = Encoder.fit(frame, TableSettings(types={"city": "category"}))
    >>> encoder.names, encoder.transform(frame).tolist()
    (['age', 'city = Bonn', 'city = Kiel'], [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    """

    columns: tuple[Column, ...]
    missing: tuple[str, ...] | None = None  # texts that mean a missing value, as in the settings
    doubts: tuple[str, ...] = field(default=(), compare=False)  # what was assumed and may be wrong; not saved

    @classmethod
    def fit(cls, frame: polars.DataFrame, settings: TableSettings) -> Encoder:
        """Return an encoder fitted to training rows."""
        if not frame.height:
            raise DataError("expected training rows to fit an encoder to, got none.")
        names = settings.chosen(frame)
        if not names:
            raise DataError("expected a column to train on, got only an id, a label or columns that are left out.")
        fitted: list[Column] = []
        doubts: list[str] = []
        for name in names:
            values, declared = frame.get_column(name), settings.types.get(name)
            reading = reading_of(values, declared, settings.typed)
            fitted.append(
                fit_column(values, reading, settings.categories == "embed", declared is not None, settings.bins)
            )
            doubts += [f"column {shown(name)}: {reading.doubt}"] if reading.doubt else []
        return cls(tuple(fitted), settings.missing, tuple(doubts))

    def only(self, names: Collection[str]) -> Encoder:
        """Return an encoder of those of its columns that have one of these names."""
        return replace(self, columns=tuple(c for c in self.columns if c.name in names))

    def extended(self, frame: polars.DataFrame, settings: TableSettings) -> Encoder:
        """Return an encoder of all columns in use: known ones stay as they are, the others are fitted to these rows.

        What was learnt of the known columns (scales, levels) keeps its meaning for a model that was trained with it.
        """
        names = settings.chosen(frame)
        known = self.only(names)
        new = tuple(name for name in names if name not in {c.name for c in known.columns})
        if not new:
            return known
        fitted = Encoder.fit(frame, replace(settings, columns=new))
        return replace(known, columns=known.columns + fitted.columns, doubts=fitted.doubts)

    @property
    def layout(self) -> Layout:
        """The layout of the rows that `transform` returns."""
        plain, coded = self._ordered()
        edges = tuple(edges for c in plain for edges in c.scaled_edges)
        return Layout(len(edges), tuple(len(c.levels) + 1 for c in coded), edges)

    @property
    def names(self) -> list[str]:
        """The names of the columns that `transform` returns."""
        plain, coded = self._ordered()
        return [name for c in (*plain, *coded) for name in c.names]

    @property
    def places(self) -> dict[str, range]:
        """Which columns of what `transform` returns every column of the table became, in the table's order."""
        plain, coded = self._ordered()
        found, place = {}, 0
        for c in (*plain, *coded):
            found[c.name] = range(place, place + len(c.names))
            place += len(c.names)
        return {c.name: found[c.name] for c in self.columns}

    @property
    def texts(self) -> tuple[str, ...]:
        """The categories, which are read as strings from later tables."""
        return tuple(c.name for c in self.columns if isinstance(c, Category))

    def transform(self, frame: polars.DataFrame) -> NDArray[np.float32]:
        """Return the encoded rows, shape (rows, layout.width), all finite."""
        encoded, places = np.empty((frame.height, self.layout.width), dtype=np.float32), self.places
        for c in self.columns:
            span = places[c.name]
            encoded[:, span.start : span.stop] = c.numbers(column(frame, c.name, "the table"))
        return encoded

    def unreadable(self, frame: polars.DataFrame) -> list[Unreadable]:
        """Return the values that are there but cannot be read, by column, without columns that have none."""
        checked = (unreadable_in(c, column(frame, c.name, "the table")) for c in self.columns)
        return [found for found in checked if found]

    def to_json(self) -> str:
        """Return the encoder as JSON; floats are restored exactly."""
        tables = [{"type": type(c).__name__.lower(), **asdict(c)} for c in self.columns]
        whole = {"version": VERSION, "columns": tables, "missing": self.missing}
        whole |= {"digest": _digest(whole)}
        return json.dumps(whole, ensure_ascii=False, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Encoder:
        """Return the encoder that `to_json` wrote, after checking it."""
        try:
            table = json.loads(text)
            if not isinstance(table, dict) or table.get("version") != VERSION:
                raise DataError("this is not an encoder of this version of efvfl: fit it again.")
            columns = tuple(_column(entry) for entry in table["columns"])
            missing = read_table(_Markers, {"missing": table["missing"]} if table["missing"] is not None else {}, "")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"an encoder cannot be read: {error}. Fit it again from the training rows.") from error
        if not columns or len({c.name for c in columns}) < len(columns):
            raise DataError("expected unique columns in an encoder: fit it again from the training rows.")
        if table.pop("digest", None) != _digest(table):
            raise DataError("an encoder differs from its digest: the file was changed after it was written.")
        return cls(columns, missing.missing)

    def _ordered(self) -> tuple[list[Column], list[Category]]:
        """Return the columns that become numbers, and those that become codes."""
        coded = [c for c in self.columns if isinstance(c, Category) and c.embed]
        return [c for c in self.columns if not (isinstance(c, Category) and c.embed)], coded


@dataclass(frozen=True)
class _Markers:
    missing: tuple[str, ...] | None = None


def _digest(whole: dict[str, Any]) -> str:
    """Return a digest of an encoder: a disk may change a digit without anybody noticing."""
    return hashlib.blake2b(json.dumps(whole, sort_keys=True).encode(), digest_size=16).hexdigest()


def _column(entry: dict[str, Any]) -> Column:
    kinds: dict[str, type[Column]] = {"number": Number, "category": Category}
    table = dict(entry)
    kind = table.pop("type")
    if kind not in kinds:
        raise ConfigError(f"there is no column type {kind!r}. {nearest(str(kind), kinds)}")
    return read_table(kinds[kind], table, "column")

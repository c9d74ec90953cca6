"""Which column of a table names the rows, and which one is to be predicted: a guess for its owner to confirm."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import polars

from efvfl.data.tables.recognise import reading_of
from efvfl.data.tables.table import column, has_types, read
from efvfl.data.tables.values import TEXTS

# Words in the names of columns, the most telling first; a name is cut at capitals, digits and signs.
ID_WORDS = ("id", "identifier", "customer", "client", "person", "patient", "account", "member", "user", "key", "number")
LABEL_WORDS = ("label", "target", "y", "class", "outcome", "default", "churn", "fraud", "response", "result")
MOST_CLASSES = 20  # a whole number with more values is a target, not a class


@dataclass(frozen=True)
class TableRoles:
    """What was found; empty if nothing fits."""

    columns: tuple[str, ...]
    id: str
    label: str


def guess_roles(path: Path) -> TableRoles:
    """Return the likeliest column of ids and the likeliest label of a table."""
    frame = read(path)
    ids = [name for name in frame.columns if _names_rows(frame[name])]
    id = _likeliest(ids, ID_WORDS, ids[0] if ids else "")
    labels = [name for name in frame.columns if name != id and frame[name].drop_nulls().n_unique() <= MOST_CLASSES]
    return TableRoles(tuple(frame.columns), id, _likeliest(labels, LABEL_WORDS, ""))


def loss_for(path: Path, label: str) -> str:
    """Return the loss that suits a label: two classes, several, or numbers."""
    frame = read(path, label=label)
    values = column(frame, label, str(path)).drop_nulls()
    kind, distinct = reading_of(values, None, has_types(path)).kind, values.n_unique()
    if distinct == 2:
        return "binary_cross_entropy"
    whole = values.dtype.is_integer() or values.dtype in TEXTS
    return "cross_entropy" if kind != "number" or (whole and distinct <= MOST_CLASSES) else "mse"


def _names_rows(values: polars.Series) -> bool:
    """Whether every row has a value of its own, and it is a name or a whole number."""
    kind = values.dtype in TEXTS or values.dtype.is_integer()
    return kind and values.null_count() == 0 and values.n_unique() == len(values)


def _likeliest(names: list[str], telling: tuple[str, ...], otherwise: str) -> str:
    for word in telling:
        for name in names:
            if word in re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()):
                return name
    return otherwise

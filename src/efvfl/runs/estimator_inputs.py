"""What an estimator's `fit` takes beside the columns: labels, weights of rows, and how columns are read."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from efvfl.config.column_types import ColumnType
from efvfl.core.targets import scaled
from efvfl.errors import ConfigError, describe, nearest
from efvfl.util.extras import optional

with optional("sklearn", "an estimator"):
    import polars
    from sklearn.utils.validation import assert_all_finite, check_consistent_length, column_or_1d

    from efvfl.data.tables.encode import TableSettings
    from efvfl.data.tables.splits import split_of

Columns = Mapping[str, Sequence[str | int]]


def target_of(y: Any, frame: polars.DataFrame, name: str, dtype: Any = None) -> NDArray[Any]:
    """Return the labels as an array of shape (rows,), after checking them."""
    if y is None:
        raise ConfigError(f"{name} requires y to be passed, but the target y is None.")
    target: NDArray[Any] = column_or_1d(y, dtype=dtype, warn=True)
    assert_all_finite(target, input_name="y")
    check_consistent_length(frame, target)
    return target


def counting_rows(
    frame: polars.DataFrame, target: NDArray[Any], sample_weight: Any
) -> tuple[polars.DataFrame, NDArray[Any], NDArray[np.float64] | None]:
    """Return the rows whose weight is not 0, their labels and their weights; None: all count alike."""
    if sample_weight is None:
        return frame, target, None
    try:
        given = np.array(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"sample_weight: expected a number for each row, got others: {error}") from error
    scaled(torch.from_numpy(given), len(target), "sample weights")  # refuses what is no weight
    counting = given > 0
    if counting.sum() < 2:
        raise ConfigError(
            "sample_weight: expected at least 2 rows with a weight above zero, got 1: weigh more of them."
        )
    kept = torch.from_numpy(given[counting])
    weights = scaled(kept, len(kept), "sample weights")
    rows = frame.filter(polars.Series(counting))
    return rows, target[counting], None if weights is None else weights.numpy()


def parties_of(columns: Columns | None, names: list[str]) -> dict[str, list[str]]:
    """Return the names of every party's columns."""
    if columns is None:
        middle = (len(names) + 1) // 2
        return {f"party{k}": half for k, half in enumerate((names[:middle], names[middle:]), start=1) if half}
    chosen = {party: [_column(key, names, repr(party)) for key in keys] for party, keys in columns.items()}
    for party, keys in chosen.items():
        if not keys or len(set(keys)) < len(keys):
            raise ConfigError(f"expected one or more different columns of {party!r}, got {keys}.")
    return chosen


def table_settings(
    parties: Mapping[str, list[str]],
    names: list[str],
    types: Mapping[str | int, ColumnType] | None,
    missing: Sequence[str] | None,
) -> dict[str, TableSettings]:
    """Return how every party's columns are read: as `types` say, with these texts for missing values."""
    declared = {_column(key, names, "types"): kind for key, kind in (types or {}).items()}
    used = {name for chosen in parties.values() for name in chosen}
    for name in declared:
        if name not in used:
            raise ConfigError(f"types: {name!r} is no party's column, so it would have no effect. Leave it out.")
    return {
        party: TableSettings(types={n: declared[n] for n in chosen if n in declared}, missing=markers(missing))
        for party, chosen in parties.items()
    }


def markers(missing: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the texts that mean a missing value; None: the usual ones."""
    if isinstance(missing, str) or not all(isinstance(text, str) for text in missing or ()):
        raise ConfigError(f"missing: expected a list of texts, such as ['none', '-999'], got {describe(missing)}.")
    return None if missing is None else tuple(missing)


def _column(key: str | int, names: list[str], owner: str) -> str:
    if isinstance(key, str):
        if key not in names:
            raise ConfigError(f"there is no column {key!r} for {owner}. {nearest(key, names)}")
        return key
    if not 0 <= key < len(names):
        raise ConfigError(f"expected column indices of {owner} from 0 to {len(names) - 1}, got {key}.")
    return names[key]


def split_rows(rows: int, seed: int, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the training and the validation rows, cut and ordered as by a run file whose ids are the row numbers."""
    ids = sorted(map(str, range(rows)), key=str.encode)
    split = split_of(ids, seed, (share, 0.0))
    if share and not len(split["validation"]):
        raise ConfigError(f"validation_fraction = {share:g} of {rows} rows is less than one row: increase it.")
    numbers = np.asarray(ids, dtype=np.int64)
    return numbers[split["train"]], numbers[split["validation"]]


def given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that are not left to the defaults."""
    return {name: value for name, value in parameters.items() if value is not None}


def index(value: Any) -> int | None:
    """Return a whole number of Python's or numpy's; None stays."""
    return None if value is None else operator.index(value)

"""What people give to `federate` and `predict`: made into tensors by party, or refused with the right call.

Tables may be tensors, numpy arrays, frames of pandas or polars, or lists. A tensor stays as it is. Of the others, every
float but float64 becomes float32, and so do whole numbers, unless the local model takes them as they are. A `Source`
stands for a table whose rows are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from efvfl.core.agreement import Agreement
from efvfl.core.methods import Method
from efvfl.core.source_columns import OwnColumns, SourceColumns, is_source
from efvfl.core.targets import scaled
from efvfl.errors import ConfigError, describe, nearest, whole_number
from efvfl.training import placement
from efvfl.training.measure import Split
from efvfl.training.missing_rows import Masks, masks_of, set_aside, with_left_out
from efvfl.training.options import Setup, Training
from efvfl.training.several_inputs import SeveralInputs, packed
from efvfl.training.whole_numbers import as_taken, converted

Columns = Mapping[str, Any] | Sequence[Any]  # a table of numbers for each party
Models = Sequence[nn.Module] | Mapping[str, nn.Module]


def tensor(values: Any, what: str) -> Tensor:
    """Return a table of numbers as a tensor."""
    made: Tensor = values if isinstance(values, Tensor) else torch.from_numpy(_array(values, what))
    if not made.dim():
        raise ConfigError(f"the {what}: expected a row for each sample, got the one number {made.item()}.")
    return made


def _array(values: Any, what: str) -> np.ndarray[Any, Any]:
    """Return numbers as an array that torch can share: native, contiguous and writeable."""
    try:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the {what} cannot be read as a table of numbers: {error}") from error
    kinds = {"f": np.float64 if array.dtype.itemsize >= 8 else np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}
    if array.dtype.kind not in kinds:
        raise ConfigError(
            f"the {what}: expected numbers, got dtype {array.dtype}: encode texts, dates and gaps first. "
            "VerticalClassifier, VerticalRegressor and run files with tables do that for you."
        )
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ConfigError(f"the {what}: expected numbers of up to 63 bits, got {array.max()}: hash or encode them.")
    return np.require(array, kinds[array.dtype.kind], ["C", "W"])


def columns(features: Columns) -> dict[str, OwnColumns]:
    """Return every party's columns by its name; without names they are party1, party2, ..."""
    tables = features if isinstance(features, Mapping) else _numbered(features)
    if not tables:
        raise ConfigError(
            "expected at least one party, got none: give the columns of each, as [x1, x2] or {'bank': x1, 'telco': x2}."
        )
    for name in tables:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"expected a text as the name of a party, got {describe(name)}.")
    return {name: _numbers(table, f"columns of {name!r}") for name, table in tables.items()}


def _numbered(features: Any, what: str = "features") -> dict[str, Any]:
    one_table = isinstance(features, Tensor | np.ndarray) or hasattr(features, "to_numpy") or is_source(features)
    if one_table or isinstance(features, str) or not isinstance(features, Iterable):
        raise ConfigError(
            f"{what}: expected a table for each party, got {describe(features)}: give a list [x1, x2], or "
            "{'bank': x1, 'telco': x2}; of one party [x]."
        )
    return {f"party{k}": x for k, x in enumerate(features, start=1)}


def _numbers(table: Any, what: str, dtype: torch.dtype | None = None) -> OwnColumns:
    """Return columns, converted to a dtype if there is one and they are neither a tensor nor a source."""
    if is_source(table):
        return SourceColumns(table, what)
    made = tensor(table, what)
    return made if dtype is None or isinstance(table, Tensor) else converted(made, dtype, what)


def targets(labels: Any, what: str = "labels") -> Tensor:
    """Return labels: whole numbers as int64, all others as they are."""
    made = tensor(labels, what)
    whole_numbers = not (made.is_floating_point() or made.is_complex() or made.dtype == torch.bool)
    return made.to(torch.int64) if whole_numbers else made


def row_weights(weights: Any, rows: int, what: str = "weights") -> Tensor | None:
    """Return the weights of rows, scaled to a mean of 1; None: all count alike."""
    return None if weights is None else scaled(tensor(weights, what), rows, what)


def training_rows(
    features: Columns, labels: Any, training: Training, models: Models, device: placement.Devices = "cpu"
) -> tuple[list[str], Split, list[nn.Module]]:
    """Return the parties' names, the rows to train on and the local models on their devices."""
    known = list(features) if isinstance(features, Mapping) else [f"party{k + 1}" for k in range(_length(features))]
    features, layouts = packed(features, known, tensor)
    named, target = columns(features), targets(labels)
    places = placement.of_parties(device, list(named)).values()
    found = modules(models, list(named))
    pairs = zip(found, layouts or [None] * len(found), strict=True)
    wrapped = [SeveralInputs(model, layout) if layout else model for model, layout in pairs]
    local = [placement.place(model, where) for model, where in zip(wrapped, places, strict=True)]
    tables = features.values() if isinstance(features, Mapping) else features
    for (name, x), table, model in zip(named.items(), tables, local, strict=True):
        if isinstance(x, Tensor) and not isinstance(table, Tensor) and len(x):
            named[name] = as_taken(x, model, f"columns of {name!r}")
    if not len(target):
        raise ConfigError("expected at least one label, got none.")
    _check_lengths(named, len(target), "training")
    weights = row_weights(training.weights, len(target))
    named, present = set_aside(named, masks_of(training.present, list(named), len(target)))
    return list(named), Split(list(named.values()), target, weights, present, layouts), local


def _length(features: object) -> int:
    return len(features) if isinstance(features, Sequence) else 0


def held_out(pair: Any, names: list[str], train: Split, what: str) -> Split | None:
    """Return rows that are not trained on, which must be like those that are; None: there are none."""
    if pair is None:
        return None
    weighted = isinstance(pair, tuple) and len(pair) == 3  # a list of three may be the features alone
    if not weighted and (not isinstance(pair, tuple | list) or len(pair) != 2):
        raise ConfigError(f"expected {what}=(features, labels), got {describe(pair)}. Weights of rows may be third.")
    target = targets(pair[1], f"{what} labels")
    if not len(target):
        return None
    given, _ = packed(pair[0], names, tensor, train.layouts)
    named = rows_of(given, names, train.features, what)
    _check_lengths(named, len(target), what)
    if target.shape[1:] != train.labels.shape[1:] or target.dtype != train.labels.dtype:
        raise ConfigError(
            f"the {what} labels are {target.dtype} of shape {tuple(target.shape)}, but those of training are "
            f"{train.labels.dtype} of shape {tuple(train.labels.shape)}: both must be of one kind."
        )
    weights = row_weights(pair[2] if weighted else None, len(target), f"{what} weights")
    found, present = _set_aside(named, {}, what)
    return Split(found, target, weights, present)


def held_out_splits(pairs: Mapping[str, Any], names: list[str], train: Split) -> dict[str, Split]:
    """Return the splits that are not trained on, of those that are given."""
    found = {name: held_out(pair, names, train, name) for name, pair in pairs.items()}
    return {name: split for name, split in found.items() if split is not None}


def _check_lengths(named: Mapping[str, OwnColumns], rows: int, what: str) -> None:
    for name, x in named.items():
        if len(x) != rows:
            raise ConfigError(f"{name!r} holds {len(x):,} {what} rows, but there are {rows:,} labels: align first.")


def rows_of(features: Columns, names: list[str], like: Sequence[OwnColumns], what: str) -> dict[str, OwnColumns]:
    """Return further rows of these parties, whose columns must be `like` those of training (unknown if empty)."""
    tables = features if isinstance(features, Mapping) else _numbered(features, f"{what} features")
    if isinstance(features, Mapping) and set(tables) != set(names):
        raise ConfigError(f"the {what} rows: expected the parties {names}, got {list(tables)}.")
    if len(tables) != len(names):
        raise ConfigError(f"the {what} rows: expected {len(names)} parties, {names}, got {len(tables)}.")
    found = {}
    ordered = [tables[name] for name in names] if isinstance(features, Mapping) else list(tables.values())
    for place, (name, table) in enumerate(zip(names, ordered, strict=True)):
        expected = like[place] if like else None
        found[name] = x = _numbers(table, f"{what} columns of {name!r}", None if expected is None else expected.dtype)
        if expected is not None and (x.shape[1:] != expected.shape[1:] or x.dtype != expected.dtype):
            raise ConfigError(
                f"the {what} columns of {name!r}: expected {expected.dtype} of shape (rows, "
                f"{', '.join(map(str, expected.shape[1:]))}), as in training, got {x.dtype} of {tuple(x.shape)}."
            )
    return found


def new_rows(
    features: Columns, names: list[str], train: Split | None, given: Masks | None = None
) -> tuple[list[OwnColumns], Tensor | None]:
    """Return rows to predict, like those of training if they are known, and who has which: None: all have all.

    A party has no row if it is left out of the features. `given` are masks, or the names of those who have all rows.
    """
    like = train.features if train else []
    features, _ = packed(features, names, tensor, train.layouts if train else None)
    tables, left_out = with_left_out(features, names, like)
    found = rows_of(tables, names, like, "new")
    counts = {name: len(x) for name, x in found.items()}
    if len(set(counts.values())) > 1:
        raise ConfigError(f"new rows: expected the same rows of all parties, in one order, got {counts}.")
    if not all(counts.values()):
        raise ConfigError("expected at least one row to predict, got none.")
    return _set_aside(found, masks_of(given, names, counts[names[0]]) | left_out, "new")


def _set_aside(
    named: dict[str, OwnColumns], masks: Mapping[str, Tensor], what: str
) -> tuple[list[OwnColumns], Tensor | None]:
    """Return columns without gaps but for rows that are missing, which are zero, and who has which."""
    found, present = set_aside(named, masks)
    for name, x in found.items():
        check_finite(x, name, f" in the {what} rows")
    return list(found.values()), present


def check_finite(x: OwnColumns, name: str, where: str = "") -> None:
    """Refuse columns with gaps; what a source returns is looked at when it is read."""
    if isinstance(x, Tensor) and x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise ConfigError(f"the columns of {name!r}{where} hold NaN or infinity: fill or drop such rows first.")


def modules(models: Any, names: list[str]) -> list[nn.Module]:
    """Return the local models in the parties' order."""
    if isinstance(models, Mapping | nn.ModuleDict):
        if set(models) != set(names):
            raise ConfigError(f"expected models of {names}, got those of {list(models)}.")
        models = [models[name] for name in names]
    single = isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList)
    if single or not isinstance(models, Iterable):
        raise ConfigError(f"expected a list of models, one for each of {names}, got {describe(models)}.")
    found = list(models)
    if len(found) != len(names):
        raise ConfigError(f"expected {len(names)} local models, one for each party, got {len(found)}.")
    for name, model in zip(names, found, strict=True):
        check_module(model, f"the local model of {name!r}")
    return found


def check_module(module: object, what: str) -> None:
    """Refuse what torch cannot train."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"expected a torch module as {what}, such as nn.Linear(8, 2), got {describe(module)}.")


CALLS: dict[str, tuple[type, str]] = {
    "method": (Method, "method=svfl(), method=cvfl(TopK(0.1)) or method=efvfl(TopK(0.1))"),
    "agreement": (Agreement, "agreement=Agreement(SharedLabels())"),
    "training": (Training, "training=Training(Optimizer('Adam', {'lr': 0.01}), batch_size=128)"),
    "setup": (Setup, "setup=Setup(combine='sum')"),
}


def check_settings(**settings: object) -> None:
    """Refuse an argument that is an instance of another class; None is the default."""
    for name, value in settings.items():
        kind, call = CALLS[name]
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name}: got {describe(value)}. Write {call}.")


def seeds(seed: object, private: object, names: list[str]) -> dict[str, int]:
    """Return the seed of every party, and of the server under ''."""
    everyones = whole_number("seed", seed)
    if not isinstance(private, Mapping | None):
        raise ConfigError(f"private_seeds: expected a dict, such as {{'{names[0]}': 3}}, got {describe(private)}.")
    for name in private or {}:
        if name not in ("", *names):
            raise ConfigError(
                f"private_seeds has {name!r}, which is not a party (nor '', the server). {nearest(str(name), names)}"
            )
    own = {name: whole_number(f"private_seeds[{name!r}]", value) for name, value in (private or {}).items()}
    return {name: own.get(name, everyones) for name in ("", *names)}

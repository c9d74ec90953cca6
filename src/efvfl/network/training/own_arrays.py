"""What one participant holds of arrays: .npz files, one for all or one of its own, or a built-in data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from efvfl.config.run_file import RunConfig
from efvfl.core.presence import RowPresence
from efvfl.core.source_columns import OwnColumns
from efvfl.data.base import cut_rows
from efvfl.data.npz import classes_of, own_columns, read
from efvfl.errors import ConfigError, nearest
from efvfl.network.training.holding import ParticipantData, no_data
from efvfl.runs.build import load_data
from efvfl.training.missing_rows import present_rows


def from_own_file(config: RunConfig, folder: Path, name: str, party: str) -> ParticipantData:
    """Return what a party holds, or the server (''), where each has a file of its own."""
    names = [p.name for p in config.party]
    own = config.of(party).data
    if party and own is None:
        raise no_data(config, party, "path = ...")
    columns, labels, ids, rows = None, None, [], 0
    if own is not None:
        found = read(folder / own.path)
        columns, ids, rows = own_columns(found, folder / own.path), found.ids, found.rows
        labels = found.labels if config.agreement.labels == "shared" else None
        if labels is None and name and config.agreement.labels == "shared":
            raise ConfigError(f"labels are shared, so {own.path} of {name!r} needs them as 'y'.")
    if not name:
        if not config.data.path:
            raise ConfigError("data.path is missing: the .npz file with the labels `y`.")
        found = read(folder / config.data.path)
        if found.labels is None or (own is not None and found.ids != ids):
            raise ConfigError(f"{config.data.path} needs labels 'y', and the ids of the label holder's own columns.")
        labels, ids, rows = found.labels, found.ids, found.rows
    ids = ids or [str(i) for i in range(rows)]
    parts = {s: p for s, p in cut_rows(rows, (config.data.validation, config.data.test), config.seed).items() if len(p)}
    has = {n: mask for n, mask in found.has.items() if n in names}  # of others, from the own file
    has |= {} if columns is None else {party: present_rows(columns)}
    masks = {n: has.get(n, torch.ones(rows, dtype=torch.bool)) for n in names}
    whole = ParticipantData(
        names,
        {} if columns is None else {s: columns[part] for s, part in parts.items()},
        {} if labels is None else {s: labels[part] for s, part in parts.items()},
        {s: [ids[i] for i in part.tolist()] for s, part in parts.items()},
        0 if labels is None else classes_of(labels),
    )
    presence = {s: RowPresence({n: mask[part] for n, mask in masks.items()}) for s, part in parts.items()}
    data = _held(whole, presence, config, name)
    if own is not None and own.new:
        later = read(folder / own.new)
        data.columns["new"] = own_columns(later, folder / own.new)
        data.ids["new"] = later.ids or [str(i) for i in range(later.rows)]
    return data


def from_data_set(config: RunConfig, folder: Path, name: str, party: str) -> ParticipantData:
    """Return what a party, or the server (''), takes of a data set that all have: for trying out."""
    data = load_data(config, folder)
    if data.sources:
        raise ConfigError(
            "augmentation moves pixels between parties, so it exists in one process only: set data.augment = false."
        )
    if party and party not in data.names:
        raise ConfigError(f"{party!r} is not a party of this data. {nearest(party, data.names)}")
    splits = {s: part for s in ("train", "validation", "test") if (part := getattr(data, s)) is not None}
    place = data.names.index(party) if party else None
    columns: dict[str, OwnColumns] = {}
    if place is not None:
        columns = {s: part.features[place] for s, part in splits.items()}
    labels = {s: part.labels for s, part in splits.items()}
    ids = data.ids or {s: [f"{s}:{i}" for i in range(len(part.labels))] for s, part in splits.items()}
    known = labels if not name or config.agreement.labels == "shared" else {}
    whole = ParticipantData(data.names, columns, known, {s: ids[s] for s in splits}, data.classes if known else 0)
    named = {s: dict(zip(data.names, part.features, strict=True)) for s, part in splits.items()}
    presence = {s: RowPresence({n: present_rows(x) for n, x in of.items()}) for s, of in named.items()}
    return _held(whole, presence, config, name)


def _held(whole: ParticipantData, presence: dict[str, RowPresence], config: RunConfig, name: str) -> ParticipantData:
    """Return what a participant holds of rows that some parties lack, and what it knows of the others'."""
    here = config.label_holder
    if not any(known.missing for known in presence.values()):
        return whole
    if here and not all(bool(known.masks[here].all()) for known in presence.values()):
        raise ConfigError(
            f"the columns of {here!r}: expected no rows of NaN at a label holder over a network, got some: fill them, "
            "or leave these rows out at all."
        )
    if not name:
        return replace(whole, presence=presence)
    own = {s: known.masks[name] for s, known in presence.items()}
    private = config.agreement.labels == "private"
    return replace(
        whole,
        columns={s: x[own[s]] for s, x in whole.columns.items()},
        ids={s: [i for i, has in zip(ids, own[s].tolist(), strict=True) if has] for s, ids in whole.ids.items()},
        presence={s: RowPresence({name: mask}) for s, mask in own.items()} if private else presence,
    )

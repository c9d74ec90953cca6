"""What one participant holds of the rows: columns, labels and ids, from arrays or from tables."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from efvfl.config.run_file import OwnData, RunConfig
from efvfl.core.targets import Targets
from efvfl.data.base import cut_rows
from efvfl.data.npz import classes_of, own_columns, read
from efvfl.data.participation import Participation
from efvfl.data.tables import drift
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.data.tables.labels import Labels
from efvfl.data.tables.load import LABELS, Table, cut_ids, label_settings, open_new
from efvfl.errors import ConfigError, DataError, nearest
from efvfl.network import handshake
from efvfl.network.align.aligned_rows import SPLITS
from efvfl.network.align.alignments import Alignments
from efvfl.network.training import beginning
from efvfl.network.training.beginning import Beginning
from efvfl.runs.build import has_tables, load_data
from efvfl.runs.run_folder import save_columns
from efvfl.runs.trained import TrainedRun, read_encoder
from efvfl.util.files import write_atomically

log = logging.getLogger("efvfl")

ENCODER = "encoder.json"  # in a participant's folder


@dataclass(frozen=True)
class ParticipantData:
    """What one participant holds, by split: 'train', 'validation', 'test', and 'new' for rows without labels."""

    names: list[str]  # of all parties
    columns: dict[str, Tensor]  # empty at a server that has none
    labels: dict[str, Tensor]  # empty at a party with private labels
    ids: dict[str, list[str]]
    classes: int  # how many there are; 1 for targets that are not classes, 0 where nothing is known of them
    encoder: Encoder | None = None  # tables: how the columns became numbers
    class_names: tuple[str, ...] = ()  # where labels were texts
    loss: str = ""  # of tables with labels: what was asked for, or follows from them
    participation: dict[str, Participation] = field(default_factory=dict)  # of the rows of this participant's tables
    weights: dict[str, Tensor | None] = field(default_factory=dict)  # of rows in the loss, beside labels
    spelling: dict[str, str] = field(default_factory=dict)  # at the server: ids as its table writes them, if otherwise
    began: Beginning = field(default_factory=Beginning)  # the list of rows, and whether this is a warm start
    start: TrainedRun | None = None  # whose parameters the first step starts from

    def about(self, config: RunConfig, name: str) -> dict[str, Any]:
        """Return what a participant's HELLO and its checkpoint say of it: settings, rows and how training began."""
        return handshake.about(config, name, self.names, self.trained_ids) | self.began.identity()

    def targets(self, split: str) -> Targets:
        """Return the labels of a split, and the weights of its rows."""
        return Targets(self.labels[split], self.weights.get(split))

    @property
    def trained_ids(self) -> dict[str, list[str]]:
        """The rows that all must hold alike."""
        return {split: ids for split, ids in self.ids.items() if split != "new"}


def party_names(config: RunConfig, folder: Path) -> list[str]:
    """Return the parties' names: those in the file, or those of the data."""
    if has_tables(config):
        return [p.name for p in config.party]
    return [p.name for p in config.party] if _has_own_files(config, folder) else load_data(config, folder).names


def _has_own_files(config: RunConfig, folder: Path) -> bool:
    """Whether each participant has a data file of its own; its copy of the run file may name that one alone."""
    if any(p.data for p in config.party):
        return True
    return bool(config.party and config.data.path) and not read(folder / config.data.path).columns


def load(
    config: RunConfig, folder: Path, name: str, home: Path | None = None, start: TrainedRun | None = None
) -> ParticipantData:
    """Return what a party holds, or the server ('').

    `home` is the participant's folder, where the lists of shared rows are. Training that has begun there goes on with
    what it began with; at its first step it takes the newest list, and starts from a trained run if one is given.
    """
    began = _begin(config, home, start)
    data = _load(config, folder, name, _Start(home, began.alignment, bool(began.start), start))
    return replace(data, began=began, start=start)


@dataclass(frozen=True)
class _Start:
    """Where a participant is, and what it starts with."""

    home: Path | None
    alignment: int
    warm: bool  # the run started from a trained one, now or before
    trained: TrainedRun | None  # this one, at the first step


def _begin(config: RunConfig, home: Path | None, start: TrainedRun | None) -> Beginning:
    """Return what training began with, or decide it now and write it down."""
    if home and (found := beginning.load(home)):
        return found
    number = _newest(home, start) if home and _needs_list(config) else 0
    began = Beginning(number, dict(start.identities) if start else {})
    if home and (began.identity() or (home / beginning.FILE).exists()):
        began.save(home)
    return began


def _needs_list(config: RunConfig) -> bool:
    """Whether the rows are those of an alignment; with align = 'none' and without stratify everybody cuts alike."""
    return has_tables(config) and (config.data.align != "none" or config.data.stratify)


def _newest(home: Path, start: TrainedRun | None) -> int:
    """Return the number of the newest list; a folder without any takes that of the run that it starts from."""
    own = Alignments(home)
    if start and not own.newest and (number := Alignments(start.folder).newest):
        own.save(number, Alignments(start.folder).load(number))
    return own.newest


def _load(config: RunConfig, folder: Path, name: str, start: _Start) -> ParticipantData:
    party = name or config.label_holder
    if config.data.subset and (has_tables(config) or _has_own_files(config, folder)):
        raise ConfigError(
            f"data.subset = {config.data.subset} is set, but it would have no effect: each participant uses all rows "
            "of its own file. Leave it out."
        )
    if has_tables(config):
        return _from_tables(config, folder, name, start)
    if _has_own_files(config, folder):
        return _from_arrays(config, folder, name, party)
    data = load_data(config, folder)
    if data.sources:
        raise ConfigError(
            "augmentation moves pixels between parties, so it exists in one process only: set data.augment = false."
        )
    if party and party not in data.names:
        raise ConfigError(f"{party!r} is not a party of this data. {nearest(party, data.names)}")
    splits = {s: part for s in ("train", "validation", "test") if (part := getattr(data, s)) is not None}
    place = data.names.index(party) if party else None
    columns = {} if place is None else {s: part.features[place] for s, part in splits.items()}
    labels = {s: part.labels for s, part in splits.items()}
    ids = data.ids or {s: [f"{s}:{i}" for i in range(len(part.labels))] for s, part in splits.items()}
    known = labels if not name or config.agreement.labels == "shared" else {}
    return ParticipantData(data.names, columns, known, {s: ids[s] for s in splits}, data.classes if known else 0)


def _from_arrays(config: RunConfig, folder: Path, name: str, party: str) -> ParticipantData:
    names = [p.name for p in config.party]
    own = config.of(party).data
    if party and own is None:
        raise _no_data(config, party, "path = ...")
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
    data = ParticipantData(
        names,
        {} if columns is None else {s: columns[part] for s, part in parts.items()},
        {} if labels is None else {s: labels[part] for s, part in parts.items()},
        {s: [ids[i] for i in part.tolist()] for s, part in parts.items()},
        0 if labels is None else classes_of(labels),
    )
    if own is not None and own.new:
        later = read(folder / own.new)
        data.columns["new"] = own_columns(later, folder / own.new)
        data.ids["new"] = later.ids or [str(i) for i in range(later.rows)]
    return data


def _no_data(config: RunConfig, party: str, needs: str) -> ConfigError:
    if party in (names := [p.name for p in config.party]):
        return ConfigError(f"party {party!r} has no data in this file: its [[party]] needs data = {{ {needs} }}.")
    return ConfigError(f"{party!r} is not a party of this federation. {nearest(party, names)}")


# Tables.


def _from_tables(config: RunConfig, folder: Path, name: str, start: _Start) -> ParticipantData:
    """Return what a party holds of its table, or the server (''): the rows that all share, in numbers.

    How columns become numbers is learnt from the training rows once, and kept beside the checkpoint: rows that come
    later are turned into numbers in the same way. A trained run that this one starts from has done so for the columns
    that it knew.
    """
    party, home = name or config.label_holder, start.home
    own = config.of(party).data
    if party and own is None:
        raise _no_data(config, party, "path, id")
    saved = _saved_encoder(home) if own else None
    known = start.trained.encoders.get(party) if start.trained else None
    table = _open_table(config, folder / own.path, own, saved, known) if own else None
    target = _label_table(config, folder, name, table)
    parts = _ids_by_split(config, [t for t in (table, target) if t], start)
    tables = {party: table, LABELS: target if config.data.label else None}
    taking_part = _participation(parts, tables, start.alignment)
    names, (labels, classes) = [p.name for p in config.party], _labels(config, target, parts)
    weights = {split: target.weights(ids) for split, ids in parts.items()} if target else {}
    spelling = target.spelling() if target and not name else {}
    count = (len(classes.names) or classes_of(labels["train"])) if labels else 0
    held = ParticipantData(
        names, {}, labels, parts, count, None, classes.names, classes.loss, taking_part, weights, spelling
    )
    if own is None or table is None:
        return held
    encoder = _encoder(table, parts["train"], home, saved, known)
    columns = table.encoded(parts, encoder)
    compared = table.compared(parts, encoder, start.warm)
    _say(table.notices(encoder, compared))
    if own.new:
        new = open_new(own, folder, config.data, encoder)
        parts["new"], columns["new"] = new.ids, torch.from_numpy(encoder.transform(new.frame))
        later = {"new": drift.changes(encoder, new.frame)}
        _say(new.notices(encoder, later))
        compared |= later
    if home:
        save_columns(home, {party: drift.as_table(compared)})
    return replace(held, columns=columns, encoder=encoder)


def _open_table(config: RunConfig, path: Path, own: OwnData, saved: Encoder | None, known: Encoder | None) -> Table:
    """Return a table, read as the rows that training began with, or as those of a trained run."""
    settings = TableSettings.of(own)
    if saved:
        return Table.open(path, settings, config.data, saved)
    return Table.reopen(path, settings, config.data, known)


def _participation(
    parts: dict[str, list[str]], tables: dict[str, Table | None], alignment: int
) -> dict[str, Participation]:
    """Return how many rows of this participant's tables take part, and say so."""
    shared = sum(map(len, parts.values()))
    splits = ", ".join(f"{len(ids):,} {split}" for split, ids in parts.items())
    splits += f", of alignment {alignment}" if alignment else ""
    found = {}
    for name, table in tables.items():
        if table:
            found[name] = table.participation(shared)
            log.info("%s: %s Splits: %s.", table.path, found[name].text(), splits)
    return found


def _say(notices: Sequence[str]) -> None:
    """Tell the owner of a table, and nobody else."""
    for text in notices:
        log.warning("%s", text)


def _label_table(config: RunConfig, folder: Path, name: str, own: Table | None) -> Table | None:
    """Return the table with the labels, if this participant has them."""
    where = label_settings(config)
    if name:  # a party has labels only where they are shared, and then in its own table
        if config.agreement.labels == "shared" and (own is None or not own.settings.label):
            raise ConfigError(f"labels are shared, so the data of {name!r} needs `label`, its column of labels.")
        return own if config.agreement.labels == "shared" else None
    if where is None:
        raise ConfigError("the label holder has no labels: set `label` in [data], or in its own [[party]] data.")
    return Table.open(folder / where[0], where[1], config.data) if config.data.label else own


def _ids_by_split(config: RunConfig, tables: Sequence[Table], start: _Start) -> dict[str, list[str]]:
    """Return the ids of every split, in the order that all use."""
    if not _needs_list(config):
        if any(table.ids != tables[0].ids for table in tables):
            raise DataError("align = 'none', but the tables of the label holder list other ids, or in another order.")
        return cut_ids(tables[0].ids, config.data, config.seed)
    if start.home is None:
        raise ConfigError(f"align = {config.data.align!r} needs the folder where `efvfl align` left its list.")
    if not start.alignment:
        raise DataError(f"there is no list of shared rows in {start.home}. Run `efvfl align` first, all together.")
    aligned = Alignments(start.home).load(start.alignment)
    found: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name, code in zip(aligned.ids, aligned.splits, strict=True):
        found[SPLITS[code]].append(name)
    return {split: ids for split, ids in found.items() if ids}


def _labels(config: RunConfig, target: Table | None, parts: dict[str, list[str]]) -> tuple[dict[str, Tensor], Labels]:
    if target is None:
        return {}, Labels()
    classes = target.encoding([name for ids in parts.values() for name in ids], config.loss)
    _say([target.label_notice(classes)] if classes.doubt else [])
    if not config.loss:
        log.info("The loss follows from the label: %s.", classes.loss)
    return {split: classes.encode(target.labels(ids)) for split, ids in parts.items()}, classes


def _check_chosen(began: list[str], now: list[str], home: Path) -> None:
    """Refuse to go on with columns that were left out since training began; new ones in the table are no harm."""
    if gone := [name for name in began if name not in now]:
        raise ConfigError(
            f"training in {home} began with {', '.join(map(repr, gone))}, which the file leaves out now. To train "
            "without, start in a new folder (copy `alignments` to it, or give --from); to go on, set it back."
        )


def _read_encoder(path: Path) -> Encoder:
    try:
        return read_encoder(path)
    except DataError as error:
        raise DataError(
            f"cannot go on with {path}: {error} Put a good copy back, or start all anew in empty folders."
        ) from error


def _saved_encoder(home: Path | None) -> Encoder | None:
    """Return the encoder that training began with; None if it has not begun."""
    path = home / ENCODER if home else None
    if home and path and beginning.has_begun(home) and path.exists():
        return _read_encoder(path)
    return None


def _encoder(
    table: Table, train: list[str], home: Path | None, saved: Encoder | None, known: Encoder | None
) -> Encoder:
    """Return the encoder that training began with, or learn now what a trained run does not know."""
    if home and saved:
        _check_chosen([column.name for column in saved.columns], table.settings.chosen(table.rows(train)), home)
        return saved
    encoder = table.fitted(train, known)
    if home:
        write_atomically(home / ENCODER, encoder.to_json().encode())
    return encoder

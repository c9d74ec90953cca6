"""What one participant holds of its tables: the rows that take part, in numbers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from efvfl.config.run_file import OwnData, RunConfig
from efvfl.core.label_mechanism import RandomisedResponse
from efvfl.core.presence import RowPresence
from efvfl.data import label_draws
from efvfl.data.npz import classes_of
from efvfl.data.participation import Participation
from efvfl.data.tables import drift
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.data.tables.labels import Labels
from efvfl.data.tables.load import LABELS, Table, cut_ids, label_settings, open_new
from efvfl.errors import ConfigError, DataError
from efvfl.network.align.aligned_rows import OuterPlaces
from efvfl.network.align.alignments import Alignments
from efvfl.network.align.list_targets import ListTargets
from efvfl.network.training import beginning
from efvfl.network.training.holding import ParticipantData, no_data
from efvfl.runs.build import has_tables
from efvfl.runs.run_folder import save_columns
from efvfl.runs.trained import TrainedRun, read_encoder
from efvfl.util.files import write_atomically

log = logging.getLogger("efvfl")

ENCODER = "encoder.json"  # in a participant's folder


@dataclass(frozen=True)
class StartingPoint:
    """Where a participant is, and what it starts with."""

    home: Path | None
    alignment: int
    warm: bool  # the run started from a trained one, now or before
    trained: TrainedRun | None  # this one, at the first step


def needs_list(config: RunConfig) -> bool:
    """Whether the rows are those of an alignment; with align = 'none' and without stratify everybody cuts alike."""
    return has_tables(config) and (config.data.align != "none" or config.data.stratify)


def from_tables(config: RunConfig, folder: Path, name: str, start: StartingPoint) -> ParticipantData:
    """Return what a party holds of its table, or the server (''): the rows that all share, in numbers.

    How columns become numbers is learnt from the training rows once, and kept beside the checkpoint: rows that come
    later are turned into numbers in the same way. A trained run that this one starts from has done so for the columns
    that it knew.
    """
    party, home = name or config.label_holder, start.home
    own = config.of(party).data
    if party and own is None:
        raise no_data(config, party, "path, id")
    saved = _saved_encoder(home) if own else None
    known = start.trained.encoders.get(party) if start.trained else None
    table = _open_table(config, folder / own.path, own, saved, known) if own else None
    target = _label_table(config, folder, name, table)
    parts, outer = _rows_by_split(config, [t for t in (table, target) if t], start)
    tables = {party: table, LABELS: target if config.data.label else None}
    taking_part = _participation(parts, tables, start.alignment, config.data.align == "outer")
    names, (labels, weights, classes) = [p.name for p in config.party], _targets(config, target, parts, outer, start)
    told = outer.targets.release(labels) if outer and outer.targets and target is None else None
    spelling = target.spelling() if target and not name else {}
    count = (len(classes.names) or classes_of(labels["train"])) if labels else 0
    if told and isinstance(told.mechanism, RandomisedResponse):
        count = told.mechanism.classes  # what was told may lack one
    held = ParticipantData(
        names,
        {},
        labels,
        parts,
        count,
        class_names=classes.names,
        loss=classes.loss,
        participation=taking_part,
        weights=weights,
        spelling=spelling,
        presence=_presence(outer, config) if outer else {},
        release=told,
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
    return replace(held, columns={**columns}, encoder=encoder)


def _open_table(config: RunConfig, path: Path, own: OwnData, saved: Encoder | None, known: Encoder | None) -> Table:
    """Return a table, read as the rows that training began with, or as those of a trained run."""
    settings = TableSettings.of(own)
    if saved:
        return Table.open(path, settings, config.data, saved)
    return Table.reopen(path, settings, config.data, known)


def _participation(
    parts: dict[str, list[str]], tables: dict[str, Table | None], alignment: int, outer: bool
) -> dict[str, Participation]:
    """Return how many rows of this participant's tables take part, and say so."""
    shared = sum(map(len, parts.values()))
    splits = ", ".join(f"{len(ids):,} {split}" for split, ids in parts.items())
    splits += f", of alignment {alignment}" if alignment else ""
    found = {}
    for name, table in tables.items():
        if table:
            found[name] = table.participation(shared, outer)
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
        if config.data.align == "outer":
            return None  # the list has the labels, also of rows that are not in this table
        if config.agreement.labels == "shared" and (own is None or not own.settings.label):
            raise ConfigError(f"labels are shared, so the data of {name!r} needs `label`, its column of labels.")
        return own if config.agreement.labels == "shared" else None
    if where is None:
        raise ConfigError("the label holder has no labels: set `label` in [data], or in its own [[party]] data.")
    return Table.open(folder / where[0], where[1], config.data) if config.data.label else own


def _rows_by_split(
    config: RunConfig, tables: Sequence[Table], start: StartingPoint
) -> tuple[dict[str, list[str]], OuterPlaces | None]:
    """Return the ids that are held here of every split, in the order that all use, and who has which rows."""
    if not needs_list(config):
        if any(table.ids != tables[0].ids for table in tables):
            raise DataError("align = 'none', but the tables of the label holder list other ids, or in another order.")
        return cut_ids(tables[0].ids, config.data, config.seed), None
    if start.home is None:
        raise ConfigError(f"align = {config.data.align!r} needs the folder where `efvfl align` left its list.")
    if not start.alignment:
        raise DataError(f"there is no list of shared rows in {start.home}. Run `efvfl align` first, all together.")
    aligned = Alignments(start.home).load(start.alignment)
    if (aligned.outer is not None) != (config.data.align == "outer"):
        raise DataError(
            f"alignment {start.alignment} in {start.home} was made with another data.align than "
            f"{config.data.align!r}: set it back, or run `efvfl align` again, all together."
        )
    return aligned.by_split(), aligned.outer


def _presence(outer: OuterPlaces, config: RunConfig) -> dict[str, RowPresence]:
    """Return who has which rows of every split, in the parties' order."""
    known = [party.name for party in config.party if party.name in outer.masks]
    masks = {name: torch.from_numpy(np.frombuffer(outer.masks[name], dtype=bool).copy()) for name in known}
    return {
        split: RowPresence({name: mask[span] for name, mask in masks.items()}) for split, span in outer.spans().items()
    }


def _targets(
    config: RunConfig,
    target: Table | None,
    parts: dict[str, list[str]],
    outer: OuterPlaces | None,
    start: StartingPoint,
) -> tuple[dict[str, Tensor], dict[str, Tensor | None], Labels]:
    """Return labels and weights by split, and how labels became numbers: from the own table, or from the list."""
    told = outer.targets if outer else None
    if target is None:
        if outer is None or told is None:
            return {}, {}, Labels()
        found = {split: told.of_split(span) for split, span in outer.spans().items()}
        labels, weights = {s: of.labels for s, of in found.items()}, {s: of.weights for s, of in found.items()}
        return labels, weights, Labels(told.names, loss=told.loss)
    draw = partial(
        label_draws.of_folder, config, home=start.home, earlier=start.trained.folder if start.trained else None
    )
    if told and ListTargets.of(target, parts, config.loss, draw) != told:
        raise DataError(
            f"{target.path} has other labels or weights than the list of aligned rows, which all know: it has changed "
            "since the alignment. Restore it, or run `efvfl align` again, all together."
        )
    classes = target.encoding([name for ids in parts.values() for name in ids], config.loss)
    _say([target.label_notice(classes)] if classes.doubt else [])
    if not config.loss:
        log.info("The loss follows from the label: %s.", classes.loss)
    labels = {split: classes.encode(target.labels(ids)) for split, ids in parts.items()}
    return labels, {split: target.weights(ids) for split, ids in parts.items()}, classes


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

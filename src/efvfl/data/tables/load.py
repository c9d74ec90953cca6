"""Loading of the parties' tables and joining them by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.config.run_file import DataConfig, OwnData, RunConfig
from efvfl.core.targets import scaled
from efvfl.data import label_draws
from efvfl.data.participation import EVERY, LATER, Participation
from efvfl.data.tables.drift import ColumnChange, changes, warnings_about
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.data.tables.id_hints import better_format
from efvfl.data.tables.ids import Ids, read_ids
from efvfl.data.tables.labels import Labels, row_weights
from efvfl.data.tables.outer_rows import Mask, list_rows
from efvfl.data.tables.splits import SPLITS, split_of, split_seed, stratified
from efvfl.data.tables.table import column, has_types, read
from efvfl.errors import ConfigError, DataError

LABELS = "[data]"  # stands for the label holder's table of labels alone, among the names of parties


@dataclass(frozen=True)
class Table:
    """A participant's table with normalised ids."""

    frame: polars.DataFrame
    found: Ids
    settings: TableSettings
    path: Path
    row_numbers: NDArray[np.int64]  # of the rows in the file, from 0
    unlabelled: int = 0  # rows left out because they have no label
    weightless: int = 0  # rows left out because their weight is 0

    @classmethod
    def open(cls, path: Path, settings: TableSettings, data: DataConfig, encoder: Encoder | None = None) -> Table:
        """Return a table and its ids; an `encoder` of earlier rows decides how columns are read."""
        if not settings.id:
            raise ConfigError(
                f"expected the name of the id column of {path.name}, got none: set `id` in its data settings."
            )
        frame = read(
            path,
            tuple(dict.fromkeys((*settings.texts, *(encoder.texts if encoder else ())))),
            raw=[c.name for c in encoder.columns] if encoder else (),
            missing=encoder.missing if encoder else settings.missing,
            label=settings.label,
        )
        numbers, height = np.arange(frame.height), frame.height
        if settings.label:  # rows without a label are useless for training
            labels = column(frame, settings.label, str(path))
            there = (labels.fill_nan(None) if labels.dtype.is_float() else labels).is_not_null()
            frame, numbers = frame.filter(there), numbers[there.to_numpy()]
        labelled = len(numbers)
        if settings.weight:
            counting = row_weights(column(frame, settings.weight, str(path)), settings.types.get(settings.weight)) > 0
            frame, numbers = frame.filter(polars.Series(counting)), numbers[counting]
        ids = read_ids(column(frame, settings.id, str(path)), data.id_format, data.duplicates, str(path))
        settings = replace(settings, typed=has_types(path))
        left_out = (height - labelled, labelled - len(numbers))
        return cls(frame[ids.rows], ids, settings, path, numbers[ids.rows], *left_out)

    @classmethod
    def reopen(cls, path: Path, settings: TableSettings, data: DataConfig, known: Encoder | None) -> Table:
        """Return a table whose columns a trained run may know: those are read as it read them; some may be gone."""
        table = cls.open(path, settings, data)
        still = known.only(settings.chosen(table.frame)) if known else None
        return cls.open(path, settings, data, still) if still and still.columns else table

    def fitted(self, train: Sequence[str], known: Encoder | None) -> Encoder:
        """Return an encoder fitted to training rows, but for columns that a trained run knows."""
        rows = self.rows(train)
        return known.extended(rows, self.settings) if known else Encoder.fit(rows, self.settings)

    @property
    def ids(self) -> list[str]:
        """The ids, in table order."""
        return self.found.ids

    def rows(self, ids: Sequence[str]) -> polars.DataFrame:
        """Return the rows of these ids, in this order."""
        absent = [name for name in ids if name not in self._places]
        if absent:
            raise DataError(
                f"{self.path} lacks {len(absent):,} of the {len(ids):,} aligned rows: it has changed since the "
                "alignment. To go on with a model that was trained on them, restore the table, and name today's as "
                "`new`; to train on the rows of today, run `efvfl align` again, all together, and start in new folders."
            )
        return self.frame[[self._places[name] for name in ids]]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.ids)}

    def labels(self, ids: Sequence[str]) -> polars.Series:
        """Return the labels of these ids."""
        return column(self.rows(ids), self.settings.label, str(self.path))

    def encoding(self, ids: Sequence[str], loss: str) -> Labels:
        """Return how the labels of these ids become numbers."""
        return Labels.of(self.labels(ids), loss, self.settings.types.get(self.settings.label))

    def weights(self, ids: Sequence[str]) -> Tensor | None:
        """Return the weights of these ids, with a mean of 1; None: all count alike."""
        name = self.settings.weight
        if not name:
            return None
        found = row_weights(column(self.rows(ids), name, str(self.path)), self.settings.types.get(name))
        return scaled(torch.from_numpy(found), len(ids))

    @property
    def written_ids(self) -> polars.Series:
        """The ids as they are written in the table, in its order."""
        return self.frame.get_column(self.settings.id)

    def spelling(self) -> dict[str, str]:
        """Return the ids as the table writes them, where normalisation has altered them."""
        return {normal: raw for normal, raw in zip(self.ids, self.written_ids, strict=True) if normal != raw}

    def has(self, ids: Sequence[str]) -> Mask:
        """Return which of these ids it has."""
        return np.array([name in self._places for name in ids], dtype=bool)

    def participation(self, taking_part: int, outer: bool = False) -> Participation:
        """Return how many rows are left out, and why, if so many take part."""
        report = self.found.report
        unmatched = len(self.ids) - taking_part
        left_out = (self.unlabelled, report.missing, report.duplicates, unmatched, self.weightless)
        return Participation(report.total + self.unlabelled + self.weightless, *left_out, outer)

    def label_notice(self, labels: Labels) -> str:
        """Return what the owner should know of how its labels were read."""
        return f"{self.path}, label {self.settings.label!r}: {labels.doubt}"

    def notices(self, encoder: Encoder, compared: Mapping[str, Sequence[ColumnChange]]) -> list[str]:
        """Return what the owner should know: how columns were read, over all rows, and how later rows differ."""
        found = [cells.text(self.row_numbers) for cells in encoder.unreadable(self.frame)]
        changed = [text for changes in compared.values() for text in warnings_about(changes)]
        return [f"{self.path}, {text}" for text in (*encoder.doubts, *found, *changed)]

    def compared(
        self, ids: Mapping[str, Sequence[str]], encoder: Encoder, known: bool = False
    ) -> dict[str, list[ColumnChange]]:
        """Return how validation and test rows differ from the training rows; of a warm start, how all rows do."""
        later = [name for split, names in ids.items() if known or split != "train" for name in names]
        return {EVERY if known else LATER: changes(encoder, self.rows(later)) if later else []}

    def encoded(self, ids: Mapping[str, Sequence[str]], encoder: Encoder) -> dict[str, Tensor]:
        """Return the encoded rows of every split."""
        return {split: torch.from_numpy(encoder.transform(self.rows(names))) for split, names in ids.items()}


def label_settings(config: RunConfig) -> tuple[str, TableSettings] | None:
    """Return the path and the settings of the table with the labels, or None if the config names none."""
    own = [party for party in config.party if party.data and party.data.label]
    if config.agreement.labels == "private" and any(p.name != config.label_holder for p in own):
        names = ", ".join(p.name for p in own if p.name != config.label_holder)
        raise ConfigError(
            f"{names} has a label column, but labels are private, so only the label holder may have one: change "
            "label_holder, or remove `label` there."
        )
    if config.data.label and any(p.name == config.label_holder for p in own):
        raise ConfigError(f"labels are in [data] and at {config.label_holder!r}: remove one of them.")
    if config.data.weight and not config.data.label:
        raise ConfigError(f"[data] has weight = {config.data.weight!r} but no label: name it where the label is.")
    if config.data.label:
        if not config.data.path:
            raise ConfigError("[data] has a label but no path: set `path` to the table with the labels.")
        labels = config.data
        return labels.path, TableSettings(id=labels.id, label=labels.label, weight=labels.weight)
    here = config.of(config.label_holder).data
    return (here.path, TableSettings.of(here)) if here and here.label else None


def shared_ids(tables: Mapping[str, Table], forms: Sequence[str]) -> list[str]:
    """Return the ids that all tables have, ordered by their bytes."""
    common = set.intersection(*(set(table.ids) for table in tables.values()))
    if not common:
        hint = better_format({name: table.written_ids for name, table in tables.items()}, forms, 0)
        raise DataError(
            "the tables have no id in common. Do all id columns refer to the same entities, in the same format? "
            + (hint or "data.id_format = ['strip', 'case', 'zeros'] ignores spaces, case and leading zeros.")
        )
    return sorted(common, key=str.encode)


def cut_ids(ids: Sequence[str], data: DataConfig, seed: int, labels: Tensor | None = None) -> dict[str, list[str]]:
    """Return the ids of every nonempty split."""
    shares = (data.validation, data.test)
    if data.stratify:
        if labels is None:
            raise ConfigError(
                "data.stratify needs the labels, which parties do not have with align = 'none': remove it."
            )
        parts = stratified(ids, labels.numpy(), seed, shares)
    else:
        parts = split_of(ids, seed, shares)
    return {split: [ids[place] for place in parts[split]] for split in SPLITS if len(parts[split])}


@dataclass(frozen=True)
class Joined:
    """The joined tables of all parties, in one process."""

    columns: dict[str, dict[str, Tensor]]  # by party and split; NaN throughout in rows that a party lacks
    labels: dict[str, Tensor]
    weights: dict[str, Tensor | None]  # of rows in the loss; None: all count alike
    ids: dict[str, list[str]]
    encoders: dict[str, Encoder]
    classes: Labels
    notices: list[str]  # what the owners should know about how their tables were read
    participation: dict[str, Participation]  # by party, and of a table of labels alone
    compared: dict[str, dict[str, list[ColumnChange]]]  # by party: later rows beside the training rows


def join(config: RunConfig, folder: Path, known: Mapping[str, Encoder] | None = None) -> Joined:
    """Return all parties' tables, joined by id; relative paths start at `folder`.

    `known` has encoders of a trained run, by party: columns in them are encoded as that run did.
    """
    chosen, known = config.data, known or {}
    tables: dict[str, Table] = {}
    for party in config.party:
        if party.data is None:
            raise ConfigError(f"expected `data` for every party, because some have it: {party.name!r} has none.")
        settings, before = TableSettings.of(party.data), known.get(party.name)
        tables[party.name] = Table.reopen(folder / party.data.path, settings, chosen, before)
    where = label_settings(config)
    if where is None:
        raise ConfigError("no participant has labels: set `label` in [data], or in the label holder's data.")
    target = Table.open(folder / where[0], where[1], chosen) if chosen.label else tables[config.label_holder]
    everyone = tables | ({LABELS: target} if chosen.label else {})
    parts = _outer(config, tables, target) if chosen.align == "outer" else _inner(config, everyone, target)
    ids = [name for names in parts.values() for name in names]
    own = {name: _held(table, parts) if chosen.align == "outer" else parts for name, table in everyone.items()}
    classes = target.encoding(ids, config.loss)
    encoders = {name: table.fitted(own[name]["train"], known.get(name)) for name, table in tables.items()}
    columns = {name: _encoded(table, parts, own[name], encoders[name]) for name, table in tables.items()}
    labels = {split: classes.encode(target.labels(names)) for split, names in parts.items()}
    weights = {split: target.weights(names) for split, names in parts.items()}
    compared = {name: table.compared(own[name], encoders[name], name in known) for name, table in tables.items()}
    notices = [text for name, table in tables.items() for text in table.notices(encoders[name], compared[name])]
    counts = {name: sum(map(len, held.values())) for name, held in own.items()}
    taking_part = {name: t.participation(counts[name], chosen.align == "outer") for name, t in everyone.items()}
    if any(rows.unmatched for rows in taking_part.values()):
        written = {name: table.written_ids for name, table in everyone.items()}
        matched = int(np.all([table.has(ids) for table in everyone.values()], axis=0).sum())
        notices += filter(None, [better_format(written, chosen.id_format, matched)])
    notices += [target.label_notice(classes)] if classes.doubt else []
    return Joined(columns, labels, weights, parts, encoders, classes, notices, taking_part, compared)


def _inner(config: RunConfig, everyone: Mapping[str, Table], target: Table) -> dict[str, list[str]]:
    """Return the ids that all tables have, by split."""
    if config.data.align == "none":
        ids = _same([table.ids for table in everyone.values()])
    else:
        ids = shared_ids(everyone, config.data.id_format)
    return cut_ids(ids, config.data, split_seed(config), _stratified_by(config, target, ids))


def _outer(config: RunConfig, tables: Mapping[str, Table], target: Table) -> dict[str, list[str]]:
    """Return the label holder's ids by split, as `efvfl align` lists them."""
    both = tables.get(config.label_holder, target).has(target.ids)
    ids = [name for name, has in zip(target.ids, both, strict=True) if has]
    masks = {name: table.has(ids) for name, table in tables.items() if name != config.label_holder}
    labels = _stratified_by(config, target, ids)
    return list_rows(config, ids, masks, None if labels is None else labels.numpy()).by_split()


def _stratified_by(config: RunConfig, target: Table, ids: Sequence[str]) -> Tensor | None:
    """Return the labels by which rows are cut: as everybody may know them; None: they are not cut by labels."""
    if not config.data.stratify:
        return None
    classes = target.encoding(ids, config.loss)
    return label_draws.of_rows(config, classes.loss, classes.encode(target.labels(ids)), ids)


def _held(table: Table, parts: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the ids that a table has of every split."""
    return {s: [name for name, has in zip(ids, table.has(ids), strict=True) if has] for s, ids in parts.items()}


def _encoded(
    table: Table, parts: Mapping[str, list[str]], own: Mapping[str, list[str]], encoder: Encoder
) -> dict[str, Tensor]:
    """Return the encoded rows of every split, with rows of NaN for those that the table lacks."""
    found = table.encoded(own, encoder)
    for split, ids in parts.items():
        if len(own[split]) < len(ids):
            columns = torch.full((len(ids), *found[split].shape[1:]), torch.nan, dtype=found[split].dtype)
            columns[torch.from_numpy(table.has(ids))] = found[split]
            found[split] = columns
    return found


def _same(everyone: Sequence[list[str]]) -> list[str]:
    if any(ids != everyone[0] for ids in everyone):
        raise DataError(
            "align = 'none' needs the same ids in the same order in all tables, but they differ: align them."
        )
    return everyone[0]


def open_new(own: OwnData, folder: Path, data: DataConfig, encoder: Encoder) -> Table:
    """Return the table of new rows, read as the training rows were; they need no label."""
    return Table.open(folder / own.new, replace(TableSettings.of(own), label="", weight=""), data, encoder)

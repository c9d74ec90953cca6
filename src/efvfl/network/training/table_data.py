"""A participant's own table as what it holds: the rows that all share, in numbers.

How columns become numbers is learnt from the training rows once, and kept beside the checkpoint: rows that come later
are turned into numbers in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from efvfl.config.run_file import RunConfig
from efvfl.data.npz import classes_of
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.data.tables.labels import Labels
from efvfl.data.tables.load import Table, cut_ids, label_settings, open_new
from efvfl.errors import ConfigError, DataError
from efvfl.network.align.aligned_rows import SPLITS, Aligned
from efvfl.network.training.autosave import CHECKPOINT
from efvfl.network.training.participant_data import ParticipantData
from efvfl.util.files import write_atomically

FILE = "encoder.json"


def hold(config: RunConfig, folder: Path, name: str, home: Path | None) -> ParticipantData:
    """Load what a party holds of its table, or the server (''); `home` is where its alignment is."""
    party = name or config.label_holder
    own = config.of(party).data
    if party and own is None:
        raise ConfigError(f"party {party!r} has no table in this file: its [[party]] needs data = {{ path, id }}.")
    table = Table.open(folder / own.path, TableSettings.of(own), config.data) if own else None
    target = _target(config, folder, name, table)
    parts = _parts(config, [t for t in (table, target) if t], home)
    names, (labels, classes) = [p.name for p in config.party], _labels(config, target, parts)
    count = (len(classes.names) or classes_of(labels["train"])) if labels else 0
    if own is None or table is None:
        return ParticipantData(names, {}, labels, parts, count, class_names=classes.names)
    encoder = _encoder(table, parts["train"], home)
    columns = table.encoded(parts, encoder)
    if own.new:
        parts["new"], columns["new"] = open_new(own, folder, config.data, encoder)
    return ParticipantData(names, columns, labels, parts, count, encoder, classes.names)


def _target(config: RunConfig, folder: Path, name: str, own: Table | None) -> Table | None:
    """Return the table with the labels, if this participant has them."""
    where = label_settings(config)
    if name:  # a party has labels only where they are shared, and then in its own table
        if config.agreement.labels == "shared" and (own is None or not own.settings.label):
            raise ConfigError(f"labels are shared, so the data of {name!r} needs `label`, its column of labels.")
        return own if config.agreement.labels == "shared" else None
    if where is None:
        raise ConfigError("the label holder has no labels: set `label` in [data], or in its own [[party]] data.")
    return Table.open(folder / where[0], where[1], config.data) if config.data.label else own


def _parts(config: RunConfig, tables: Sequence[Table], home: Path | None) -> dict[str, list[str]]:
    """Return the ids of every split, in the order that all use."""
    if config.data.align == "none" and not config.data.stratify:  # then everybody cuts alike
        if any(table.ids != tables[0].ids for table in tables):
            raise DataError("align = 'none', but the tables of the label holder list other ids, or in another order.")
        return cut_ids(tables[0].ids, config.data, config.seed)
    if home is None:
        raise ConfigError(f"align = {config.data.align!r} needs the folder where `efvfl align` left its list.")
    aligned = Aligned.load(home)
    found: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name, code in zip(aligned.ids, aligned.splits, strict=True):
        found[SPLITS[code]].append(name)
    return {split: ids for split, ids in found.items() if ids}


def _labels(config: RunConfig, target: Table | None, parts: dict[str, list[str]]) -> tuple[dict[str, Tensor], Labels]:
    if target is None:
        return {}, Labels()
    classes = Labels.of(target.labels([name for ids in parts.values() for name in ids]), config.loss)
    return {split: classes.encode(target.labels(ids)) for split, ids in parts.items()}, classes


def _check_chosen(began: list[str], now: list[str], home: Path) -> None:
    """Refuse to go on with columns that were left out since training began; new ones in the table are no harm."""
    if gone := [name for name in began if name not in now]:
        raise ConfigError(
            f"training in {home} began with {', '.join(map(repr, gone))}, which the file leaves out now. To train "
            "without, start in an empty folder (copy aligned.parquet to it); to go on, set it back."
        )


def _encoder(table: Table, train: list[str], home: Path | None) -> Encoder:
    """Return the encoder that training began with, or learn it now."""
    kept = home / FILE if home else None
    if home and kept and (home / CHECKPOINT).exists() and kept.exists():
        found = Encoder.from_json(kept.read_text(encoding="utf-8"))
        _check_chosen([column.name for column in found.columns], table.settings.chosen(table.rows(train)), home)
        return found
    encoder = Encoder.fit(table.rows(train), table.settings)
    if kept:
        write_atomically(kept, encoder.to_json().encode())
    return encoder

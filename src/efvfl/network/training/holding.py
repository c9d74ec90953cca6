"""What one participant holds of the rows: columns, labels and ids, and who has which rows as far as it knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from efvfl.config.run_file import RunConfig
from efvfl.core.batches import Source
from efvfl.core.label_release import LabelRelease
from efvfl.core.presence import RowPresence
from efvfl.core.source_columns import OwnColumns, SourceColumns
from efvfl.core.targets import Targets
from efvfl.data.participation import Participation
from efvfl.data.tables.encode import Encoder
from efvfl.errors import ConfigError, nearest
from efvfl.network import handshake
from efvfl.network.training.beginning import Beginning
from efvfl.runs.trained import TrainedRun


@dataclass(frozen=True)
class ParticipantData:
    """What one participant holds, by split: 'train', 'validation', 'test', and 'new' for rows without labels."""

    names: list[str]  # of all parties
    columns: dict[str, OwnColumns]  # empty at a server that has none
    labels: dict[str, Tensor]  # empty at a party with private labels; at others as they know them
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
    presence: dict[str, RowPresence] = field(default_factory=dict)  # who has which rows, as far as known; empty: all
    release: LabelRelease | None = None  # how labels were randomised; None: they were not

    def about(self, config: RunConfig, name: str) -> dict[str, Any]:
        """Return what a participant's HELLO and its checkpoint say of it: settings, rows and how training began."""
        table = handshake.about(config, name, self.names, self.trained_ids) | self.began.identity()
        if not self.presence:
            return table
        salt = str(table["digest"])
        if part := handshake.presence_part(self.presence, salt):
            table["presence"] = part
        if name:
            return table
        others = [other for other in self.names if other != config.label_holder]
        return table | {"rows_of": {other: self._rows_of(config, other, salt) for other in others}}

    def _rows_of(self, config: RunConfig, name: str, salt: str) -> dict[str, Any]:
        """Return what a party's HELLO must say of its rows, from what the server knows of them."""
        ids, known = {}, {}
        for split, names in self.trained_ids.items():
            masks = self.presence[split].masks
            ids[split] = [i for i, has in zip(names, masks[name].tolist(), strict=True) if has]
            private = config.agreement.labels == "private"
            known[split] = RowPresence({name: masks[name]}) if private else self.presence[split]
        return {"rows": handshake.rows_part(ids, salt), "presence": handshake.presence_part(known, salt)}

    def reading(self, sources: Mapping[str, Source]) -> ParticipantData:
        """Return the same with the columns of these splits read from sources, row by row as `ids` has them."""
        found = {split: SourceColumns(source, f"{split} columns") for split, source in sources.items()}
        for split, columns in found.items():
            if split not in self.ids or len(columns) != len(self.ids[split]):
                held = {name: len(ids) for name, ids in self.ids.items()}
                raise ConfigError(
                    f"source of {split!r}: expected as many rows as are held here, {held}, got {len(columns):,}."
                )
        return replace(self, columns={**self.columns, **found})

    def rows(self, split: str) -> int:
        """Return how many rows a split has, those that are not held here included."""
        return self.presence[split].rows if split in self.presence else len(self.ids[split])

    def targets(self, split: str) -> Targets:
        """Return the labels of a split that everything is computed from, and the weights of its rows."""
        return Targets((self.release.labels if self.release else self.labels)[split], self.weights.get(split))

    def true_targets(self, split: str) -> Targets:
        """Return the same with labels as they are, for the label holder's own metrics."""
        return Targets(self.labels[split], self.weights.get(split))

    @property
    def trained_ids(self) -> dict[str, list[str]]:
        """The rows that were agreed on, as far as they are held here."""
        return {split: ids for split, ids in self.ids.items() if split != "new"}


def no_data(config: RunConfig, party: str, needs: str) -> ConfigError:
    """Return the error about a party without data."""
    if party in (names := [p.name for p in config.party]):
        return ConfigError(f"party {party!r} has no data in this file: its [[party]] needs data = {{ {needs} }}.")
    return ConfigError(f"{party!r} is not a party of this federation. {nearest(party, names)}")

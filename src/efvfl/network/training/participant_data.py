"""What one participant holds of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from efvfl.data.tables.encode import Encoder


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

    @property
    def trained_ids(self) -> dict[str, list[str]]:
        """The rows that all must hold alike."""
        return {split: ids for split, ids in self.ids.items() if split != "new"}

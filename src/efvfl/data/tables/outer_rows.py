"""The rows of `align = "outer"`: those of the label holder, also such as some parties lack.

They stand split by split, in an order that follows from a seed which only the label holder knows: a party is told the
places of its own rows, and the order of ids, or any that it could compute, would tell it about the rows between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efvfl.config.run_file import RunConfig
from efvfl.data.tables.splits import SPLITS, shuffled, split_codes
from efvfl.errors import ConfigError, DataError

Mask = NDArray[np.bool_]  # which of some rows a party has


@dataclass(frozen=True)
class OuterRows:
    """The list of rows, as the label holder knows it."""

    ids: list[str]
    splits: bytes  # a code for each id, increasing
    masks: dict[str, Mask]  # by party, in their order

    def by_split(self) -> dict[str, list[str]]:
        """Return the ids of every split that has some."""
        codes = np.frombuffer(self.splits, dtype=np.uint8)
        found = {split: np.flatnonzero(codes == code) for code, split in enumerate(SPLITS)}
        return {split: [self.ids[row] for row in rows] for split, rows in found.items() if len(rows)}


def check_min_parties(config: RunConfig) -> None:
    """Refuse a number of parties that no row can have."""
    if config.data.min_parties > len(config.party):
        raise ConfigError(
            f"data.min_parties: expected at most {len(config.party)}, the number of parties, got "
            f"{config.data.min_parties}: no row could take part. Choose a smaller one."
        )


def list_rows(
    config: RunConfig, ids: Sequence[str], masks: Mapping[str, Mask], labels: NDArray[Any] | None
) -> OuterRows:
    """Return the list of the label holder's rows with these ids, of which every other party has some."""
    check_min_parties(config)
    everybody = {party.name: masks.get(party.name, np.ones(len(ids), dtype=bool)) for party in config.party}
    for name, mask in everybody.items():
        if not mask.any():
            raise DataError(
                f"expected {name!r} to have some of the label holder's {len(ids):,} ids, got none: is it the right "
                "column, and does data.id_format leave out what differs ('strip' spaces, 'case', leading 'zeros')? "
                "Else leave it out of the federation."
            )
    chosen = np.flatnonzero(np.sum(list(everybody.values()), axis=0) >= config.data.min_parties)
    if not len(chosen):
        raise DataError(
            f"expected rows that {config.data.min_parties} parties have, as data.min_parties says, got none of "
            f"{len(ids):,}: choose a smaller number."
        )
    chosen = chosen[shuffled(_at(ids, chosen), _order_seed(config))]
    codes = split_codes(config, _at(ids, chosen), None if labels is None else labels[chosen])
    order = np.argsort(codes, kind="stable")
    chosen, codes = chosen[order], codes[order]
    found = OuterRows(_at(ids, chosen), codes.tobytes(), {name: mask[chosen] for name, mask in everybody.items()})
    for name, mask in found.masks.items():
        if not mask[codes == 0].any():
            raise DataError(
                f"expected {name!r} to have some of the {int((codes == 0).sum()):,} training rows, got none: it shares "
                "too few with the label holder. Leave it out of the federation, or change data.min_parties or the "
                "shares of validation and test rows."
            )
    return found


def _at(ids: Sequence[str], places: NDArray[np.int64]) -> list[str]:
    return [ids[place] for place in places.tolist()]


def _order_seed(config: RunConfig) -> int:
    """Return what decides the order: over a network the label holder's secret, in one process perhaps not."""
    return config.seed if config.private_seed is None else config.private_seed

"""From what was matched to the list of rows: that of the label holder, and what each party is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efvfl.config.run_file import RunConfig
from efvfl.data.tables.outer_rows import list_rows
from efvfl.data.tables.splits import SPLITS, split_codes
from efvfl.network.align.aligned_rows import Aligned, OuterPlaces
from efvfl.network.align.delivery import PartyList, RowFacts, RowNumbers, RowsOfAll, RowSplits
from efvfl.network.align.list_targets import ListTargets
from efvfl.network.align.messages import Places

TargetsOf = Callable[[Mapping[str, list[str]]], ListTargets]  # from the ids of a list by split
Matches = Mapping[str, Places]  # by party: where it has each of our ids


@dataclass(frozen=True)
class Listing:
    """The list of rows."""

    aligned: Aligned  # the label holder's
    of_parties: dict[str, PartyList]


def list_shared(config: RunConfig, ids: list[str], labels: NDArray[Any] | None, matches: Matches) -> Listing | None:
    """Return the list of the ids that all parties have, ordered by their bytes in UTF-8; None: there are none."""
    common = np.flatnonzero(np.all([found_in(of) for of in matches.values()], axis=0)).tolist()
    chosen = sorted(common, key=lambda index: ids[index])
    if not chosen:
        return None
    aligned = _cut(config, ids, labels, chosen)
    return Listing(aligned, {name: _shared(aligned, of[chosen]) for name, of in matches.items()})


def found_in(places: Places) -> NDArray[np.bool_]:
    """Return which of our ids a party has."""
    return places[:, 0] >= 0


def list_same(config: RunConfig, ids: list[str], labels: NDArray[Any] | None, names: list[str]) -> Listing:
    """Return the list of all ids, in the table's order: parties are expected to have the same."""
    aligned = _cut(config, ids, labels, list(range(len(ids))))
    return Listing(aligned, {name: _shared(aligned, None) for name in names})


def _cut(config: RunConfig, ids: list[str], labels: NDArray[Any] | None, chosen: list[int]) -> Aligned:
    found = [ids[i] for i in chosen]
    return Aligned(found, split_codes(config, found, None if labels is None else labels[chosen]).tobytes())


def _shared(aligned: Aligned, places: Places | None) -> PartyList:
    return PartyList(aligned.ids, places, [RowSplits(aligned.splits)])


def list_outer(
    config: RunConfig, ids: list[str], labels: NDArray[Any] | None, matches: Matches, targets_of: TargetsOf | None
) -> Listing:
    """Return the list of the label holder's ids; every party is told its own rows alone, and their numbers.

    Where labels are shared it is told who has which rows, too, and the labels that `targets_of` finds.
    """
    rows = list_rows(config, ids, {name: found_in(of) for name, of in matches.items()}, labels)
    codes = np.frombuffer(rows.splits, dtype=np.uint8)
    totals = tuple(int((codes == code).sum()) for code in range(len(SPLITS)))
    has, targets = {name: mask.tobytes() for name, mask in rows.masks.items()}, None
    facts: list[RowFacts] = []
    if config.agreement.labels == "shared":
        assert targets_of is not None, "who shares labels has them"
        targets = targets_of(rows.by_split())
        facts.append(RowsOfAll(has, targets))
    places = OuterPlaces(totals, bytes([1]) * len(codes), has, targets)
    index = {name: place for place, name in enumerate(ids)}

    def of_party(name: str) -> PartyList:
        numbers = sorted(np.flatnonzero(rows.masks[name]).tolist(), key=lambda row: rows.ids[row])
        own = [rows.ids[row] for row in numbers]
        return PartyList(own, matches[name][[index[one] for one in own]], [RowNumbers(totals, numbers), *facts])

    return Listing(Aligned(rows.ids, rows.splits, places), {name: of_party(name) for name in matches})

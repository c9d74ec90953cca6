"""A party's answers about its columns: it puts a column's values in another order, and the label holder scores that.

A party answers only if its own file allows it (`limits.columns`). With "own" it numbers its columns in an order that
nobody else knows, so that the label holder sees how much columns matter and not which; with "shared" it tells their
names. Either way it is told what was found, and keeps that in its folder.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from efvfl.core.channel import send_exactly
from efvfl.core.local_model import CHUNK
from efvfl.core.party import Party
from efvfl.errors import DataError, ProtocolError, printable
from efvfl.network.training.holding import ParticipantData
from efvfl.runs.column_worth import ColumnWorth, told
from efvfl.training.column_values import ColumnPlaces, HeldColumns, every_number
from efvfl.util.rng import derive, permutation

SPLITS = ("validation", "test")
LONGEST = 40  # characters of the name of a metric


class ColumnAnswers:
    """Answers as far as the party agreed."""

    def __init__(
        self, party: Party, data: ParticipantData, seed: int, tells_names: bool, folder: Path | None = None
    ) -> None:
        """Permute by this seed, which is the party's own; leave what is found out in the folder, if there is one."""
        self.party = party
        self.tells_names = tells_names
        self.seed = seed
        self.folder = folder
        self.columns = data.columns
        self.places = places_of(data)
        names = list(self.places)
        if not tells_names:
            order = permutation(derive(seed, "order of columns"), len(names), 0, len(names))
            names = [names[place] for place in order]
        self.names = names  # by the numbers that the label holder uses

    def answer(self, table: dict[str, Any]) -> tuple[int, bytes]:
        """Return how many rows count as given away, and the answer to a question about columns."""
        if self.party.noise:
            raise DataError(f"{self.party.name} protects its rows, and gives none by their places.")
        match table:
            case {"columns": "list"}:
                names = self.names if self.tells_names else None
                return 0, b"\x00" + json.dumps({"count": len(self.names), "names": names}).encode()
            case {"columns": int(number), "split": str(split), "rows": list(rows)} if _fits(rows):
                return len(rows), self._permuted(number, split, rows)
            case {"columns": dict(found)}:
                self._keep(found)
                return 0, b"\x00"
        raise ProtocolError(f"expected a question about columns, got {table!s:.200}")

    def _permuted(self, number: int, split: str, rows: list[int]) -> bytes:
        """Return the representations of some rows with a column's values in another order among them."""
        held = self.columns.get(split) if split in SPLITS else None
        if held is None or rows[-1] >= len(held):
            raise DataError(f"{self.party.name} gives no {split!r:.20} rows by their places up to {rows[-1]:,}.")
        if not 0 <= number < len(self.names):
            raise DataError(f"{self.party.name} has {len(self.names):,} columns, and was asked for number {number:,}.")
        x = HeldColumns(held, self.places, self.seed).permuted(self.names[number], split, torch.tensor(rows))
        return b"\x00" + send_exactly(self.party.model.represent(x), "a representation")[0].to_bytes()

    def _keep(self, found: dict[str, Any]) -> None:
        """Leave what the label holder found."""
        values, split, rows, metric = (found.get(key) for key in ("values", "split", "rows", "metric"))
        if not isinstance(values, list) or len(values) != len(self.names):
            raise ProtocolError(f"expected what each of {len(self.names):,} columns is worth, got something else.")
        if split not in SPLITS or type(rows) is not int or rows < 1 or not isinstance(metric, str):
            raise ProtocolError(
                f"expected a split, its rows and a metric, got {split!s:.20}, {rows!s:.20}, {metric!s:.20}"
            )
        try:
            by_name = told(dict(zip(self.names, values, strict=True)))
        except (ValueError, OverflowError) as error:
            raise ProtocolError(str(error)) from error
        if self.folder:
            own = {name: by_name[name] for name in self.places}
            ColumnWorth(str(split), rows, printable(metric)[:LONGEST], {self.party.name: own}).save(self.folder)


def places_of(data: ParticipantData) -> ColumnPlaces:
    """Return which numbers of a row every column became: of a table its columns, of arrays every number is one."""
    return data.encoder.places if data.encoder else every_number(data.columns["train"])


def _fits(rows: list[Any]) -> bool:
    """Whether these are places in increasing order, no more than one question has."""
    if not 0 < len(rows) <= CHUNK or not all(type(row) is int for row in rows):
        return False
    return rows[0] >= 0 and all(a < b for a, b in pairwise(rows))

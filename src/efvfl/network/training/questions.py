"""Questions about rows: the server asks for exact representations of rows, to evaluate or predict.

A question is JSON: a split with a span of places, a list of ids, or one about columns (`column_answers.py`). An answer
is a byte 0 and a packet; or a byte 1 and a text that says what is wrong; or a byte 2, the places of ids that the party
lacks as JSON, a byte 0, and a packet of the others, if there are any.

By its place a party gives validation and test rows, which evaluation needs, and training rows only if its own file says
so. Rows that were added later are given by id alone: whoever asks must know of them already.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from efvfl.config.run_file import RunConfig
from efvfl.core.channel import refuse_huge, send_exactly, unpack
from efvfl.core.local_model import CHUNK as CHUNK  # rows of one question
from efvfl.core.party import Party
from efvfl.errors import ConfigError, DataError, ProtocolError, printable
from efvfl.network.training.column_answers import ColumnAnswers
from efvfl.network.training.participant_data import ParticipantData
from efvfl.runs.build import column_seed
from efvfl.wire.packet import Packet

log = logging.getLogger("efvfl")

MAX_QUESTION = 4 << 20  # bytes


def question(table: Mapping[str, Any]) -> bytes:
    """Return a question as it is sent."""
    return json.dumps(table).encode()


class QuestionHandler:
    """Gives a party's exact representations of the rows that are asked for."""

    def __init__(
        self, party: Party, data: ParticipantData, train_rows: bool = False, columns: ColumnAnswers | None = None
    ) -> None:
        """Know all rows by id, and those of some splits by place; `train_rows`: also the training rows.

        `columns` answers what is asked about columns; None: the party has not agreed to that.
        """
        self.party = party
        self.column_answers = columns
        self.columns = data.columns
        self.free = ("validation", "test")  # what evaluation needs after every epoch does not count
        self.by_place = ("train", *self.free) if train_rows else self.free
        self.places = {i: (split, n) for split, ids in data.ids.items() for n, i in enumerate(ids)}

    @classmethod
    def allowed(cls, party: Party, data: ParticipantData, config: RunConfig, folder: Path) -> Self:
        """Return what answers as far as the party's own file allows it."""
        limits, seed = config.of(party.name).limits, column_seed(config, party.name)
        agreed = limits.columns != "no"
        if limits.columns == "own" and config.of(party.name).private_seed is None:
            raise ConfigError(
                "limits.columns = 'own' numbers columns in an order that would follow from the shared seed: set "
                "private_seed, or columns = 'shared'."
            )
        columns = ColumnAnswers(party, data, seed, limits.columns == "shared", folder) if agreed else None
        return cls(party, data, limits.train_rows, columns)

    def __call__(self, question: bytes) -> tuple[int, bytes]:
        """Return how many rows count as given away, and the answer; an id that is lacking counts, and a refusal too."""
        if len(question) > MAX_QUESTION:
            raise ProtocolError(f"expected a question of at most {MAX_QUESTION:,} bytes, got {len(question):,}.")
        try:
            table = json.loads(question)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"expected a question in JSON, got something else: {error}") from error
        match table:
            case {"split": _, "ids": _}:  # which of the two counts would be a matter of taste
                pass
            case {"columns": _}:
                try:
                    return self._of_columns(table)
                except DataError as error:
                    return 1, b"\x01" + str(error).encode()
            case {"ids": list(ids)} if 0 < len(ids) <= CHUNK and all(isinstance(i, str) for i in ids):
                return len(ids), self._of_ids(ids)  # an id that is lacking says something, too
            case {"split": str(split), "start": int(start), "stop": int(stop)} if 0 <= start < stop <= start + CHUNK:
                try:
                    return self._of_span(split, start, stop)
                except DataError as error:
                    return 1, b"\x01" + str(error).encode()
        raise ProtocolError(f"expected a span of a split, a list of ids or columns, got {table!s:.200}")

    def _of_columns(self, table: dict[str, Any]) -> tuple[int, bytes]:
        if self.column_answers is None:
            raise DataError(
                f"{self.party.name} does not have its columns looked at: that needs limits.columns = 'own' or 'shared' "
                "in its own file."
            )
        return self.column_answers.answer(table)

    def _of_ids(self, ids: list[str]) -> bytes:
        """Return the answer about rows by id; each is computed alone: predictions must not depend on other rows."""
        lacking = [place for place, i in enumerate(ids) if i not in self.places]
        held = [self.places[i] for i in ids if i in self.places]
        body = b""
        if held:
            rows = torch.stack([self.columns[split][n] for split, n in held])
            h = self.party.model.represent(rows, alone=True)
            if self.party.noise:
                h = self.party.noise.predict(h, [i for i in ids if i in self.places])
            body = send_exactly(h, "a representation")[0].to_bytes()
        if not lacking:
            return b"\x00" + body
        # Its own operator may know why: an old table, or wrong ids at whoever asks. Where rows are missing it is usual.
        level = logging.WARNING if self.party.plan.presence is None else logging.INFO
        log.log(level, "%d of %d ids that were asked for are not held here", len(lacking), len(ids))
        return b"\x02" + json.dumps(lacking, separators=(",", ":")).encode() + b"\x00" + body

    def _of_span(self, split: str, start: int, stop: int) -> tuple[int, bytes]:
        """Return how many rows count as given away, and the answer about rows by their places."""
        if self.party.noise:
            raise DataError(f"{self.party.name} protects its rows, and gives none by their places.")
        if split == "train" and split not in self.by_place:
            raise DataError(
                f"{self.party.name} does not give its training rows: that needs limits.train_rows = true in its own "
                "file."
            )
        if split not in self.by_place or split not in self.columns or stop > len(self.columns[split]):
            raise DataError(f"{self.party.name} gives no {split!r:.20} rows by their places up to {stop:,}.")
        h = self.party.model.represent(self.columns[split][start:stop])
        counts = 0 if split in self.free else len(h)
        return counts, b"\x00" + send_exactly(h, "a representation")[0].to_bytes()


def refuse_refusal(answer: bytes) -> None:
    """Raise what a party says is wrong, if it does."""
    if answer[:1] == b"\x01":
        raise DataError(printable(answer[1:2001].partition(b"\x00")[0].decode(errors="replace")))


def read_answer(name: str, answer: bytes, rows: int, width: int) -> Tensor:
    """Return the representations in an answer."""
    refuse_refusal(answer)
    if answer[:1] != b"\x00":
        raise ProtocolError(f"expected an answer of {name} that begins with 0 or 1, got {answer[:1]!r}.")
    what = f"{name}'s representations"
    found = unpack(Packet.from_bytes(answer[1:]), (rows, width), torch.float32, what)
    refuse_huge(found, what)
    return found


def read_held(name: str, answer: bytes, rows: int, width: int) -> tuple[list[int], Tensor]:
    """Return the places of the ids that a party lacks, of `rows` asked for, and the representations of the others."""
    if answer[:1] != b"\x02":
        return [], read_answer(name, answer, rows, width)
    text, _, packet = answer[1:].partition(b"\x00")
    places = _places(text, rows)
    if not places:
        raise ProtocolError(f"{name} lacks ids, but does not say which of the {rows:,} it was asked for.")
    if len(places) == rows and not packet:
        return places, torch.empty(0, width)
    return places, read_answer(name, b"\x00" + packet, rows - len(places), width)


def _places(text: bytes, rows: int) -> list[int]:
    """Return increasing places below `rows` from JSON; none if it is anything else."""
    try:
        found = json.loads(text) if len(text) <= 8 * rows + 2 else None
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list) or not all(type(n) is int and 0 <= n < rows for n in found):
        return []
    return found if all(a < b for a, b in pairwise(found)) else []

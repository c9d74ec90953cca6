"""Questions about rows: the server asks for exact representations of rows, to evaluate or predict.

A question is JSON: a split with a span of places, or a list of ids. An answer is a byte 0 and a packet, or a byte 1, a
text that says what is wrong, and the places of the ids that the party lacks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from efvfl.core.channel import send_exactly, unpack
from efvfl.core.local_model import CHUNK as CHUNK  # rows of one question
from efvfl.core.party import Party
from efvfl.errors import DataError, ProtocolError
from efvfl.network.training.participant_data import ParticipantData
from efvfl.wire.packet import Packet

MAX_QUESTION = 4 << 20  # bytes


def question(table: Mapping[str, Any]) -> bytes:
    """Return a question as it is sent."""
    return json.dumps(table).encode()


class QuestionHandler:
    """Gives a party's exact representations of the rows that are asked for."""

    def __init__(self, party: Party, holding: ParticipantData) -> None:
        """Know all rows by split and place, and by id."""
        self.party = party
        self.columns = holding.columns
        self.places = {i: (split, n) for split, ids in holding.ids.items() for n, i in enumerate(ids)}

    def __call__(self, question: bytes) -> tuple[int, bytes]:
        """Return how many rows are given, and the answer."""
        if len(question) > MAX_QUESTION:
            raise ProtocolError(f"expected a question of at most {MAX_QUESTION:,} bytes, got {len(question):,}.")
        try:
            table = json.loads(question)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"expected a question in JSON, got something else: {error}") from error
        try:
            rows = self._rows(table)
        except DataError as error:  # which ids a party does not hold is an answer too, and counts as one
            ids = table.get("ids", ())
            places = [place for place, i in enumerate(ids) if i not in self.places]
            return len(ids), b"\x01" + str(error).encode() + b"\x00" + json.dumps(places).encode()
        h = self.party.model.represent(rows)
        return len(h), b"\x00" + send_exactly(h, "a representation")[0].to_bytes()

    def _rows(self, question: Any) -> Tensor:
        match question:
            case {"split": str(split), "start": int(start), "stop": int(stop)} if 0 <= start < stop <= start + CHUNK:
                if split not in self.columns or stop > len(self.columns[split]):
                    raise DataError(f"{self.party.name} has no {split} rows up to {stop:,}.")
                return self.columns[split][start:stop]
            case {"ids": list(ids)} if 0 < len(ids) <= CHUNK and all(isinstance(i, str) for i in ids):
                absent = [i for i in ids if i not in self.places]
                if absent:
                    raise DataError(
                        f"{self.party.name} lacks {len(absent):,} of {len(ids):,} ids, such as {absent[0]!r:.80}."
                    )
                return torch.stack([self.columns[split][n] for split, n in (self.places[i] for i in ids)])
        raise ProtocolError(f"expected a span of a split or a list of ids, got {question!s:.200}")


def read_answer(name: str, answer: bytes, rows: int, width: int) -> Tensor:
    """Return the representations in an answer."""
    if answer[:1] == b"\x01":
        raise DataError(answer[1:2001].partition(b"\x00")[0].decode(errors="replace"))
    if answer[:1] != b"\x00":
        raise ProtocolError(f"expected an answer of {name} that begins with 0 or 1, got {answer[:1]!r}.")
    return unpack(Packet.from_bytes(answer[1:]), (rows, width), torch.float32, f"{name}'s representations")


def lacking(name: str, answer: bytes, rows: int) -> list[int]:
    """Return the places of the ids that a party says it lacks, of `rows` asked for; none if it has them all."""
    if answer[:1] != b"\x01":
        return []
    text = answer.partition(b"\x00")[2]
    try:
        places = json.loads(text) if len(text) <= 8 * rows else None
    except (ValueError, RecursionError):
        places = None
    if not (isinstance(places, list) and places and all(type(n) is int and 0 <= n < rows for n in places)):
        raise ProtocolError(f"{name} lacks ids, but does not say which of the {rows:,} it was asked for.")
    return places

"""Questions about rows: the server asks for exact representations of rows, to evaluate or predict.

A question is JSON: a split with a span of places, or a list of ids. An answer is a byte 0 and a packet, or a byte 1, a
text that says what is wrong, and the places of the ids that the party lacks.

By its place a party gives validation and test rows, which evaluation needs, and training rows only if its own file says
so. Rows that were added later are given by id alone: whoever asks must know of them already.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from efvfl.core.channel import refuse_huge, send_exactly, unpack
from efvfl.core.local_model import CHUNK as CHUNK  # rows of one question
from efvfl.core.party import Party
from efvfl.errors import DataError, ProtocolError, printable
from efvfl.network.training.participant_data import ParticipantData
from efvfl.wire.packet import Packet

log = logging.getLogger("efvfl")

MAX_QUESTION = 4 << 20  # bytes


def question(table: Mapping[str, Any]) -> bytes:
    """Return a question as it is sent."""
    return json.dumps(table).encode()


class QuestionHandler:
    """Gives a party's exact representations of the rows that are asked for."""

    def __init__(self, party: Party, data: ParticipantData, train_rows: bool = False) -> None:
        """Know all rows by id, and those of some splits by place; `train_rows`: also the training rows."""
        self.party = party
        self.columns = data.columns
        self.free = ("validation", "test")  # what evaluation needs after every epoch does not count
        self.by_place = ("train", *self.free) if train_rows else self.free
        self.places = {i: (split, n) for split, ids in data.ids.items() for n, i in enumerate(ids)}

    def __call__(self, question: bytes) -> tuple[int, bytes]:
        """Return how many rows count as given away, and the answer; an id that is lacking counts, and a refusal too."""
        if len(question) > MAX_QUESTION:
            raise ProtocolError(f"expected a question of at most {MAX_QUESTION:,} bytes, got {len(question):,}.")
        try:
            table = json.loads(question)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"expected a question in JSON, got something else: {error}") from error
        try:
            rows, counts = self._rows(table)
        except DataError as error:
            # All ids count, also those that are held: the others say which these are, so that one id that nobody holds
            # would otherwise make a question about 16,383 guesses cost less the more of them are right.
            ids = table.get("ids", ())
            places = [place for place, i in enumerate(ids) if i not in self.places]
            if places:  # its own operator may know why: an old table, or a wrong id at whoever asks
                log.warning("%d of %d ids that were asked for are not held here", len(places), len(ids))
            return len(ids) or 1, b"\x01" + str(error).encode() + b"\x00" + json.dumps(places).encode()
        # Who asks by id asks for predictions: those of a row must not depend on what else is asked for.
        h = self.party.model.represent(rows, alone="ids" in table)
        return len(h) if counts else 0, b"\x00" + send_exactly(h, "a representation")[0].to_bytes()

    def _rows(self, question: Any) -> tuple[Tensor, bool]:
        """Return the columns of the rows that are asked for, and whether they count as given away."""
        match question:
            case {"split": _, "ids": _}:  # which of the two counts would be a matter of taste
                pass
            case {"split": str(split), "start": int(start), "stop": int(stop)} if 0 <= start < stop <= start + CHUNK:
                if split == "train" and split not in self.by_place:
                    raise DataError(
                        f"{self.party.name} does not give its training rows: that needs limits.train_rows = true in "
                        "its own file."
                    )
                if split not in self.by_place or split not in self.columns or stop > len(self.columns[split]):
                    raise DataError(f"{self.party.name} gives no {split!r:.20} rows by their places up to {stop:,}.")
                return self.columns[split][start:stop], split not in self.free
            case {"ids": list(ids)} if 0 < len(ids) <= CHUNK and all(isinstance(i, str) for i in ids):
                absent = [i for i in ids if i not in self.places]
                if absent:
                    raise DataError(
                        f"{self.party.name} lacks {len(absent):,} of {len(ids):,} ids, such as {absent[0]!r:.80}."
                    )
                return torch.stack([self.columns[split][n] for split, n in (self.places[i] for i in ids)]), True
        raise ProtocolError(f"expected a span of a split or a list of ids, got {question!s:.200}")


def read_answer(name: str, answer: bytes, rows: int, width: int) -> Tensor:
    """Return the representations in an answer."""
    if answer[:1] == b"\x01":
        raise DataError(printable(answer[1:2001].partition(b"\x00")[0].decode(errors="replace")))
    if answer[:1] != b"\x00":
        raise ProtocolError(f"expected an answer of {name} that begins with 0 or 1, got {answer[:1]!r}.")
    what = f"{name}'s representations"
    found = unpack(Packet.from_bytes(answer[1:]), (rows, width), torch.float32, what)
    refuse_huge(found, what)
    return found


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

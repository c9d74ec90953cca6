"""Participants of an alignment that hold a valid certificate and deviate from the protocol, anywhere in it."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from efvfl.network.align import messages, psi
from efvfl.network.align.messages import POINT, SALT, TAG, AlignmentKind, Place, PlacesPart, ShardQuestion, SplitsPart
from efvfl.network.align.party import AlignmentParty
from efvfl.network.align.points import blinded, multiply, new_key
from efvfl.network.align.same_list import ListChallenge
from efvfl.network.links.frame import Frame, FrameKind

Answer = Callable[[bytes], bytes]


def points_in(data: bytes) -> list[bytes]:
    """The points that follow each other."""
    return [data[i : i + POINT] for i in range(0, len(data), POINT)]


class Holder:
    """A label holder that asks a party whatever it likes, and keeps the bytes that it receives.

    Every method is what an honest one does; arguments change it.
    """

    def __init__(self, party: AlignmentParty, ids: Sequence[str]) -> None:
        self.party = party
        self.ids = list(ids)
        self.salt = secrets.token_bytes(SALT)
        self.heard = b""
        self.challenge = ListChallenge([], self.salt)

    def ask(self, question: bytes) -> bytes:
        answer = self.party.respond(Frame(FrameKind.ASK, 3, 0, question))
        assert (answer.kind, answer.number) == (FrameKind.ANSWER, 3)
        self.heard += answer.body
        return answer.body

    def size(self) -> int:
        answer = self.ask(messages.write(AlignmentKind.SIZE, len(self.ids)))
        return messages.read_count(answer, AlignmentKind.SIZE)

    def question(self, key: bytes | None = None, **changes: Any) -> ShardQuestion:
        """A question about the one shard that few ids need; decoys are at the end."""
        asked = ShardQuestion(self.salt, len(self.ids), 1, 0, b"")
        if "points" not in changes:
            entries = psi.filled(np.arange(len(self.ids), dtype=np.uint32), psi.holder_points(len(self.ids), 1))
            asked = replace(asked, points=blinded(key or new_key(), psi.texts_of(self.ids, entries)))
        return replace(asked, **changes)

    def matches(self) -> dict[str, Place]:
        """Learn which of its ids the party has, and where."""
        key = new_key()
        question = self.question(key)
        answer = self.ask(question.to_bytes())
        own, both = messages.read_points(answer, len(self.party.ids), question.size)
        places = {point: (0, place) for place, point in enumerate(points_in(multiply(key, own)))}
        return {name: places[point] for name, point in zip(self.ids, points_in(both), strict=False) if point in places}

    def places(self, ids: Sequence[str], places: Sequence[Place], **changes: Any) -> PlacesPart:
        """A list of these ids in this order, with these places."""
        self.challenge = ListChallenge(ids, self.salt)
        return replace(PlacesPart(self.salt, self.challenge.point, len(ids), 0, list(places)), **changes)

    def send_list(self, ids: Sequence[str], places: Sequence[Place], **changes: Any) -> bool:
        """Send a list; return whether the party seems to hold the same."""
        answer = self.ask(self.places(ids, places, **changes).to_bytes())
        count, response = messages.read_place_answer(answer, len(ids))
        assert response
        assert count == len(ids)
        return self.challenge.check(*response)

    def send_splits(self, count: int, **changes: Any) -> int:
        confirmation = self.challenge.confirmation or bytes(TAG)
        part = replace(SplitsPart(self.salt, confirmation, 1, 0, bytes(count)), **changes)
        return messages.read_count(self.ask(part.to_bytes()), AlignmentKind.SPLITS)


class MaliciousParty(AlignmentParty):
    """A party that changes its own answers; `deviations` holds how, by the kind of the question."""

    deviations: ClassVar[dict[AlignmentKind, Answer]] = {}

    def _answer(self, question: bytes) -> bytes:
        answer = super()._answer(question)
        change = self.deviations.get(AlignmentKind(question[0]))
        return change(answer) if change else answer


def deviating(deviations: dict[AlignmentKind, Answer]) -> type[MaliciousParty]:
    """A kind of party with these deviations."""
    return type("DeviatingParty", (MaliciousParty,), {"deviations": deviations})


def on_points(count: int, change: Callable[[list[bytes], list[bytes]], tuple[list[bytes], list[bytes]]]) -> Answer:
    """A deviation in the answer about a shard of a party with so many ids, none of it padding."""

    def changed(answer: bytes) -> bytes:
        body = answer[len(messages.write(AlignmentKind.BLINDED, count)) :]
        every = points_in(body)
        own, both = change(every[:count], every[count:])
        return messages.write_points(b"".join(own), b"".join(both))

    return changed


def neighbours(own: list[bytes], both: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Answer for every id with the point of the next one."""
    return own, both[1:] + both[:1]


def swapped(own: list[bytes], both: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Answer for the first and the hundredth entry with each other's point."""
    return own, [both[99], *both[1:99], both[0], *both[100:]]


def one_point(own: list[bytes], both: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Answer for all ids with one point."""
    return own, [both[0]] * len(both)


def own_twice(own: list[bytes], both: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Have one point of its own twice."""
    return [own[0], *own[:-1]], both


def own_rewritten(own: list[bytes], both: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Have one point of its own twice, the second time in other bytes: X25519 ignores the highest bit."""
    other = own[0][:-1] + bytes((own[0][-1] | 0x80,))
    return [own[0], other, *own[2:]], both


def too_many(own: list[bytes], both: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Bring more points than it said."""
    return [*own, *points_in(blinded(new_key(), [b"+guess-1", b"+guess-2"]))], both


def small_order(own: list[bytes], both: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Have a point that is the same under every key."""
    return [bytes(POINT), *own[1:]], both


def false_response(answer: bytes) -> bytes:
    """Respond as for another list."""
    return answer[:-1] + bytes((answer[-1] ^ 1,))

"""Peers that speak the training protocol and deviate from it wherever a test wants: a party, and a server.

Both have an honest participant at hand, whose answers they may send, change or keep.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from meetings import WAITING, Meeting, Rogue, answer_of

from efvfl.errors import EfvflError, LinkError
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.wire import Wire, memory_pair
from efvfl.network.training.party_process import PartyProcess
from efvfl.wire.message import Kind, Message
from efvfl.wire.packet import DTYPES, Packet

Sent = Frame | bytes
Change = Callable[[Frame], Sequence[Sent]]  # what is sent in place of an honest answer


# What may be sent in place of an honest answer.


def nothing(honest: Frame) -> Sequence[Sent]:
    """Stay connected, and say nothing."""
    return ()


def filled(value: float) -> Change:
    """The report or the representations with all numbers the same, not compressed."""

    def change(honest: Frame) -> Sequence[Sent]:
        if honest.kind == FrameKind.ANSWER:
            packet = Packet.from_bytes(honest.body[1:])
            return [replace(honest, body=b"\0" + _full(packet, value).to_bytes())]
        message = Message.from_bytes(honest.body)
        packets = {block: (_full(sent[0], value),) for block, sent in message.packets.items()}
        return [replace(honest, body=replace(message, packets=packets).to_bytes())]

    return change


def _full(packet: Packet, value: float) -> Packet:
    return Packet(0, DTYPES[0], packet.shape, np.full(packet.shape, value, DTYPES[0]).tobytes())


def body(data: bytes) -> Change:
    """An answer of the right kind and number with anything in it."""
    return lambda honest: [replace(honest, body=data)]


# A party.


class MaliciousParty(Rogue):
    """Has the victim's name and its rows; honest up to a point, and not after that."""

    def deviate(self, kind: FrameKind, change: Change, after: int = 0) -> Frame:
        """Be honest until it is asked something of this kind, after so many of them; return what it was asked then."""
        asked = self.play(kind, after)
        for sent in change(self.answer(asked)):
            self.send(sent)
        return asked


class StubbornParty:
    """Deviates at every request from some number on, and dials again whenever it is cut off. On a thread of its own."""

    def __init__(self, meeting: Meeting, kind: FrameKind, change: Change, after: int) -> None:
        self.meeting = meeting
        self.kind = kind
        self.change = change
        self.left = after
        self.dials = 0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(5)

    def _run(self) -> None:
        while not self.stopping.wait(0.01):
            self.dials += 1
            rogue = Rogue(self.meeting)
            with contextlib.suppress(LinkError):
                rogue.send(rogue.member.hello())
                while not self.stopping.is_set():
                    self._respond(rogue)
            rogue.wire.close()

    def _respond(self, rogue: Rogue) -> None:
        try:
            asked = Frame.from_bytes(rogue.wire.receive(0.05))
        except TimeoutError:
            return
        if asked.kind == FrameKind.WELCOME:
            return
        if asked.kind == FrameKind.REFUSE:
            raise LinkError("refused.")
        honest = rogue.answer(asked)
        deviates = asked.kind == self.kind and self.left <= 0
        self.left -= asked.kind == self.kind
        for sent in self.change(honest) if deviates else [honest]:
            rogue.send(sent)


# A server.


class Stopped(Exception):
    """The party dialled more often than it should."""


def played(member: PartyProcess, *frames: Sent, dials: int = 1) -> tuple[BaseException, list[Frame]]:
    """Let a party join a server that welcomes it and sends these frames; return how that ended and what it sent."""
    heard: list[Frame] = []
    wires: list[Wire] = []

    def by() -> Wire:
        if len(wires) == dials:
            raise Stopped
        near, far = memory_pair()
        for frame in (json_frame(FrameKind.WELCOME, {"number": 0}), *frames):
            near.send(frame if isinstance(frame, bytes) else frame.to_bytes())
        wires.append(near)
        return far

    with pytest.raises((EfvflError, Stopped)) as caught:
        Dialler(member, by, replace(WAITING, tick=5.0, first=0.01)).run()
    for wire in wires:
        with contextlib.suppress(LinkError):
            while True:
                heard.append(Frame.from_bytes(wire.receive(1.0)))
    return caught.value, heard


class FloodingServer:
    """The far end of a wire on which one frame arrives again and again, as fast as it is read."""

    settled = True

    def __init__(self, frame: Frame, most: int, at: Callable[[int], None] = lambda count: None) -> None:
        """Send so many of them, then cut the wire; `at` is told how many were read."""
        self.data = frame.to_bytes()
        self.most = most
        self.at = at
        self.read = 0

    def send(self, data: bytes) -> None:
        """Take what the party says, and do nothing about it."""

    def receive(self, timeout: float | None) -> bytes:
        """Return the frame at once."""
        self.read += 1
        self.at(self.read)
        if self.read > self.most:
            raise LinkError("all was sent.")
        return self.data

    def close(self) -> None:
        """Nothing is open."""

    def trust(self) -> None:
        """Frames are short."""


class MaliciousServer:
    """Asks a party whatever it likes, one request after another, and counts what it learns."""

    def __init__(self, member: PartyProcess) -> None:
        self.member = member
        self.requests = 0
        self.reports = 0

    def request(self, message: Message) -> Message:
        """Send a message as the next request; return the reply."""
        frame = Frame(FrameKind.REQUEST, self.requests, 0, message.to_bytes())
        reply = Message.from_bytes(answer_of(self.member, frame).body)
        self.requests += 1
        self.reports += reply.kind == Kind.REPORT
        return reply

    def begin(self, step: int, hold: bool = False) -> Message:
        """Ask for a report on a step."""
        return self.request(Message(Kind.BEGIN, step, {}, hold))

    def cotangent(self, step: int, hold: bool = False) -> Message:
        """Answer a report with a cotangent of zeros."""
        party = self.member.party
        shape = (party.plan.report_rows.count(step), *party.up.width)
        packet = Packet(0, DTYPES[0], shape, np.zeros(shape, DTYPES[0]).tobytes())
        return self.request(Message(Kind.COTANGENT, step, {party.number: (packet,)}, hold))

    def ask(self, table: object) -> bytes:
        """Ask for rows; return the answer."""
        return answer_of(self.member, Frame(FrameKind.ASK, 1, 0, json.dumps(table).encode())).body

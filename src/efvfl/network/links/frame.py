"""What travels on a link: frames around messages, cut into pieces that gRPC carries. Layout: docs/protocol.md.

A frame has a checksum of its own: TLS guards against strangers, the checksum against our own mistakes and bad memory. A
frame that does not add up closes the link, and the next handshake finds out what is missing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from efvfl.errors import WireError
from efvfl.wire.message import Kind as MessageKind
from efvfl.wire.message import Message
from efvfl.wire.packet import Packet, Reader, number

PROTOCOL: Final = 1
PIECE: Final = 1 << 20  # bytes of one gRPC message: gRPC itself refuses more than 4 MiB unless told otherwise
MAX_WORDS: Final = 1 << 20  # bytes of a frame that is not a message


class FrameKind(IntEnum):
    """Every kind of frame there is, with its code on the wire."""

    HELLO = 1  # party: who I am and where I stand
    WELCOME = 2  # server: you may take part
    REFUSE = 3  # either: what is wrong; the link closes after it
    REQUEST = 4  # server: message number n
    REPLY = 5  # party: the answer to request n
    ASK = 6  # server: exact representations of rows, to evaluate or predict; changes nothing
    ANSWER = 7  # party: those representations
    STOP = 8  # server: all is done after request n
    BYE = 9  # party: saved, and gone


_KINDS = frozenset(FrameKind)


@dataclass(frozen=True, slots=True)
class Frame:
    """One unit of a link."""

    kind: FrameKind
    number: int = 0  # of the request, or of the question
    durable: int = 0  # the sender's checkpoint covers all requests below this one: their log may be forgotten
    body: bytes = b""

    def to_bytes(self) -> bytes:
        """Return kind, number, durable and body after their CRC-32."""
        content = b"".join((bytes((self.kind,)), number(self.number), number(self.durable), self.body))
        return zlib.crc32(content).to_bytes(4, "little") + content

    @classmethod
    def from_bytes(cls, data: bytes) -> Frame:
        """Read a frame that fills `data`."""
        reader = Reader(data)
        expected = int.from_bytes(reader.take(4, "a frame's checksum"), "little")
        if zlib.crc32(memoryview(data)[4:]) != expected:
            raise WireError("a frame's checksum is wrong: it was altered or cut on its way.")
        code = reader.byte("a frame's kind")
        if code not in _KINDS:
            raise WireError(f"frame kind {code} came, but only 1 to {max(FrameKind)} exist.")
        first, durable = reader.number("a frame's number"), reader.number("a frame's durable mark")
        return cls(FrameKind(code), first, durable, data[reader.place :])

    def words(self) -> dict[str, Any]:
        """Return the body as the JSON object it must be."""
        if len(self.body) > MAX_WORDS:
            raise WireError(f"{self.kind.name} of {len(self.body):,} bytes came, at most {MAX_WORDS:,} are expected.")
        try:
            table = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise WireError(f"{self.kind.name} is not JSON: {error}") from error
        if not isinstance(table, dict):
            raise WireError(f"{self.kind.name} holds a {type(table).__name__}, a table is expected.")
        return table


def words(kind: FrameKind, table: Mapping[str, Any], number: int = 0, durable: int = 0) -> Frame:
    """Return a frame that carries JSON."""
    return Frame(kind, number, durable, json.dumps(table, sort_keys=True, allow_nan=False).encode())


def pieces(data: bytes) -> Iterator[bytes]:
    """Cut a frame: every piece starts with 1 if more follow, 0 if it is the last."""
    for start in range(0, max(len(data), 1), PIECE):
        stop = start + PIECE
        yield bytes((stop < len(data),)) + data[start:stop]


@dataclass(slots=True)
class Assembler:
    """Puts pieces together again, up to a limit."""

    limit: int
    held: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, piece: bytes) -> bytes | None:
        """Take a piece; return the frame's bytes if it is complete."""
        if not 1 <= len(piece) <= PIECE + 1 or piece[0] > 1 or (piece[0] and len(piece) <= PIECE):
            raise WireError(f"a piece of {len(piece):,} bytes came that is not one of ours.")
        self.size += len(piece) - 1
        if self.size > self.limit:
            raise WireError(f"a frame of more than {self.limit:,} bytes came, which nothing here can need.")
        self.held.append(piece[1:])
        if piece[0]:
            return None
        whole = b"".join(self.held) if len(self.held) > 1 else self.held[0]
        self.held, self.size = [], 0
        return whole


def pack(messages: Mapping[str, Message]) -> bytes:
    """Return one step's messages to all parties as one entry of a log: a packet that several share is kept once."""
    packets: dict[int, tuple[int, Packet]] = {}
    parts: list[bytes] = [number(len(messages))]
    for name, message in messages.items():
        places = [(b, packets.setdefault(id(p), (len(packets), p))[0]) for b, ps in message.packets.items() for p in ps]
        code = name.encode()
        parts += (number(len(code)), code, bytes((message.kind << 1 | message.hold,)), number(message.step))
        parts += (number(len(places)), *(number(n) for pair in places for n in pair))
    return b"".join((number(len(packets)), *(p.to_bytes() for _, p in packets.values()), *parts))


def unpack(data: bytes) -> dict[str, Message]:
    """Read what `pack` wrote."""
    reader = Reader(data)
    packets = [Packet.read(reader) for _ in range(reader.number("a log entry's packets"))]
    messages = {}
    for _ in range(reader.number("a log entry's parties")):
        name = reader.take(reader.number("a name's length"), "a name").decode(errors="replace")
        code, step = reader.byte("a message's kind"), reader.number("a message's step")
        blocks: dict[int, tuple[Packet, ...]] = {}
        for _ in range(reader.number("a message's packets")):
            block, place = reader.number("a packet's block"), reader.number("a packet's place")
            if place >= len(packets):
                raise WireError(f"a log entry refers to packet {place} of {len(packets)}.")
            blocks[block] = (*blocks.get(block, ()), packets[place])
        if code >> 1 > max(MessageKind):
            raise WireError(f"a log entry holds message kind {code >> 1}.")
        messages[name] = Message(MessageKind(code >> 1), step, blocks, bool(code & 1))
    reader.end("log entry")
    return messages


def printable(text: str) -> str:
    """Return a text that cannot play tricks on a terminal: others may have had a hand in it."""
    return "".join(c if c.isprintable() else "?" for c in text)

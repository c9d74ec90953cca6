"""Frames: what travels on a connection, around messages. Layout: docs/protocol.md.

A frame has a checksum of its own: TLS guards against other people, the checksum against our own mistakes and faulty
memory. A wrong checksum closes the connection, and the next handshake finds out what is missing.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from efvfl.errors import WireError
from efvfl.wire.message import Kind as MessageKind
from efvfl.wire.message import Message
from efvfl.wire.packet import Packet, Reader, number

PROTOCOL: Final = 3
DIGEST: Final = 16  # bytes of a digest of a request, or of what is remembered
MAX_JSON: Final = 1 << 20  # bytes of a frame that carries JSON


class FrameKind(IntEnum):
    """All kinds of frames, with their codes on the wire."""

    HELLO = 1  # party: its name, settings and position
    WELCOME = 2  # server: the party may take part
    REFUSE = 3  # either: what is wrong; the connection closes after it
    REQUEST = 4  # server: message number n
    REPLY = 5  # party: the answer to request n
    ASK = 6  # server: exact representations of rows, to evaluate or predict; changes nothing
    ANSWER = 7  # party: those representations
    STOP = 8  # server: the run ends after request n; a digest of what it remembers of this party
    BYE = 9  # party: saved, and leaving; a digest of what it remembers


_KINDS = frozenset(FrameKind)


@dataclass(frozen=True, slots=True)
class Frame:
    """One unit of a connection."""

    kind: FrameKind
    number: int = 0  # of the request, or of the question
    durable: int = 0  # the sender's checkpoint covers all requests below this one: their log entries may be deleted
    body: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the frame as bytes: a CRC-32, then kind, number, durable and body."""
        content = b"".join((bytes((self.kind,)), number(self.number), number(self.durable), self.body))
        return zlib.crc32(content).to_bytes(4, "little") + content

    @classmethod
    def from_bytes(cls, data: bytes) -> Frame:
        """Read a frame from all of `data`."""
        reader = Reader(data)
        expected = int.from_bytes(reader.take(4, "a frame's checksum"), "little")
        if zlib.crc32(memoryview(data)[4:]) != expected:
            raise WireError("a frame's checksum is wrong: it was altered or truncated in transit.")
        code = reader.byte("a frame's kind")
        if code not in _KINDS:
            raise WireError(f"expected a frame kind from 1 to {max(FrameKind)}, got {code}.")
        first, durable = reader.number("a frame's number"), reader.number("a frame's durable mark")
        return cls(FrameKind(code), first, durable, data[reader.place :])

    def json(self) -> dict[str, Any]:
        """Return the body, which must be a JSON object."""
        if len(self.body) > MAX_JSON:
            raise WireError(f"expected a {self.kind.name} of at most {MAX_JSON:,} bytes, got {len(self.body):,}.")
        try:
            table = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise WireError(f"{self.kind.name} is not JSON: {error}") from error
        if not isinstance(table, dict):
            raise WireError(f"expected a JSON object in {self.kind.name}, got a {type(table).__name__}.")
        return table


def json_frame(kind: FrameKind, table: Mapping[str, Any], number: int = 0, durable: int = 0) -> Frame:
    """Return a frame that carries JSON."""
    return Frame(kind, number, durable, json.dumps(table, sort_keys=True, allow_nan=False).encode())


def digest_of(data: bytes) -> bytes:
    """Return a digest by which a request can be told from another one."""
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def pack(messages: Mapping[str, Message]) -> bytes:
    """Return one step's messages to all parties as one log entry; a packet that several share is stored once."""
    packets: dict[int, tuple[int, Packet]] = {}
    parts: list[bytes] = [number(len(messages))]
    for name, message in messages.items():
        places = [(b, packets.setdefault(id(p), (len(packets), p))[0]) for b, ps in message.packets.items() for p in ps]
        code = name.encode()
        parts += (number(len(code)), code, bytes((message.kind << 1 | message.hold,)), number(message.step))
        parts += (number(len(places)), *(number(n) for pair in places for n in pair))
    return b"".join((number(len(packets)), *(p.to_bytes() for _, p in packets.values()), *parts))


def unpack(data: bytes) -> dict[str, Message]:
    """Return the messages in a log entry that `pack` made."""
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

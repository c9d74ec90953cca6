"""The audit log: one JSON line for every frame sent or received, and the totals that `efvfl audit` prints."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from efvfl.errors import CheckpointError, ConfigError, WireError
from efvfl.network.align.messages import AlignmentKind
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.links.framing import HEAD
from efvfl.network.links.socket_bytes import SocketBytes
from efvfl.util.files import private
from efvfl.wire.message import KIND_NAMES
from efvfl.wire.packet import Reader, length

FILE = "ledger.jsonl"
DIRECTIONS = ("out", "in")
INTERVAL = 1.0  # seconds between two counts of socket bytes

CONTENTS = {
    "begin": "a step's number: report on it",
    "report": "the compressed change of a party's representation of the batch's rows",
    "cotangent": "the derivative of the loss by a party's representation of the batch's rows",
    "relay": "the other parties' reports as received, the fusion model where it is sent, which rows are left out",
    "aggregate": "the combined representation of the batch, the fusion model where it is sent, which rows are left out",
    "late": "the answer to a report that came late, as it would have been on time, and the step to continue at",
    "sync": "what a party that was away has missed: its own surrogate as the server has it, others' where relayed",
    "ready": "nothing: learnt, and waiting",
    "hello": "name, shared settings, numbers of rows and list, digests of ids' order, memories, last request, old run",
    "welcome": "how many requests there have been",
    "refuse": "why the other side is refused, as a text",
    "ask": "which rows to represent exactly: a split and places, or ids; of which column values are moved; its worth",
    "evaluate": "nothing: report on the validation rows",
    "final": "nothing: represent validation and test rows finely, for training has ended",
    "evaluation": "the compressed change of a party's validation rows; at the end also test rows, a byte a number",
    "decide": "whether this model is kept, or the kept one used, and the learning rate",
    "answer": "exact representations of rows, to evaluate, predict or see which columns matter; no training bytes",
    "ask-size": "how many ids the label holder brings",
    "answer-size": "how many ids the party brings",
    "ask-blinded": "the label holder's ids as points that look random without its key",
    "answer-blinded": "these points under the party's key too, and its ids as points that look random without its key",
    "ask-digests": "a salt",
    "answer-digests": "salted digests of all the party's ids: who has the salt can test guesses",
    "ask-rows": "places of the party's own points or digests that all share, and a test whether both hold that list",
    "answer-rows": "how many of them were received, and the response to the test",
    "ask-splits": "the splits of the shared rows, in the order of the ids, and the number of the list",
    "answer-splits": "how many of them were received",
    "ask-numbers": "the numbers of the party's rows on the label holder's list, and how many rows each split has",
    "answer-numbers": "how many of them were received",
    "ask-everybody": "with shared labels: who has which rows, and the labels",
    "answer-everybody": "how many rows of it were received",
    "ask-void": "why there is no list of shared rows",
    "answer-void": "nothing",
    "stop": "a digest of what both remember: all is done",
    "bye": "the same digest, as the party has it: saved",
}

LACKING = b"\x02["  # how an answer begins that says which ids a party lacks
_ALIGNMENT_KINDS = {bytes((kind,)): kind.name.lower() for kind in AlignmentKind}


@dataclass(frozen=True)
class AuditLine:
    """One line: a frame, or the bytes on the sockets since the last such line."""

    time: float
    peer: str
    direction: Literal["in", "out"]
    kind: str
    number: int  # of the request or question
    step: int | None
    payload: int  # bytes of the message
    frame: int  # bytes in the stream: payload, numbers, checksum and length
    socket: int = 0  # 0 but in lines about sockets: bytes since the last such line, TLS included


class AuditLog:
    """Writes the audit log of one participant."""

    def __init__(self, folder: Path) -> None:
        """Append to the folder's file."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Unbuffered: closing it must not try again to write what did not fit on a full disk.
            self._file = open(folder / FILE, "ab", buffering=0, opener=private)  # noqa: SIM115
        except OSError as error:
            raise CheckpointError(f"cannot write {folder / FILE}: {error}.") from error
        self.totals: dict[str, int] = {"in": 0, "out": 0}
        self._sockets: SocketBytes | None = None
        self._counted = {"out": 0, "in": 0}
        self._last_count = 0.0

    def watch(self, sockets: SocketBytes) -> None:
        """Write down what is counted on these sockets from now on."""
        self._sockets = sockets

    def tick(self) -> None:
        """Count the bytes on the sockets if it is time; cheap enough to call often."""
        if time.monotonic() - self._last_count >= INTERVAL:
            self.count()

    def count(self) -> None:
        """Write down the bytes on the sockets since the last count."""
        self._last_count = time.monotonic()
        if self._sockets is None:
            return
        for direction, total in zip(("out", "in"), self._sockets.totals(), strict=True):
            if more := total - self._counted[direction]:
                self._counted[direction] = total
                self._write("", direction, "socket", 0, None, 0, 0, f', "socket": {more}')

    def record(self, peer: str, direction: str, frame: Frame) -> None:
        """Write down a frame."""
        size = HEAD.size + 4 + 1 + length(frame.number) + length(frame.durable) + len(frame.body)
        self.totals[direction] += size
        kind, step = _kind_and_step(frame)
        self._write(peer, direction, kind, frame.number, step, len(frame.body), size)

    def _write(
        self,
        peer: str,
        direction: str,
        kind: str,
        number: int,
        step: int | None,
        payload: int,
        size: int,
        more: str = "",
    ) -> None:
        # JSON of known keys: in a round of milliseconds, an encoder for anything would be felt.
        data = (
            f'{{"time": {round(time.time(), 3)}, "peer": {json.dumps(peer)}, "direction": "{direction}", '
            f'"kind": "{kind}", "number": {number}, "step": {"null" if step is None else step}, '
            f'"payload": {payload}, "frame": {size}{more}}}\n'
        ).encode()
        place = self._file.tell()
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, "only a part was written")
        except OSError as error:
            with contextlib.suppress(OSError):  # half a line must not precede the next one
                self._file.truncate(place)
            raise CheckpointError(
                f"cannot write {self._file.name}: {error}. Free some space, then give the same command again: all goes "
                "on from what was saved."
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _kind_and_step(frame: Frame) -> tuple[str, int | None]:
    if frame.kind in (FrameKind.REQUEST, FrameKind.REPLY):
        try:
            reader = Reader(frame.body[:16])
            reader.take(3, "a message's start")
            return KIND_NAMES[reader.byte("its kind") >> 1], reader.number("its step")
        except (WireError, LookupError):
            return "unreadable", None
    kind = frame.kind.name.lower()
    lacking = frame.body[:2] == LACKING and b"]\x00" in frame.body  # an answer about rows: no number is written so
    if frame.kind in (FrameKind.ASK, FrameKind.ANSWER) and frame.body[:1] in _ALIGNMENT_KINDS and not lacking:
        return f"{kind}-{_ALIGNMENT_KINDS[frame.body[:1]]}", None
    return kind, None


def read(folder: Path) -> list[AuditLine]:
    """Return a participant's lines, without one that a crash truncated."""
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}. Name a participant's folder.") from error
    lines = []
    for row in text.splitlines():
        try:
            table: dict[str, Any] = json.loads(row)
            lines.append(AuditLine(**table))
        except (ValueError, TypeError):
            continue
    return lines


def folders(run: Path) -> list[Path]:
    """Return the participants' folders in a run's folder, or that folder itself if it is a participant's."""
    if (run / FILE).exists():
        return [run]
    found = sorted(path.parent for path in run.glob(f"*/{FILE}"))
    if not found:
        raise ConfigError(f"there is no {FILE} in {run} or the folders in it: name a run of `efvfl serve` or `join`.")
    return found


def contents(lines: list[AuditLine]) -> str:
    """Return a description of every kind that occurs."""
    kinds = sorted({line.kind for line in lines if not line.socket})
    return "\n".join(f"  {kind}: {CONTENTS.get(kind, '?')}" for kind in kinds)


@dataclass(frozen=True)
class AuditTotals:
    """What was sent and received, added up."""

    kinds: dict[tuple[str, str], list[int]]  # by direction and kind: frames, payload bytes, framed bytes
    sockets: dict[str, int]  # by direction; empty: not counted

    @classmethod
    def of(cls, lines: list[AuditLine]) -> AuditTotals:
        """Add up the lines of a participant."""
        kinds: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        sockets: dict[str, int] = defaultdict(int)
        for line in lines:
            if line.socket:
                sockets[line.direction] += line.socket
                continue
            entry = kinds[line.direction, line.kind]
            entry[0] += 1
            entry[1] += line.payload
            entry[2] += line.frame
        return cls(kinds, sockets)

    def rows(self, direction: str) -> list[tuple[str, list[int]]]:
        """Return the kinds of a direction in their order, and their sums."""
        return sorted((kind, entry) for (d, kind), entry in self.kinds.items() if d == direction)


def table(name: str, lines: list[AuditLine]) -> Table:
    """Return a table of totals by direction and kind."""
    totals = AuditTotals.of(lines)
    out = Table(title=f"{name}: what was sent (out) and received (in)", title_justify="left")
    for heading in ("", "kind", "frames", "payload bytes", "framed bytes", "bytes on the socket"):
        out.add_column(heading, justify="right" if "bytes" in heading or heading == "frames" else "left")
    for direction in DIRECTIONS:
        rows = totals.rows(direction)
        for kind, (count, payload, frame) in rows:
            out.add_row(direction, kind, f"{count:,}", f"{payload:,}", f"{frame:,}")
        total = [sum(entry[i] for _, entry in rows) for i in range(3)]
        on_socket = f"{totals.sockets[direction]:,}" if totals.sockets else "not counted"
        out.add_row(direction, "total", *(f"{n:,}" for n in total), on_socket, end_section=True, style="bold")
    return out


def as_table(name: str, lines: list[AuditLine]) -> dict[str, Any]:
    """Return the same totals for JSON, with what each kind contains."""
    totals = AuditTotals.of(lines)
    found: dict[str, Any] = {"participant": name}
    for direction in DIRECTIONS:
        kinds = {
            kind: {"frames": frames, "payload_bytes": payload, "framed_bytes": framed, "contains": CONTENTS.get(kind)}
            for kind, (frames, payload, framed) in totals.rows(direction)
        }
        on_socket = totals.sockets[direction] if totals.sockets else None
        found[direction] = {"kinds": kinds, "socket_bytes": on_socket}
    return found

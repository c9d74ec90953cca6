"""Files of a run as they grow: read in pieces, never more than so much at a time, and only what is new."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from efvfl.network.ops import audit_log

PIECE: Final = 4 << 20  # bytes that one look reads of a file
LINE: Final = 64 << 10  # bytes of the longest line that is read
KINDS: Final = 100  # of frames, by direction; what a damaged file has more of is left out
PEERS: Final = 1000

_SINCE = frozenset({"hello", "welcome"})  # what a connection begins with, as it comes in


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the table in a small file; None if there is none, or it is none."""
    try:
        with open(path, "rb") as file:
            table = json.loads(file.read(PIECE))
    except (OSError, ValueError, RecursionError):
        return None
    return table if isinstance(table, dict) else None


def last_lines(path: Path) -> list[str]:
    """Return the lines of a file, the last ones if it is large."""
    try:
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - PIECE)
            file.seek(start)
            text = file.read(PIECE)
    except OSError:
        return []
    lines = text.decode("utf-8", errors="replace").splitlines()
    return lines[1:] if start else lines


def stamp(path: Path) -> tuple[int, int, int]:
    """Return what changes when a file does."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


class LedgerTail:
    """Adds up an audit log as it grows: sums by direction and kind, and when each peer came and was last heard."""

    def __init__(self, path: Path) -> None:
        """Begin at the first line."""
        self.path = path
        self._begin()

    def _begin(self) -> None:
        self.place, self.size, self._inode = 0, 0, 0
        self.sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])  # frames and bytes
        self.peers: dict[str, dict[str, float]] = {}

    @property
    def share(self) -> float:
        """How much of the file is added up."""
        return self.place / self.size if self.size else 1.0

    def look(self) -> None:
        """Read what is new, at most a piece of it."""
        try:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self.place:  # another file
                    self._begin()
                self._inode, self.size = found.st_ino, found.st_size
                file.seek(self.place)
                piece = file.read(PIECE)
        except OSError:
            return
        end = piece.rfind(b"\n") + 1
        if not end and len(piece) == PIECE:  # no line is so long: go on behind it
            end = len(piece)
        self.place += end
        for line in piece[:end].split(b"\n"):
            if 0 < len(line) <= LINE:
                self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            table = json.loads(line)
            key, size = (str(table["direction"]), str(table["kind"])[:40]), int(table["frame"])
            peer, time = str(table["peer"])[:200], float(table["time"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return  # cut short by a crash
        if table.get("socket") or (key not in self.sums and len(self.sums) >= KINDS):
            return
        entry = self.sums[key]
        entry[0] += 1
        entry[1] += size
        if key[0] == "in" and (peer in self.peers or len(self.peers) < PEERS):
            seen = self.peers.setdefault(peer, {"since": time, "heard": time})
            seen["heard"] = time
            if key[1] in _SINCE:
                seen["since"] = time

    def table(self) -> list[dict[str, Any]]:
        """Return the sums, what left first, the largest first."""
        order = sorted(self.sums.items(), key=lambda item: (item[0][0] != "out", -item[1][1]))
        return [
            {"direction": d, "kind": k, "frames": n, "bytes": size, "what": audit_log.CONTENTS.get(k, "")}
            for (d, k), (n, size) in order
        ]

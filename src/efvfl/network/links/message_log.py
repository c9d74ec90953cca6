"""A write-ahead log of the messages that were sent, so that the *other* side can catch up after a crash.

Entries have increasing numbers and are stored in segments. A new segment begins at every checkpoint of the owner, and a
segment is deleted when the peer's checkpoint has passed all its entries.

A write reaches the kernel before the message is sent, so a killed process loses nothing. The disk is synchronised
(fsync) once a checkpoint, not once a message: an entry younger than the owner's checkpoint is computed again, bit for
bit, from that checkpoint and the peer's log, so only entries older than it must survive a power failure.

So the end of the last segment may be torn, and is dropped. Anything else that is wrong was changed by the disk: such a
segment is set aside, and nothing behind it is touched.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Final

from efvfl.errors import CheckpointError, DamagedError
from efvfl.util.files import private, sync_folder

MARK: Final = b"efvflog2"  # the first bytes of a segment: the version of its layout
_MOST: Final = (1 << 64) - 2  # the largest number that another can follow
_HEAD: Final = struct.Struct("<QQQI")  # number, the end before it, length, CRC-32 of these and the entry


def _checksum(number: int, before: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(struct.pack("<QQQ", number, before, len(data))))


def _entry_at(data: bytes | mmap.mmap, place: int) -> tuple[int, int, int] | None:
    """Return number, the end before it and length of the entry at a place; None if there is no intact one."""
    start = place + _HEAD.size
    if start > len(data):
        return None
    number, before, length, checksum = _HEAD.unpack_from(data, place)
    if start + length > len(data) or _checksum(number, before, data[start : start + length]) != checksum:
        return None
    return number, before, length


def _goes_on(data: mmap.mmap, place: int, end: int) -> bool:
    """Whether an intact entry follows a bad one: then its bytes were changed, not cut short by a crash."""
    if place + _HEAD.size > len(data):
        return False
    number, _, length, _ = _HEAD.unpack_from(data, place)
    if _entry_at(data, place + _HEAD.size + length) is not None:
        return True
    for following in {end + 1, min(number, _MOST) + 1}:  # its length may be what has changed: look for the next one
        found = data.find(struct.pack("<Q", following), place)
        while found >= 0:
            if found - 8 > place and _entry_at(data, found - 8) is not None:
                return True
            found = data.find(struct.pack("<Q", following), found + 1)
    return False


class MessageLog:
    """Numbered entries in the files of a folder."""

    def __init__(self, folder: Path) -> None:
        """Open the log in a folder, or begin one; an entry that a crash truncated is dropped."""
        self.folder = folder
        self._places: dict[int, tuple[Path, int, int]] = {}  # number: segment, offset, length
        self._last: dict[Path, int] = {}  # number of each segment's last entry
        self._unsynced: set[Path] = set()  # segments that may not have reached the disk
        self._file: BinaryIO | None = None
        self._path = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = sorted(folder.glob("*.log"))
            for path in found:
                self._scan(path, last=path == found[-1])
        except OSError as error:
            raise CheckpointError(f"cannot open the log in {folder}: {error}.") from error
        # Their writer may have been killed before it synchronised: only the last segment may ever be torn.
        self._unsynced = set(found)
        self.flush()

    def _scan(self, path: Path, last: bool) -> None:
        """Index the entries of a segment; drop a torn end of the last one, and set a damaged one aside."""
        size, place = path.stat().st_size, len(MARK)
        if not size or (size <= place and last):  # its first entry was not written
            path.unlink()
            return
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:place] != MARK:
                raise DamagedError(
                    f"expected {MARK!r} at the start of {path}, got {data[:place]!r}: it is damaged, or was left by "
                    "another version of efvfl. Go on with that one, or start all anew in empty folders."
                )
            while entry := _entry_at(data, place):
                number, before, length = entry
                if self._places and before != self.end:  # a segment between was set aside: older ones are of no use
                    self._places.clear()
                self._places[number] = (path, place, length)
                self._last[path] = number
                place += _HEAD.size + length
            torn = last and not _goes_on(data, place, self.end)
        if place < size and not torn:
            aside = path.with_name(f"{path.name}.damaged")
            os.replace(path, aside)
            raise DamagedError(
                f"the log {path} is damaged: entry {self.end} in it, at byte {place:,}, is not what was written. It is "
                f"set aside as {aside.name}. Start again: all goes on if nobody needs its entries, and whoever does "
                "will say so. Else start all anew in empty folders."
            )
        if place < size:
            os.truncate(path, place)

    @property
    def end(self) -> int:
        """The number after that of the last entry; 0 for an empty log."""
        return next(reversed(self._places)) + 1 if self._places else 0

    @property
    def start(self) -> int:
        """The number of the first entry that is still stored; 0 for an empty log."""
        return next(iter(self._places)) if self._places else 0

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def append(self, number: int, data: bytes, gap: bool = False, durable: bool = False) -> bool:
        """Write an entry; return False if it is stored already, and refuse different data under the same number.

        Numbers are consecutive, unless `gap` says that some were not for the owner. A `durable` entry survives a power
        failure from now on.
        """
        if number in self._places:
            if self.read(number) != data:
                raise CheckpointError(
                    f"message {number} differs from what was sent before the restart ({self.folder}): other hardware, "
                    "library versions, thread counts or data? Restore them, or start again in an empty folder."
                )
            return False
        if number < self.end or (self._places and number > self.end and not gap):
            raise CheckpointError(
                f"expected entry {self.end} in the log in {self.folder}, got {number}. A part of the log is missing, "
                "which a disk may have damaged: put the newest folder back, or start all anew in empty folders."
            )
        try:
            if self._file is None:
                self._path = self.folder / f"{number:012d}.log"
                self._file = open(self._path, "wb", buffering=0, opener=private)  # noqa: SIM115
                self._unsynced.add(self._path)
            place = self._file.tell()
        except OSError as error:
            raise CheckpointError(f"cannot write the log {self._path}: {error}. Nothing was sent.") from error
        try:
            head = _HEAD.pack(number, self.end, len(data), _checksum(number, self.end, data))
            entry = (head if place else MARK + head) + data
            written = self._file.write(entry)
            if written != len(entry):
                raise OSError(f"only {written} bytes were written")
            if durable:
                os.fsync(self._file.fileno())
                if place == 0:
                    sync_folder(self.folder)
        except OSError as error:
            with contextlib.suppress(OSError):  # half an entry must not precede the next one
                self._file.seek(place)
                self._file.truncate()
            raise CheckpointError(f"cannot write the log {self._path}: {error}. Nothing was sent.") from error
        self._places[number] = (self._path, place or len(MARK), len(data))
        self._last[self._path] = number
        return True

    def read(self, number: int) -> bytes:
        """Return the data of an entry."""
        if number not in self._places:
            raise CheckpointError(
                f"the log in {self.folder} keeps entries {self.start} to {self.end - 1}, but {number} is needed: a "
                "participant's folder is older than its peers know it to be, or the end of its log was damaged. Was it "
                "restored from a backup? Put the newest folder back, or start all anew in empty folders."
            )
        path, place, length = self._places[number]
        try:
            with open(path, "rb") as file:
                file.seek(place)
                data = file.read(_HEAD.size + length)
        except OSError as error:
            raise CheckpointError(f"cannot read the log {path}: {error}.") from error
        if _entry_at(data, 0) is None:
            raise DamagedError(f"the log {path} is damaged: entry {number} is not what was written. Start again.")
        return data[_HEAD.size :]

    def flush(self) -> None:
        """Make every entry survive a power failure, and begin a new segment with the next one."""
        try:
            for path in sorted(self._unsynced & {*self._last}):
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
            if self._unsynced:
                sync_folder(self.folder)
        except OSError as error:
            raise CheckpointError(f"cannot write the log in {self.folder}: {error}.") from error
        self._unsynced.clear()
        self.close()

    def forget(self, below: int) -> None:
        """Delete segments whose entries all have numbers below this one."""
        for path, last in list(self._last.items()):
            if last >= below or (self._file is not None and path == self._path):
                return
            try:
                path.unlink(missing_ok=True)
            except OSError:  # it only costs space; deleting a later one would leave a gap
                return
            for number in [n for n in self._places if n <= last]:
                del self._places[number]
            del self._last[path]

    def close(self) -> None:
        """Close the current segment."""
        if self._file is not None:
            self._file.close()
            self._file = None

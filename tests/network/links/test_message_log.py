"""What lies on disk and what travels: logs that survive torn writes and full disks, frames that notice every change."""

import errno
import io
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl.errors import CheckpointError, DamagedError, WireError
from efvfl.network.links import message_log as journals
from efvfl.network.links.frame import MAX_JSON, Frame, FrameKind, json_frame, pack, unpack
from efvfl.network.links.message_log import MessageLog
from efvfl.wire.message import Kind, Message
from efvfl.wire.packet import DTYPES, Packet, number

ENTRIES = [b"first", b"", b"\x00" * 40, b"last entry"]
HEAD = journals._HEAD.size  # bytes before an entry
MARK = len(journals.MARK)  # bytes at the start of a segment


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests leave logs as a killed process does; their files are closed at the end."""
    opened: list[MessageLog] = []
    begin = MessageLog.__init__

    def noted(log: MessageLog, folder: Path) -> None:
        opened.append(log)
        begin(log, folder)

    monkeypatch.setattr(MessageLog, "__init__", noted)
    yield
    for log in opened:
        log.close()


def filled(folder: Path, entries: list[bytes] = ENTRIES, start: int = 0) -> MessageLog:
    log = MessageLog(folder)
    for place, data in enumerate(entries, start):
        assert log.append(place, data)
    return log


def contents(log: MessageLog) -> dict[int, bytes]:
    return {place: log.read(place) for place in range(log.start, log.end) if place in log}


def segments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# A log.


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert contents(log) == dict(enumerate(ENTRIES))
    assert (log.start, log.end) == (0, 4)
    assert 3 in log
    assert 4 not in log


def test_an_empty_log_starts_where_its_owner_does(tmp_path: Path) -> None:
    log = MessageLog(tmp_path / "deep" / "down")
    assert (log.start, log.end) == (0, 0)
    assert log.append(7, b"seven")
    assert (log.start, log.end) == (7, 8)


def test_it_is_the_same_after_it_is_opened_again(tmp_path: Path) -> None:
    log = filled(tmp_path, start=5)
    log.flush()
    log.append(9, b"in a second segment")
    again = MessageLog(tmp_path)  # the first one was never closed, as after SIGKILL
    assert contents(again) == contents(log)
    assert again.append(10, b"and on")
    assert contents(MessageLog(tmp_path)) == contents(log) | {10: b"and on"}


def test_the_same_entry_again_is_no_harm_and_another_is_refused(tmp_path: Path) -> None:
    for log in (filled(tmp_path), MessageLog(tmp_path)):
        assert not log.append(2, ENTRIES[2])
        for other in (b"", ENTRIES[2] + b"\x00", b"\x01" * 40):
            with pytest.raises(
                CheckpointError, match=r"message 2 differs from what was sent before the restart .* empty folder"
            ):
                log.append(2, other)
        assert contents(log) == dict(enumerate(ENTRIES))


@pytest.mark.parametrize("place", [5, 6, 100])
def test_a_gap_is_refused(tmp_path: Path, place: int) -> None:
    log = filled(tmp_path)
    with pytest.raises(CheckpointError, match=rf"expected entry 4 in the log in .*, got {place}"):
        log.append(place, b"too early")
    assert log.append(4, b"the right one")


def test_a_gap_that_is_announced_is_kept(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert log.append(7, b"seven", gap=True)
    assert log.append(8, b"eight")
    whole = dict(enumerate(ENTRIES)) | {7: b"seven", 8: b"eight"}
    for opened in (log, MessageLog(tmp_path)):
        assert contents(opened) == whole
        assert 5 not in opened
        for place in (5, 6):
            with pytest.raises(CheckpointError, match=f"expected entry 9 in the log in .*, got {place}"):
                opened.append(place, b"not for us", gap=True)


def test_a_segment_goes_with_its_gap(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.append(7, b"seven", gap=True)
    log.flush()
    log.append(12, b"twelve", gap=True)
    log.forget(7)
    assert log.start == 0
    log.forget(8)
    assert contents(log) == contents(MessageLog(tmp_path)) == {12: b"twelve"}


def test_an_entry_before_the_first_is_refused(tmp_path: Path) -> None:
    log = filled(tmp_path, start=5)
    with pytest.raises(CheckpointError, match=r"expected entry 9 in the log in .*, got 4\."):
        log.append(4, b"too late")


@pytest.mark.parametrize("place", [4, 9, 12])
def test_what_is_not_there_cannot_be_read(tmp_path: Path, place: int) -> None:
    log = filled(tmp_path, start=5)
    with pytest.raises(CheckpointError, match=rf"keeps entries 5 to 8, but {place} is needed.*backup"):
        log.read(place)


def test_forgetting_drops_whole_segments_and_their_files(tmp_path: Path) -> None:
    log = MessageLog(tmp_path)
    for place in range(9):
        log.append(place, bytes((place,)))
        if place % 3 == 2:
            log.flush()
    assert segments(tmp_path) == ["000000000000.log", "000000000003.log", "000000000006.log"]
    log.forget(2)
    assert log.start == 0
    log.forget(5)
    assert (log.start, log.end) == (3, 9)
    assert segments(tmp_path) == ["000000000003.log", "000000000006.log"]
    assert contents(log) == contents(MessageLog(tmp_path)) == {place: bytes((place,)) for place in range(3, 9)}
    log.forget(9)
    assert segments(tmp_path) == []
    assert log.append(9, b"goes on")
    assert contents(MessageLog(tmp_path)) == {9: b"goes on"}


def test_the_segment_that_is_written_to_is_never_forgotten(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.forget(100)
    assert contents(log) == dict(enumerate(ENTRIES))
    log.append(4, b"more")
    assert contents(MessageLog(tmp_path)) == dict(enumerate([*ENTRIES, b"more"]))


def test_an_old_segment_is_forgotten_after_it_was_opened_again(tmp_path: Path) -> None:
    filled(tmp_path)
    log = MessageLog(tmp_path)
    log.append(4, b"new segment")
    log.forget(4)
    assert contents(log) == contents(MessageLog(tmp_path)) == {4: b"new segment"}


def test_a_file_that_cannot_be_removed_costs_nothing_but_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MessageLog(tmp_path)
    for place in range(6):
        log.append(place, bytes((place,)))
        if place % 2:
            log.flush()
    unlink = Path.unlink

    def busy(path: Path, missing_ok: bool = False) -> None:
        if path.name == "000000000000.log":
            raise OSError(errno.EBUSY, "busy")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", busy)
    log.forget(4)
    assert segments(tmp_path) == ["000000000000.log", "000000000002.log", "000000000004.log"]
    assert contents(MessageLog(tmp_path)) == contents(log) == {place: bytes((place,)) for place in range(6)}


def test_a_tail_torn_at_any_byte_leaves_the_entries_before_it(tmp_path: Path) -> None:
    filled(tmp_path / "whole")
    data = (tmp_path / "whole" / "000000000000.log").read_bytes()
    ends = (MARK + np.cumsum([HEAD + len(entry) for entry in ENTRIES])).tolist()
    assert ends[-1] == len(data)
    for length in range(len(data) + 1):
        folder = tmp_path / str(length)
        folder.mkdir()
        (folder / "000000000000.log").write_bytes(data[:length])
        log = MessageLog(folder)
        kept = sum(end <= length for end in ends)
        assert contents(log) == dict(enumerate(ENTRIES[:kept]))
        for place in range(kept, len(ENTRIES)):  # computed again, and written again
            assert log.append(place, ENTRIES[place])
        assert contents(MessageLog(folder)) == dict(enumerate(ENTRIES))


def two_segments(folder: Path) -> dict[int, bytes]:
    """Leave a log of two segments, of two entries and three, and return what is in it."""
    log = filled(folder, ENTRIES[:2])
    log.flush()
    for place, data in enumerate([*ENTRIES[2:], b"of the second segment"], 2):
        log.append(place, data)
    log.close()
    return contents(log)


@pytest.mark.attack(
    by="a disk",
    tries="flips a bit of a message log, at each of its 232 bytes",
    outcome="the file is set aside and the entry named, and no other segment is touched; a torn end is dropped",
)
def test_a_bit_that_changed_on_disk_is_named_and_nothing_else_is_lost(tmp_path: Path) -> None:
    whole = two_segments(tmp_path / "whole")
    first, second = segments(tmp_path / "whole")
    for name in (first, second):
        data = (tmp_path / "whole" / name).read_bytes()
        tail = len(data) - HEAD - len(b"of the second segment")  # where the last entry begins
        for place in range(len(data)):
            folder = tmp_path / f"{name}-{place}"
            shutil.copytree(tmp_path / "whole", folder)
            spoilt = bytearray(data)
            spoilt[place] ^= 1 << place % 8
            (folder / name).write_bytes(spoilt)
            if name == second and place >= tail:  # as if a crash had torn it: it is made again
                assert contents(MessageLog(folder)) == {n: whole[n] for n in range(4)}
                continue
            with pytest.raises(DamagedError, match=rf"{name} is damaged: entry \d|expected b'efvflog2' .*{name}"):
                MessageLog(folder)
            aside = name if place < MARK else f"{name}.damaged"
            assert (folder / aside).read_bytes() == bytes(spoilt)
            other = {first, second} - {name}
            assert all((folder / n).read_bytes() == (tmp_path / "whole" / n).read_bytes() for n in other)


def test_the_entry_that_changed_on_disk_is_named(tmp_path: Path) -> None:
    two_segments(tmp_path)
    path = tmp_path / "000000000002.log"
    spoilt = bytearray(path.read_bytes())
    spoilt[MARK + HEAD + len(ENTRIES[2]) + HEAD] ^= 1  # in entry 3
    path.write_bytes(spoilt)
    with pytest.raises(DamagedError, match=r"entry 3 in it, at byte 76, .* set aside as 000000000002.log.damaged"):
        MessageLog(tmp_path)


def test_a_log_goes_on_without_the_segment_that_was_set_aside(tmp_path: Path) -> None:
    """Older entries are behind a gap then, and of no use; newer ones are all there."""
    log = MessageLog(tmp_path)
    for place in range(6):
        log.append(place, bytes((place,)))
        if place % 2:
            log.flush()
    (tmp_path / "000000000002.log").rename(tmp_path / "000000000002.log.damaged")
    again = MessageLog(tmp_path)
    assert (again.start, again.end) == (4, 6)
    assert contents(again) == {4: b"\x04", 5: b"\x05"}
    assert again.append(6, b"on")
    again.flush()
    again.forget(6)
    assert segments(tmp_path) == ["000000000002.log.damaged", "000000000006.log"]
    assert contents(MessageLog(tmp_path)) == {6: b"on"}


def test_an_entry_that_changes_after_the_log_was_opened_is_not_read(tmp_path: Path) -> None:
    log = filled(tmp_path)
    path = tmp_path / "000000000000.log"
    path.write_bytes(path.read_bytes().replace(b"first", b"worst"))
    with pytest.raises(DamagedError, match=r"000000000000.log is damaged: entry 0 "):
        log.read(0)
    assert log.read(3) == ENTRIES[3]


def test_a_log_of_another_version_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "000000000000.log"
    path.write_bytes(bytes(40))
    with pytest.raises(DamagedError, match=r"another version of efvfl"):
        MessageLog(tmp_path)
    assert path.read_bytes() == bytes(40)


def test_only_the_last_segment_can_be_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process left in the kernel is on the disk before the next one begins a segment."""
    filled(tmp_path)
    names = synced(monkeypatch)
    MessageLog(tmp_path)
    assert names == ["000000000000.log", tmp_path.name]


def test_junk_after_the_last_entry_is_cut_away(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / "000000000000.log"
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(os.urandom(HEAD // 2) + b"\xff" * 100)
    assert contents(MessageLog(tmp_path)) == dict(enumerate(ENTRIES))
    assert path.stat().st_size == size


# A disk that is full or broken.


class FullDisk(io.FileIO):
    """Takes so many bytes of a write, then there is no space left."""

    room = 0
    raises = True

    def write(self, data: Any, /) -> int:
        taken = super().write(bytes(data)[: self.room])
        if self.raises:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return taken


def full(monkeypatch: pytest.MonkeyPatch, room: int, raises: bool) -> None:
    def opened(path: Path, mode: str, buffering: int = -1, opener: Any = None) -> Any:
        if mode == "rb":
            return open(path, mode)
        made = FullDisk(path, mode)
        made.room, made.raises = room, raises
        return made

    monkeypatch.setattr(journals, "open", opened, raising=False)


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("room", [0, 1, HEAD, HEAD + 3])
def test_a_full_disk_is_an_error_and_earlier_entries_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, raises: bool
) -> None:
    log = filled(tmp_path)
    log.flush()
    with monkeypatch.context() as patch:
        full(patch, room, raises)
        with pytest.raises(CheckpointError, match=r"cannot write the log .*000000000004.log: .* Nothing was sent"):
            log.append(4, b"does not fit")
    assert 4 not in log
    assert contents(log) == dict(enumerate(ENTRIES))
    log.close()
    again = MessageLog(tmp_path)  # there is space again
    assert contents(again) == dict(enumerate(ENTRIES))
    assert again.append(4, b"fits")
    assert contents(MessageLog(tmp_path)) == dict(enumerate([*ENTRIES, b"fits"]))


def test_an_entry_written_after_a_failed_one_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    log.flush()
    with monkeypatch.context() as patch:
        full(patch, HEAD + 3, raises=True)
        with pytest.raises(CheckpointError):
            log.append(4, b"does not fit")
        disk = log._file
        assert isinstance(disk, FullDisk)
        disk.room, disk.raises = 1000, False
        assert log.append(4, b"fits")
    log.flush()
    assert contents(MessageLog(tmp_path)) == dict(enumerate([*ENTRIES, b"fits"]))


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_log_that_cannot_be_begun_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    log.flush()
    with monkeypatch.context() as patch:
        patch.setattr(journals, "open", failing(errno.ENOSPC), raising=False)
        with pytest.raises(CheckpointError, match="No space left"):
            log.append(4, b"more")
    assert log.append(4, b"more")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot open the log"):
        MessageLog(tmp_path / "file")


def test_a_disk_that_does_not_keep_its_word_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(CheckpointError, match="cannot write the log"):
        log.flush()
    assert contents(log) == dict(enumerate(ENTRIES))


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is flushed to the disk from now on."""
    names: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return names


def test_settling_awaits_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path / "log")
    names = synced(monkeypatch)
    log.flush()
    assert names == ["000000000000.log", "log"]
    log.flush()  # nothing new
    assert len(names) == 2


def test_settling_awaits_entries_of_before_a_crash_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves entries in the kernel: found again, not written again, and older than a checkpoint."""
    filled(tmp_path)
    names = synced(monkeypatch)
    log = MessageLog(tmp_path)
    for place, data in enumerate(ENTRIES):
        assert not log.append(place, data)
    log.flush()
    assert "000000000000.log" in names


# Frames.

FRAME = Frame(FrameKind.REPLY, 300, 7, b"body \x00\xff")


@pytest.mark.parametrize("kind", FrameKind)
@pytest.mark.parametrize("body", [b"", b"x", os.urandom(1000)])
def test_a_frame_comes_back_as_it_was(kind: FrameKind, body: bytes) -> None:
    for first, durable in ((0, 0), (127, 128), (1 << 62, (1 << 63) - 1)):
        frame = Frame(kind, first, durable, body)
        assert Frame.from_bytes(frame.to_bytes()) == frame


def test_every_change_of_one_byte_is_noticed() -> None:
    data = FRAME.to_bytes()
    for place in range(len(data)):
        for change in range(1, 256):
            with pytest.raises(WireError, match="checksum is wrong"):
                Frame.from_bytes(data[:place] + bytes((data[place] ^ change,)) + data[place + 1 :])


def test_every_cut_and_every_addition_is_noticed() -> None:
    data = FRAME.to_bytes()
    for length in range(len(data)):
        with pytest.raises(WireError, match=r"cut short|checksum is wrong"):
            Frame.from_bytes(data[:length])
    for extra in range(256):
        with pytest.raises(WireError, match="checksum is wrong"):
            Frame.from_bytes(data + bytes((extra,)))


def sealed(content: bytes) -> bytes:
    """Content with its right checksum."""
    return zlib.crc32(content).to_bytes(4, "little") + content


@pytest.mark.parametrize("kind", [0, max(FrameKind) + 1, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(WireError, match=f"expected a frame kind from 1 to {max(FrameKind)}, got {kind}"):
        Frame.from_bytes(sealed(bytes((kind, 0, 0))))


@pytest.mark.parametrize(
    "content", [b"", b"\x05", b"\x05\x80", b"\x05\x00", b"\x05\x80\x00\x00", b"\x05" + b"\xff" * 20]
)
def test_a_frame_without_its_numbers_is_refused(content: bytes) -> None:
    with pytest.raises(WireError, match=r"cut short|not canonical|63 bits"):
        Frame.from_bytes(sealed(content))


def test_words_come_back_as_they_were() -> None:
    table = {"name": "süd", "rows": {"train": [3, "ab"]}, "nothing": None}
    frame = json_frame(FrameKind.HELLO, table, 3, 2)
    assert (frame.number, frame.durable) == (3, 2)
    assert Frame.from_bytes(frame.to_bytes()).json() == table
    with pytest.raises(ValueError, match="JSON"):
        json_frame(FrameKind.HELLO, {"loss": float("nan")})


def test_words_have_an_end() -> None:
    longest = json.dumps({"text": "x" * (MAX_JSON - len('{"text": ""}'))}).encode()
    assert len(longest) == MAX_JSON
    assert Frame(FrameKind.HELLO, body=longest).json()["text"][0] == "x"
    with pytest.raises(WireError, match=r"expected a HELLO of at most 1,048,576 bytes, got 1,048,577"):
        Frame(FrameKind.HELLO, body=longest + b" ").json()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"{'a': 1}", b"[" * 100_000, b'{"a": 1} {}'])
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="WELCOME is not JSON"):
        Frame(FrameKind.WELCOME, body=body).json()


@pytest.mark.parametrize("body", [b"[]", b"1", b'"text"', b"null"])
def test_json_that_is_no_table_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="expected a JSON object in WELCOME, got a "):
        Frame(FrameKind.WELCOME, body=body).json()


# Pieces.


# Entries of the server's log.

PACKETS = st.builds(
    Packet,
    st.integers(0, 255),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.binary(max_size=40),
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Message]:
    """One step's messages to all parties: some packets are shared, as relays share reports."""
    shared = draw(st.lists(PACKETS, min_size=1, max_size=4))
    blocks = st.dictionaries(
        st.integers(0, 200), st.lists(st.sampled_from(shared), min_size=1, max_size=2).map(tuple), max_size=4
    )
    message = st.builds(Message, st.sampled_from(Kind), st.integers(0, 1 << 40), blocks, st.booleans())
    return draw(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=12), message, max_size=5))


@given(requests())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_request_comes_back_from_the_log(messages: dict[str, Message]) -> None:
    data = pack(messages)
    found = unpack(data)
    assert list(found) == list(messages)
    assert found == messages
    assert {n: m.to_bytes() for n, m in found.items()} == {n: m.to_bytes() for n, m in messages.items()}
    assert pack(found) == data
    for length in range(len(data)):
        with pytest.raises(WireError):
            unpack(data[:length])
    with pytest.raises(WireError, match="expected the end of the log entry, got 1 more bytes"):
        unpack(data + b"\x00")


def test_a_packet_that_several_parties_get_is_stored_once() -> None:
    packet = Packet(0, DTYPES[2], (5000,), os.urandom(5000))
    messages = {f"party{k}": Message(Kind.RELAY, 3, {0: (packet,), k + 1: (packet,)}) for k in range(20)}
    data = pack(messages)
    assert len(data) < 2 * 5000
    found = unpack(data)
    assert found == messages
    assert len({id(p) for m in found.values() for held in m.packets.values() for p in held}) == 1


def test_an_entry_that_refers_to_no_packet_is_refused() -> None:
    entry = b"".join((number(0), number(1), number(1), b"a", bytes((Kind.RELAY << 1,)), *map(number, (0, 1, 0, 0))))
    with pytest.raises(WireError, match="refers to packet 0 of 0"):
        unpack(entry)

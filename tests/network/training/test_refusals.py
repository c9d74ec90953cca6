"""A participant that sends what it should not: it is refused with its own text, and the others notice nothing."""

import builtins
import contextlib
import json
import logging
import pickle
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from malicious import Stopped, played
from meetings import (  # noqa: F401
    SECONDS,
    TIMEOUTS,
    VICTIM,
    WAITING,
    Meeting,
    Rogue,
    answer_of,
    close_logs,
    goes_on,
    make_member,
    meeting,
    same,
    script,
    settings,
)
from torch import Tensor

from efvfl.config.run_file import LimitConfig
from efvfl.errors import LimitError, ProtocolError, RefusedError
from efvfl.network.links.connecting import dial
from efvfl.network.links.connections import ROOM
from efvfl.network.links.frame import MAX_JSON, Frame, FrameKind, digest_of, json_frame
from efvfl.network.links.framing import BEAT, FIRST, FRAME, HEAD, PREFACE, SIGN_OF_LIFE
from efvfl.network.links.listening import listen
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.questions import CHUNK, read_held
from efvfl.wire.message import Kind, Message
from efvfl.wire.packet import DTYPES, Packet
from efvfl.wire.packet import number as leb128

# A federation in one process: the server in a thread, every member in a thread, and whoever disturbs them in the test.


def said(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until something is logged: a link is closed before that is told."""
    end = time.monotonic() + SECONDS
    while not any(re.search(text, message) for message in caplog.messages):
        assert time.monotonic() < end, f"{text!r} is not in {caplog.messages}"
        time.sleep(0.01)


def until_links_are(meeting: Meeting, count: int) -> None:
    """Wait until so many threads of a meeting read from links; those of other tests' servers do not count."""
    deadline = time.monotonic() + SECONDS
    while len(left := [t for t in threading.enumerate() if _reads_for(meeting, t)]) > count:
        assert time.monotonic() < deadline, f"expected {count} threads that read from links, got {left}"
        time.sleep(0.01)


def _reads_for(meeting: Meeting, thread: threading.Thread) -> bool:
    """Whether a thread reads from one of a meeting's links."""
    work = getattr(thread, "_target", None)  # gone with the thread's end
    return thread.name == "efvfl-connection" and getattr(work, "__self__", None) is meeting.requests


def test_a_calm_meeting_equals_one_process(meeting: Meeting) -> None:
    meeting.join(VICTIM)
    meeting.finish()


# What a party may send wrongly, each as a change of the right reply, and the words that refuse it.


def altered(**changes: Any) -> Callable[[Message], bytes]:
    return lambda message: replace(message, **changes).to_bytes()


def packet(**changes: Any) -> Callable[[Message], bytes]:
    """The report with its packet changed."""
    return lambda message: replace(message, packets={1: (replace(message.packets[1][0], **changes),)}).to_bytes()


def exactly(value: float, dtype: int = 0, shape: tuple[int, ...] = (64, 16)) -> Callable[[Message], bytes]:
    """The report as plain numbers, all the same."""
    body = np.full(shape, value, DTYPES[dtype]).tobytes()
    return lambda message: replace(message, packets={1: (Packet(0, DTYPES[dtype], shape, body),)}).to_bytes()


def huge(message: Message) -> bytes:
    """A header whose shape no machine holds; all before it is as it should be."""
    return message.to_bytes()[:6] + bytes((1, 0, 2)) + leb128(1 << 30) + leb128(1 << 30) + leb128(0)


DIGEST = Packet(0, DTYPES[2], (8,), b"12345678")

REPLIES: dict[str, tuple[Callable[[Message], bytes], str]] = {
    "a later step": (altered(step=7), "top-left: expected REPORT on step 2 with block 1, got REPORT for step 7"),
    "an earlier step": (
        altered(step=1),
        "top-left: expected REPORT on step 2 with block 1, got REPORT for step 1 with blocks",
    ),
    "READY too early": (
        lambda m: Message(Kind.READY, m.step).to_bytes(),
        "top-left: expected REPORT on step 2 with block 1, got READY for step 2",
    ),
    "the server's kind": (
        altered(kind=Kind.COTANGENT),
        "top-left: expected REPORT on step 2 with block 1, got COTANGENT for step 2",
    ),
    "BEGIN": (altered(kind=Kind.BEGIN), "top-left: expected REPORT on step 2 with block 1, got BEGIN for step 2"),
    "the block of another": (
        lambda m: replace(m, packets={2: m.packets[1]}).to_bytes(),
        r"top-left: expected .* blocks \[2\]",
    ),
    "a block too many": (
        lambda m: replace(m, packets={1: m.packets[1], 2: m.packets[1]}).to_bytes(),
        r"top-left: expected REPORT on step 2 with block 1, got REPORT for step 2 with blocks \[1, 2\]",
    ),
    "no block": (
        altered(packets={}),
        r"top-left: expected REPORT on step 2 with block 1, got REPORT for step 2 with blocks \[\]",
    ),
    "a digest that is not due": (
        lambda m: replace(m, packets={0: (DIGEST,), 1: m.packets[1]}).to_bytes(),
        "expected a report without block 0, got one with the digest of a fusion model",
    ),
    "two packets": (lambda m: replace(m, packets={1: m.packets[1] * 2}).to_bytes(), "expected 1 packet, got 2"),
    "a row too few": (exactly(0.0, shape=(63, 16)), r"expected shape \(64, 16\) .* got \(63, 16\)"),
    "a wide row": (exactly(0.0, shape=(64, 17)), r"expected shape \(64, 16\) .* got \(64, 17\)"),
    "no dimensions": (exactly(0.0, shape=()), r"expected shape \(64, 16\) .* got \(\)"),
    "float64": (exactly(0.0, dtype=1), "expected shape .* and torch.float32, got .* and float64"),
    "bytes for numbers": (exactly(0, dtype=2), "expected shape .* and torch.float32, got .* and uint8"),
    "NaN": (exactly(float("nan")), "not finite"),
    "infinity": (exactly(float("inf")), "not finite"),
    "a body cut short": (lambda m: packet(body=m.packets[1][0].body[:-1])(m), "expected|cut short|left"),
    "a body too long": (lambda m: packet(body=m.packets[1][0].body + b"\0")(m), "expected|follow"),
    "an unknown codec": (packet(codec=200), "expected one of the registered codecs .*, got 200"),
    "a huge shape": (packet(shape=(1 << 23, 1 << 24)), r"expected shape \(64, 16\) .* got \(8388608, 16777216\)"),
    "a shape that no machine holds": (huge, r"fewer than 2\^48 entries, got shape \(1073741824, 1073741824\)"),
    "a message cut short": (lambda m: m.to_bytes()[:-5], "cut short or altered"),
    "half a header": (lambda m: m.to_bytes()[:3], "cut short or altered"),
    "nothing": (lambda m: b"", "expected 2 bytes for a message's first two bytes, got 0"),
    "bytes at the end": (lambda m: m.to_bytes() + b"!", "expected the end of the message, got 1 more bytes"),
    "another version": (lambda m: b"EF\x09" + m.to_bytes()[3:], "expected wire version 1, got 9"),
    "an unknown kind": (lambda m: b"EF\x01\xfe" + m.to_bytes()[4:], "expected a message kind from 0 to 11, got 127"),
    "a pickle": (lambda m: pickle.dumps({"step": m.step}), "expected a message to start with b'EF'"),
}


@pytest.mark.parametrize("case", REPLIES)
def test_a_wrong_reply_is_refused_and_the_right_party_goes_on(
    meeting: Meeting, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, text = REPLIES[case]
    rogue = Rogue(meeting)
    reply = rogue.answer(rogue.play(FrameKind.REQUEST, after=2))
    rogue.send(replace(reply, body=spoil(Message.from_bytes(reply.body))))
    found = rogue.refused()
    assert re.search(text, found)
    assert f"refused {VICTIM}: {found}" in caplog.messages
    meeting.join(VICTIM)
    meeting.finish()


def test_a_report_in_place_of_ready_is_refused(meeting: Meeting) -> None:
    """The last step of an epoch: the party was told to hold."""
    rogue = Rogue(meeting)
    per_epoch = meeting.serving.plan.batches.per_epoch
    reply = rogue.answer(rogue.play(FrameKind.REQUEST, after=per_epoch))
    assert Message.from_bytes(reply.body).kind == Kind.READY
    rogue.send(replace(reply, body=Message(Kind.REPORT, per_epoch).to_bytes()))
    text = f"{VICTIM}: expected an empty READY for step {per_epoch}, as it was told to hold, got REPORT"
    assert text in rogue.refused()
    meeting.join(VICTIM)
    meeting.finish()


DIGESTS: dict[str, tuple[tuple[Packet, ...], str]] = {
    "none": ((), "the digest of top-left's fusion model, which is due now: expected one packet"),
    "two": ((DIGEST, DIGEST), "the digest of top-left's fusion model, which is due now: expected one packet"),
    "of numbers": (
        (Packet(0, DTYPES[0], (2,), b"12345678"),),
        "fusion model, which is due now: expected one packet",
    ),
    "too long": (
        (Packet(0, DTYPES[2], (9,), b"123456789"),),
        r"top-left's fusion model, .* expected 8 bytes, got shape \(9,\)",
    ),
    "too short": ((Packet(0, DTYPES[2], (8,), b"1234567"),), r"expected 8 bytes, got shape \(8,\)"),
}


@pytest.mark.parametrize("case", DIGESTS)
def test_a_wrong_digest_is_refused_and_the_right_party_goes_on(tmp_path: Path, case: str) -> None:
    """Shared labels, where parties repeat the fusion model's updates and compare."""
    packets, text = DIGESTS[case]
    agreement = {"labels": "shared", "fusion": "replicate", "digest_every": 2}
    meeting = Meeting(tmp_path, settings(agreement=agreement))
    try:
        meeting.start(*(name for name in meeting.requests.names if name != VICTIM))
        rogue = Rogue(meeting)
        reply = rogue.answer(rogue.play(FrameKind.REQUEST, after=2))
        message = Message.from_bytes(reply.body)
        assert set(message.packets) == {0, 1}
        held = {block: held for block, held in {0: packets, 1: message.packets[1]}.items() if held}
        rogue.send(replace(reply, body=replace(message, packets=held).to_bytes()))
        assert re.search(text, rogue.refused())
        meeting.join(VICTIM)
        meeting.finish()
    finally:
        meeting.stop()


ANSWERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda b: b"", "that begins with 0 or 1, got b''"),
    "junk": (lambda b: b"\x07junk", r"that begins with 0 or 1, got b'\\x07'"),
    "a packet cut short": (lambda b: b[:-1], "cut short"),
    "bytes at the end": (lambda b: b + b"!", "expected the end of the packet, got 1 more bytes"),
    "a row too few": (
        lambda b: b"\0" + Packet(0, DTYPES[0], (1, 16), bytes(64)).to_bytes(),
        r"representations: expected shape .*, got \(1, 16\)",
    ),
    "a huge shape": (lambda b: b"\0" + Packet(0, DTYPES[0], (1 << 23, 1 << 24), b"").to_bytes(), "16777216"),
    "float64": (lambda b: b"\0" + Packet(0, DTYPES[1], (1, 16), bytes(128)).to_bytes(), "got .* and float64"),
    "NaN": (lambda b: b[:-4] + np.float32("nan").tobytes(), "not finite"),
    "an unknown codec": (lambda b: b"\0\xc8" + b[2:], "expected one of the registered codecs .*, got 200"),
    "rows that all agreed on are not there": (lambda b: b"\x01I have none", "I have none"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_wrong_answer_is_refused_and_the_right_party_goes_on(
    meeting: Meeting, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, text = ANSWERS[case]
    rogue = Rogue(meeting)
    answer = rogue.answer(rogue.play(FrameKind.ASK))
    rogue.send(replace(answer, body=spoil(answer.body)))
    found = rogue.refused()
    assert re.search(text, found)
    assert f"refused {VICTIM}: {found}" in caplog.messages
    meeting.join(VICTIM)
    meeting.finish()


FRAMES: dict[str, tuple[Frame, str]] = {
    "a reply that nobody asked for": (Frame(FrameKind.REPLY, 9), "top-left sent reply 9, which nobody asked for"),
    "a reply of the far future": (Frame(FrameKind.REPLY, (1 << 63) - 1), "top-left sent reply 9223372036854775807"),
    "an answer that nobody asked for": (Frame(FrameKind.ANSWER, 1), "top-left sent answer 1, which nobody asked for"),
    "STOP": (Frame(FrameKind.STOP, 3), "a party does not send STOP"),
    "REQUEST": (Frame(FrameKind.REQUEST, 3, 0, Message(Kind.BEGIN, 0).to_bytes()), "a party does not send REQUEST"),
    "ASK": (Frame(FrameKind.ASK, 1, 0, b'{"ids": ["1"]}'), "a party does not send ASK"),
    "WELCOME": (json_frame(FrameKind.WELCOME, {}), "a party does not send WELCOME"),
    "REFUSE that is not JSON": (Frame(FrameKind.REFUSE, body=b"\xff\xfe"), "REFUSE is not JSON"),
    "REFUSE that is no table": (Frame(FrameKind.REFUSE, body=b"[]"), "expected a JSON object in REFUSE, got a list"),
    "REFUSE without an end": (Frame(FrameKind.REFUSE, body=b"[" * 100_000), "REFUSE is not JSON"),
    "a long REFUSE": (
        Frame(FrameKind.REFUSE, body=b" " * (MAX_JSON + 1)),
        "expected a REFUSE of at most 1,048,576 bytes, got 1,048,577",
    ),
}


@pytest.mark.parametrize("case", FRAMES)
def test_a_frame_that_does_not_belong_is_refused(meeting: Meeting, case: str, caplog: pytest.LogCaptureFixture) -> None:
    frame, text = FRAMES[case]
    rogue = Rogue(meeting)
    rogue.play(FrameKind.REQUEST, after=2)
    rogue.send(frame)
    found = rogue.refused()
    assert text in found
    assert f"refused {VICTIM}: {found}" in caplog.messages
    meeting.join(VICTIM)
    meeting.finish()


def test_a_refusal_by_a_party_is_shown_and_the_party_may_come_back(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "efvfl")
    for text in ("my disk is full", ["nested"], None, {"a": [1]}):
        rogue = Rogue(meeting)
        rogue.play(FrameKind.REQUEST)
        rogue.send(json_frame(FrameKind.REFUSE, {"text": text}))
        rogue.closed()
        said(caplog, re.escape(f"{VICTIM} is gone: it refuses: {text}"))
    rogue = Rogue(meeting)
    rogue.play(FrameKind.REQUEST)
    rogue.send(json_frame(FrameKind.REFUSE, {"text": "one\x1b[2J\ntwo"}))
    said(caplog, r"it refuses: one\?\[2J\?two$")
    meeting.join(VICTIM)
    meeting.finish()


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("kind", ["HELLO name", "HELLO shared", "HELLO rows", "REFUSE"])
def test_depth_that_can_be_read_but_not_printed(meeting: Meeting, kind: str) -> None:
    """The limit of recursion lies somewhere below 1,000: go through it one by one where it must be."""
    about = json.loads(meeting.members[VICTIM].hello().body)
    for depth in (*range(900, 1000, 1), 10_000, 400_000):
        rogue = Rogue(meeting)
        if kind == "REFUSE":
            rogue.greet()
            rogue.send(Frame(FrameKind.REFUSE, body=b'{"text": ' + nested(depth).encode() + b"}"))
        else:
            key = kind.split()[1]
            spoilt = {"name": "NAME"} if key == "name" else {"digest": ""} if key == "shared" else {}
            table = json.dumps(about | spoilt | {key: "DEEP"}).replace('"DEEP"', nested(depth))
            rogue.send(Frame(FrameKind.HELLO, body=table.encode()))
        rogue.closed()
    meeting.join(VICTIM)
    meeting.finish()


# Frames that do not parse: the link ends without a word.


def corrupt(frame: Frame) -> bytes:
    data = bytearray(frame.to_bytes())
    data[len(data) // 2] ^= 4
    return bytes(data)


def coded(kind: int) -> bytes:
    """A frame of any kind with the right checksum."""
    data = Frame(FrameKind.REPLY).to_bytes()
    return zlib.crc32(bytes((kind,)) + data[5:]).to_bytes(4, "little") + bytes((kind,)) + data[5:]


UNREADABLE: dict[str, Callable[[Frame], bytes]] = {
    "a bad checksum": corrupt,
    "a frame cut short": lambda frame: frame.to_bytes()[:-1],
    "kind 0": lambda frame: coded(0),
    "kind 10": lambda frame: coded(10),
    "kind 255": lambda frame: coded(255),
    "nothing": lambda frame: b"",
    "three bytes": lambda frame: b"abc",
    "a checksum alone": lambda frame: bytes(4),
    "a web request": lambda frame: b"GET / HTTP/1.1\r\nHost: server\r\n\r\n",
    "a pickle": lambda frame: pickle.dumps(frame.body),
}


@pytest.mark.parametrize("welcome", [False, True])
def test_what_is_no_frame_closes_the_link(meeting: Meeting, welcome: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "efvfl")
    assert coded(FrameKind.REPLY) == Frame(FrameKind.REPLY).to_bytes()
    for spoil in UNREADABLE.values():
        rogue = Rogue(meeting)
        if welcome:
            rogue.greet()
        rogue.send(spoil(rogue.member.hello()))
        rogue.closed()
        if welcome:
            said(caplog, f"{VICTIM} is gone: .*(frame|checksum)")
        caplog.clear()
    meeting.join(VICTIM)
    meeting.finish()


# HELLO.


def test_a_hello_of_wrong_types_is_refused(meeting: Meeting) -> None:
    about: dict[str, Any] = json.loads(meeting.members[VICTIM].hello().body)
    rows = about["rows"]
    junk: list[Any] = [None, True, 7, -1.5, 1e308, "", "x" * 1000, [], [[]], {}, {"a": {"b": [None]}}, "\ud800"]
    refusals: list[tuple[dict[str, Any], str]] = [
        *(({**about, "name": value}, "is not a party of this federation; they are top-left, top-r") for value in junk),
        ({k: v for k, v in about.items() if k != "name"}, "None is not a party of this federation"),
        ({}, "None is not a party"),
        *(({**about, "protocol": value}, "the server speaks protocol 3, top-left speaks") for value in (*junk, 2, "3")),
        *(({**about, "digest": value}, "the shared part of the files differs: only the digest") for value in junk),
        *(({**about, "digest": "", "shared": value}, "the shared part of the files differs") for value in junk),
        ({**about, "digest": "", "shared": {**about["shared"], "seed": 4}}, "seed: the server has 3, top-left has 4"),
        ({**about, "digest": "", "shared": {**about["shared"], "method": {}}}, "method.name: the server has 'efvfl'"),
        *(({**about, "rows": value}, "top-left sent no table of its rows by split") for value in junk),
        *(
            ({**about, "rows": {**rows, "train": value}}, "top-left sent no count and digest of its train rows")
            for value in junk
        ),
        *(
            ({**about, "rows": {**rows, "train": [value, rows["train"][1]]}}, "the server holds 200 train rows, top-l")
            for value in junk
        ),
        *(
            ({**about, "rows": {**rows, "test": [rows["test"][0], value]}}, "not the same ids in the same order")
            for value in junk
        ),
        *(({**about, "memory": value}, "do not remember the same of what was sent") for value in junk),
    ]
    for table, text in refusals:
        rogue = Rogue(meeting)
        rogue.send(Frame(FrameKind.HELLO, body=json.dumps(table).encode()))
        assert text in rogue.refused()
    meeting.join(VICTIM)
    meeting.finish()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "HELLO is not JSON"),
        (b"\xff", "HELLO is not JSON"),
        (b"{", "HELLO is not JSON"),
        (b"[" * 500_000, "HELLO is not JSON"),
        (b'{"name": ' + b"9" * 5000 + b"}", "HELLO is not JSON"),
        (b'{"name": NaN}', "nan is not a party"),
        (b'{"name": 1e999}', "inf is not a party"),
        (b"[]", "expected a JSON object in HELLO, got a list"),
        (b"null", "expected a JSON object in HELLO, got a NoneType"),
        (b'{"name": "' + b"x" * (10 << 20) + b'"}', "expected a HELLO of at most 1,048,576 bytes, got 10,485,772"),
        (b'{"name": "' + b"x" * (1 << 19) + b'"}', "is not a party of this federation"),
        (pickle.dumps({"name": VICTIM}), "HELLO is not JSON"),
    ],
)
def test_a_hello_that_is_none_is_refused(meeting: Meeting, body: bytes, text: str) -> None:
    rogue = Rogue(meeting)
    rogue.send(Frame(FrameKind.HELLO, body=body))
    assert text in rogue.refused()
    meeting.join(VICTIM)
    meeting.finish()


def test_a_hello_of_a_thousand_keys_gets_a_short_refusal(meeting: Meeting, caplog: pytest.LogCaptureFixture) -> None:
    about = json.loads(meeting.members[VICTIM].hello().body)
    keys = {f"{i}\x1b[31m": 0 for i in range(40_000)}
    for shared in (keys, {"\n" + "x" * 900_000: 0}):
        rogue = Rogue(meeting)
        rogue.send(json_frame(FrameKind.HELLO, about | {"digest": "", "shared": shared}))
        text = rogue.refused()  # which reads it: it must not be longer than what may come back
        assert text.startswith("the shared part of the files differs")
        assert len(text) < 10_000
        assert max(map(len, caplog.messages)) < 10_000
        assert all(message.isprintable() for message in caplog.messages)  # a terminal must not obey them
    meeting.join(VICTIM)
    meeting.finish()


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind != FrameKind.HELLO])
def test_a_connection_starts_with_hello(meeting: Meeting, kind: FrameKind) -> None:
    rogue = Rogue(meeting)
    rogue.send(Frame(kind))
    assert rogue.refused() == f"expected HELLO as the first frame of a connection, got {kind.name}."
    meeting.join(VICTIM)
    meeting.finish()


def test_who_never_says_hello_is_refused(meeting: Meeting) -> None:
    meeting.requests.timeouts = replace(TIMEOUTS, hello=0.5)
    assert Rogue(meeting).refused() == "no HELLO was received within 0.5 seconds."
    meeting.join(VICTIM)
    meeting.finish()


def test_a_party_whose_folder_is_older_than_the_logs_is_refused(tmp_path: Path) -> None:
    """Restored from a backup, say: the server has forgotten what it would need to catch up."""
    meeting = Meeting(tmp_path, settings(network={"save_steps": 1}))
    try:
        meeting.start(*(name for name in meeting.requests.names if name != VICTIM))
        rogue = Rogue(meeting)
        rogue.greet()
        for _ in range(8):
            rogue.send(rogue.answer(rogue.receive()))
            rogue.member.save()
        rogue.receive()
        rogue.wire.close()
        ends = time.monotonic() + SECONDS
        while VICTIM in meeting.requests.connections and time.monotonic() < ends:
            time.sleep(0.001)  # else it may still be connected
        rogue.member = make_member(meeting.config, VICTIM, tmp_path / "backup")
        rogue.wire = meeting.dial()
        rogue.send(rogue.member.hello())
        assert "backup" in rogue.refused()
        meeting.join(VICTIM)
        meeting.finish()
    finally:
        meeting.stop()


# Repetitions and floods.


def test_old_replies_and_repeated_hellos_change_nothing(meeting: Meeting) -> None:
    rogue = Rogue(meeting)
    replies = []
    rogue.greet()
    for _ in range(3):
        replies.append(rogue.answer(rogue.receive()))
        rogue.send(replies[-1])
    request = rogue.receive()
    assert request.number == 3
    spoilt = [replace(old, body=b"junk") for old in replies]
    for frame in (*replies, *spoilt, rogue.member.hello(), Frame(FrameKind.HELLO, body=b"junk"), *replies):
        rogue.send(frame)
    rogue.send(rogue.answer(request))
    assert rogue.receive().number == 4  # it is still welcome
    rogue.wire.close()
    meeting.join(VICTIM)
    meeting.finish()


def test_an_old_reply_with_a_new_number_is_refused(meeting: Meeting) -> None:
    rogue = Rogue(meeting)
    rogue.greet()
    replies = []
    for _ in range(3):
        replies.append(rogue.answer(rogue.receive()))
        rogue.send(replies[-1])
    assert rogue.receive().number == 3
    rogue.send(replace(replies[1], number=3))
    assert f"{VICTIM}: expected REPORT on step 3 with block 1, got REPORT for step 1 with blocks [1]" in rogue.refused()
    meeting.join(VICTIM)
    meeting.finish()


@pytest.mark.parametrize("kind", [FrameKind.REPLY, FrameKind.HELLO, FrameKind.WELCOME, FrameKind.STOP, FrameKind.BYE])
def test_a_flood_harms_nobody_and_leaves_no_thread(meeting: Meeting, kind: FrameKind) -> None:
    rogue = Rogue(meeting)
    rogue.play(FrameKind.REQUEST, after=2)
    for _ in range(1000):
        rogue.send(Frame(kind, 99 if kind == FrameKind.REPLY else 0, 0, b"flood"))
    if kind == FrameKind.HELLO:
        rogue.wire.close()  # repeated HELLOs are no harm, but a second party of that name would have to wait
    else:
        rogue.closed()
    until_links_are(meeting, len(meeting.requests.names) - 1)
    meeting.join(VICTIM)
    meeting.finish()


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_flood_that_nobody_reads_leaves_no_thread_when_the_server_ends(tmp_path: Path, looked_at: bool) -> None:
    meeting = Meeting(tmp_path)  # its server does not run
    wire = meeting.dial()
    for _ in range(100):
        wire.send(Frame(FrameKind.WELCOME, 0, 0, b"flood").to_bytes())
    while meeting.requests._events.qsize() <= ROOM:
        time.sleep(0.001)
    if looked_at:
        meeting.requests._listen()
    meeting.requests.close()
    until_links_are(meeting, 0)


# What the stream itself sees: sizes.


ROOM_FOR_A_FRAME = 3 << 20


@pytest.fixture
def tight(meeting: Meeting) -> Iterator[str]:
    """The address of the same server with little room for a frame."""
    server, port = listen("127.0.0.1:0", None, ROOM_FOR_A_FRAME, 4, meeting.requests.accept)
    yield f"127.0.0.1:{port}"
    server.close()


def test_an_oversized_frame_closes_the_link(meeting: Meeting, tight: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "efvfl")
    rogue = Rogue(meeting, dial(tight, None, ROOM_FOR_A_FRAME))
    request = rogue.play(FrameKind.REQUEST, after=2)
    rogue.send(Frame(FrameKind.REPLY, request.number, 0, bytes(ROOM_FOR_A_FRAME + 1)))
    rogue.closed()
    said(caplog, f"{VICTIM} is gone: expected a frame of at most 3,145,728 bytes, got more.")
    rogue.wire.close()
    meeting.join(VICTIM, lambda: dial(tight, None, ROOM_FOR_A_FRAME))
    meeting.finish()


STREAMS = {
    "bytes that are no frame": bytes(range(64)),
    "a sign of life of a length": HEAD.pack(BEAT, 3) + b"abc",
    "a length that nobody has": HEAD.pack(FRAME, (1 << 64) - 1) + bytes(1000),
    "a frame that is too long before HELLO": HEAD.pack(FRAME, FIRST + 1) + bytes(FIRST + 1),
    "a flood of signs of life": 10_000 * SIGN_OF_LIFE,
    "half a head": HEAD.pack(FRAME, 100)[:5],
    "a length that is a lie": HEAD.pack(FRAME, FIRST) + bytes(1000),  # more is announced, and never comes
    "another protocol": None,
}


@pytest.mark.attack(
    by="a party",
    tries="sends what is no frame, announces more bytes than it sends or may, or sends signs of life without end",
    outcome="nothing is set aside for what is announced; the connection is closed, and the others train on",
)
@pytest.mark.parametrize("data", STREAMS.values(), ids=STREAMS)
def test_a_stream_that_is_not_ours_is_closed(meeting: Meeting, tight: str, data: bytes | None) -> None:
    waits = data is not None and data[:1] == HEAD.pack(FRAME, 0)[:1] and len(data) < 2000 and data[8:9] in (b"", b"\0")
    meeting.requests.timeouts = replace(TIMEOUTS, hello=0.5 if waits else 10.0)
    with socket.create_connection(("127.0.0.1", int(tight.rpartition(":")[2])), SECONDS) as link:
        received = b""
        with contextlib.suppress(ConnectionError):
            link.sendall(b"GET / HTTP/1.1\r\n\r\n" if data is None else PREFACE + data)
            while more := link.recv(1000):
                received += more
    assert (b"no HELLO was received within 0.5 seconds." in received) == waits
    meeting.join(VICTIM, lambda: dial(tight, None, ROOM_FOR_A_FRAME))
    meeting.finish()


# The other direction: what a server may send wrongly to a party.


def snapshot(member: PartyProcess) -> dict[str, Any]:
    """Everything that a frame could change, files included."""
    return {
        "party": member.party.state_dict(),
        "ledger": member.ledger.state_dict(),
        "numbers": [member.handled, member.durable, member.rows_given.value, member.finished, member.message_log.end],
        "files": {str(path): path.read_bytes() for path in sorted(member.folder.rglob("*")) if path.is_file()},
    }


def frozen(state: dict[str, Any]) -> Any:
    """A copy that later changes do not reach."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: frozen(value) for key, value in state.items()}
    return [frozen(value) for value in state] if isinstance(state, list | tuple) else state


REQUESTS: dict[str, tuple[Callable[[Message], bytes], str]] = {
    "a later step": (altered(step=9), "top-left: expected a message for step 1, got one for 9"),
    "the first step": (
        altered(kind=Kind.BEGIN, step=0, packets={}),
        "top-left: expected a message for step 1, got one for 0",
    ),
    "BEGIN": (altered(kind=Kind.BEGIN, packets={}), "top-left: expected COTANGENT at step 1, got BEGIN"),
    "a party's kind": (altered(kind=Kind.REPORT), "top-left: expected COTANGENT at step 1, got REPORT"),
    "a return that was not agreed on": (
        altered(kind=Kind.SYNC),
        "expected SYNC to a later step than 1 .* did not agree that steps may pass without it",
    ),
    "shared labels": (altered(kind=Kind.RELAY), "top-left: expected COTANGENT at step 1, got RELAY"),
    "foreign blocks": (
        lambda m: replace(m, packets={2: m.packets[1]}).to_bytes(),
        r"expected block 1 alone, got blocks \[2\]",
    ),
    "more blocks": (
        lambda m: replace(m, packets={0: (DIGEST,), 1: m.packets[1]}).to_bytes(),
        r"expected block 1 alone, got blocks \[0, 1\]",
    ),
    "no blocks": (altered(packets={}), r"expected block 1 alone, got blocks \[\]"),
    "two packets": (lambda m: replace(m, packets={1: m.packets[1] * 2}).to_bytes(), "expected 1 packet, got 2"),
    "NaN": (exactly(float("nan")), "not finite"),
    "infinity": (exactly(float("-inf")), "not finite"),
    "a row too many": (exactly(0.0, shape=(65, 16)), r"expected shape \(64, 16\) .* got \(65, 16\)"),
    "float64": (exactly(0.0, dtype=1), "expected shape .* and torch.float32, got .* and float64"),
    "a huge shape": (packet(shape=(1 << 23, 1 << 24)), r"expected shape \(64, 16\) .* got \(8388608, 16777216\)"),
    "an unknown codec": (packet(codec=200), "expected one of the registered codecs .*, got 200"),
    "a message cut short": (lambda m: m.to_bytes()[:-5], "request 2 is not a message: .* cut short or altered"),
    "nothing": (lambda m: b"", "request 2 is not a message"),
    "a pickle": (lambda m: pickle.dumps(m.step), "request 2 is not a message: expected a message to start with b'EF'"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_party_refuses_a_wrong_request_and_is_as_before(tmp_path: Path, script: list[Frame], case: str) -> None:
    spoil, text = REQUESTS[case]
    member = make_member(settings(), VICTIM, tmp_path / "member")
    for frame in script[:2]:
        member.respond(frame)
    member.save()
    before = frozen(snapshot(member))
    with pytest.raises(ProtocolError, match=text):  # and not WireError: then it would only dial again
        member.respond(replace(script[2], body=spoil(Message.from_bytes(script[2].body))))
    assert same(frozen(snapshot(member)), before)
    goes_on(member, script[2:])


@pytest.mark.attack(
    by="the label holder",
    tries="asks something else under the number of a request that was answered",
    outcome="refused; the same request again gets the same bytes",
)
def test_a_party_refuses_frames_that_a_server_does_not_send(tmp_path: Path, script: list[Frame]) -> None:
    member = make_member(settings(), VICTIM, tmp_path / "member")
    for frame in script[:2]:
        member.respond(frame)
    member.save()
    before = frozen(snapshot(member))
    for kind in (FrameKind.HELLO, FrameKind.WELCOME, FrameKind.REPLY, FrameKind.ANSWER, FrameKind.BYE):
        with pytest.raises(ProtocolError, match=f"a server does not send {kind.name} here"):
            member.respond(Frame(kind, 2, 0, b"junk"))
    for number in (3, 99, (1 << 63) - 1):
        with pytest.raises(ProtocolError, match=f"expected request 2, got request {number}"):
            member.respond(replace(script[2], number=number))
        with pytest.raises(ProtocolError, match=f"expected STOP after request 2, got one after request {number}"):
            member.respond(Frame(FrameKind.STOP, number))
    assert same(frozen(snapshot(member)), before)
    for body in (b"junk", b"", script[1].body):
        with pytest.raises(ProtocolError, match="request 0 differs from the one that was answered before"):
            member.respond(replace(script[0], body=body))
    assert answer_of(member, script[0]).body == member.message_log.read(0).removeprefix(
        digest_of(script[0].body)
    )  # repeated: the same bytes
    assert same(frozen(snapshot(member)), before)
    goes_on(member, script[2:])


QUESTIONS: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"\xff\xfe",
    "no end": b"[" * 100_000,
    "a pickle": pickle.dumps({"split": "test", "start": 0, "stop": 1}),
    "a list": b"[]",
    "no keys": b"{}",
    "a split by number": b'{"split": 1, "start": 0, "stop": 1}',
    "places as texts": b'{"split": "test", "start": "0", "stop": "1"}',
    "places as fractions": b'{"split": "test", "start": 0.0, "stop": 1.5}',
    "a negative place": b'{"split": "test", "start": -1, "stop": 1}',
    "no rows": b'{"split": "test", "start": 3, "stop": 3}',
    "backwards": b'{"split": "test", "start": 3, "stop": 1}',
    "too many rows": json.dumps({"split": "train", "start": 0, "stop": CHUNK + 1}).encode(),
    "no ids": b'{"ids": []}',
    "ids by number": b'{"ids": [1, 2]}',
    "ids in ids": b'{"ids": [["test:1"]]}',
    "too many ids": json.dumps({"ids": ["test:1"] * (CHUNK + 1)}).encode(),
    "a long number": b'{"split": "test", "start": 0, "stop": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("case", QUESTIONS)
def test_a_party_refuses_a_question_that_is_none(tmp_path: Path, script: list[Frame], case: str) -> None:
    member = make_member(settings(), VICTIM, tmp_path / "member")
    before = frozen(snapshot(member))
    with pytest.raises(
        ProtocolError, match=r"expected a (question in JSON|span of a split, a list of ids or columns), got"
    ) as caught:
        member.respond(Frame(FrameKind.ASK, 1, 0, QUESTIONS[case]))
    assert len(str(caught.value)) < 1000
    assert same(frozen(snapshot(member)), before)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({"split": "test", "start": 0, "stop": 270}, "top-left gives no 'test' rows by their places up to 270."),
        ({"split": "test", "start": 10**18, "stop": 10**18 + 1}, "top-left gives no 'test' rows"),
        ({"split": "new", "start": 0, "stop": 1}, "top-left gives no 'new' rows by their places up to 1."),
        ({"split": "../../etc", "start": 0, "stop": 1}, "top-left gives no '../../etc' rows by their places up to 1."),
        ({"ids": ["test:0", "test:99999"]}, [1]),
        ({"ids": ["\ud800", "x" * 5000]}, [0, 1]),
    ],
)
def test_a_question_about_rows_that_are_not_there_is_answered_so(
    tmp_path: Path, question: Any, expected: str | list[int]
) -> None:
    member = make_member(settings(), VICTIM, tmp_path / "member")
    before = frozen(snapshot(member))
    answer = answer_of(member, Frame(FrameKind.ASK, 1, 0, json.dumps(question).encode()))
    assert answer.kind == FrameKind.ANSWER
    if isinstance(expected, str):
        assert answer.body[:1] == b"\x01"
        assert expected in answer.body[1:].decode()
    else:  # the places of the ids that it lacks, and the representations of the others
        lacking, found = read_held("top-left", answer.body, 2, member.party.up.width[0])
        assert lacking == expected
        assert len(found) == 2 - len(expected)
    assert len(answer.body) < 3000
    assert member.rows_given.value == len(question.get("ids", [0]))  # that it is not there is an answer too, and counts
    member.rows_given.path.unlink()
    member.rows_given.value = 0
    assert same(frozen(snapshot(member)), before)


def ask(start: int, stop: int) -> Frame:
    return Frame(FrameKind.ASK, 1, 0, json.dumps({"ids": [f"test:{n}" for n in range(start, stop)]}).encode())


def test_a_party_keeps_its_limits(tmp_path: Path, script: list[Frame]) -> None:
    free = make_member(settings(), VICTIM, tmp_path / "free")
    for frame in script[:2]:
        free.respond(frame)
    sent = free.ledger.total("up")

    member = make_member(settings(), VICTIM, tmp_path / "bytes", LimitConfig(bytes=sent))
    for frame in script[:2]:
        member.respond(frame)
    member.save()
    numbers, ledger = (member.handled, member.message_log.end), member.ledger.state_dict()
    for _ in range(2):  # asking again does not help
        with pytest.raises(LimitError, match=f"the answer to request 2 would bring what top-left sent to .* {sent:,}"):
            member.respond(script[2])
        assert (member.handled, member.message_log.end) == numbers
        assert member.ledger.state_dict() == ledger
    again = make_member(settings(), VICTIM, tmp_path / "bytes")  # its owner allows more, and it goes on
    goes_on(again, script[2:])

    member = make_member(settings(), VICTIM, tmp_path / "steps", LimitConfig(steps=2))
    for frame in script[:2]:
        member.respond(frame)
    before = frozen(snapshot(member))
    with pytest.raises(LimitError, match="top-left takes part in 2 steps, as its own file says"):
        member.respond(script[2])
    assert same(frozen(snapshot(member)), before)


def test_a_party_that_refuses_a_question_has_given_nothing(tmp_path: Path) -> None:
    member = make_member(settings(), VICTIM, tmp_path / "rows", LimitConfig(rows=10))
    member.respond(ask(0, 8))
    before = frozen(snapshot(member))
    with pytest.raises(LimitError, match="of 11 rows are asked for in all, and the file of top-left allows 10"):
        member.respond(ask(0, 3))
    assert same(frozen(snapshot(member)), before)
    assert answer_of(member, ask(0, 2)).kind == FrameKind.ANSWER


# A party on a wire, with a server in the test's own hands.


@pytest.mark.parametrize("case", ["NaN", "foreign blocks", "a pickle", "a later step"])
def test_a_party_says_why_it_refuses_a_request_and_leaves(tmp_path: Path, script: list[Frame], case: str) -> None:
    spoil, text = REQUESTS[case]
    member = make_member(settings(), VICTIM, tmp_path / "member")
    bad = replace(script[2], body=spoil(Message.from_bytes(script[2].body)))
    error, heard = played(member, *script[:2], bad)
    assert isinstance(error, ProtocolError)  # and not Stopped: to dial again would bring the same
    assert re.search(text, str(error))
    assert [frame.kind.name for frame in heard] == ["HELLO", "REPLY", "REPLY", "REFUSE"]
    assert heard[-1].json() == {"code": "wrong", "text": str(error)}


@pytest.mark.parametrize("case", ["no end", "a list", "a pickle"])
def test_a_party_says_why_it_refuses_a_question_and_leaves(tmp_path: Path, case: str) -> None:
    error, heard = played(make_member(settings(), VICTIM, tmp_path), Frame(FrameKind.ASK, 1, 0, QUESTIONS[case]))
    assert isinstance(error, ProtocolError)
    assert [frame.kind.name for frame in heard] == ["HELLO", "REFUSE"]


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_party_dials_again_after_what_is_no_frame(tmp_path: Path, script: list[Frame], case: str) -> None:
    member = make_member(settings(), VICTIM, tmp_path / "member")
    error, heard = played(member, UNREADABLE[case](script[0]), dials=3)
    assert isinstance(error, Stopped)
    assert [frame.kind.name for frame in heard] == ["HELLO"] * 3
    goes_on(member, script)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"code": "wrong", "text": "go away"}, "the server refuses top-left: go away"),
        ({"code": "wrong", "text": "x" * 5000}, "the server refuses top-left: " + "x" * 2000),
        ({"code": ["busy"], "text": ["a", {}]}, "the server refuses top-left: ['a', {}]"),
        ({}, "the server refuses top-left: None"),
        ({"text": "one\x1b[2J\ntwo"}, "the server refuses top-left: one?[2J?two"),
    ],
)
def test_a_party_that_is_refused_says_so(tmp_path: Path, table: dict[str, Any], text: str) -> None:
    error, _ = played(make_member(settings(), VICTIM, tmp_path), json_frame(FrameKind.REFUSE, table))
    assert isinstance(error, RefusedError)
    assert str(error) == text


def test_a_refusal_that_cannot_be_printed(tmp_path: Path) -> None:
    member = make_member(settings(), VICTIM, tmp_path)
    for depth in (*range(900, 1000, 1), 100_000):
        body = b'{"code": "wrong", "text": ' + nested(depth).encode() + b"}"
        error, _ = played(member, Frame(FrameKind.REFUSE, body=body))
        assert isinstance(error, RefusedError | Stopped)


def test_nothing_that_came_is_evaluated_or_unpickled(
    tmp_path: Path, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "exploded"), "w"))

    member = make_member(settings(), VICTIM, tmp_path / "member")
    bomb, code = pickle.dumps(Bomb()), b"__import__('os').abort()"
    used: list[str] = []
    for owner, name in ((pickle, "loads"), (pickle, "load"), (torch, "load"), (builtins, "eval"), (builtins, "exec")):
        monkeypatch.setattr(owner, name, lambda *_, name=name, **__: used.append(name))
    for kind in FrameKind:
        for body in (bomb, code, b"EF\x01\x04" + bomb, json.dumps({"name": bomb.hex(), "ids": ["eval(1)"]}).encode()):
            rogue = Rogue(meeting)
            rogue.send(Frame(kind, 0, 0, body))
            rogue.closed()
            if kind in (FrameKind.REQUEST, FrameKind.ASK):
                with contextlib.suppress(ProtocolError):
                    assert answer_of(member, Frame(kind, 0, 0, body)).body[:1] in (b"\x01", b"\x02")
    monkeypatch.undo()
    assert used == []
    assert not (tmp_path / "exploded").exists()
    meeting.join(VICTIM)
    meeting.finish()

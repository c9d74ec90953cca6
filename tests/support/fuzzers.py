"""What is fuzzed: for everything that reads bytes of somebody else, inputs that are nearly valid, and what may happen.

A fuzzer's target takes bytes. It may return, or raise an error of this library; anything else is a finding. A new
reader gets a line in one of the lists below, or a fuzzer of its own in `FUZZERS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import odd_settings
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from mutations import mutated, odd_json
from problems import ROWS, WIDTH, classes, columns, problem

from efvfl import Agreement, Quorum, efvfl
from efvfl.compress import QSGD, REGISTRY, Cast, RandK, TopK, TopKQSGD, decode
from efvfl.config.run_file import RunConfig
from efvfl.core.channel import send_exactly
from efvfl.core.decision import Decision
from efvfl.core.party import Party
from efvfl.core.server import Server
from efvfl.errors import EfvflError
from efvfl.network import handshake
from efvfl.network.align import messages
from efvfl.network.align.messages import POINT, TAG
from efvfl.network.links.frame import Frame, FrameKind, json_frame, pack, unpack
from efvfl.network.links.framing import SIGN_OF_LIFE, Deframer, framed
from efvfl.network.predict.http_app import AccessControl, make_app, read_ids
from efvfl.network.predict.prediction import Prediction
from efvfl.network.training.column_answers import ColumnAnswers
from efvfl.network.training.column_inquiry import ColumnList
from efvfl.network.training.panel import RowOutcome
from efvfl.network.training.questions import QuestionHandler, read_answer, read_held
from efvfl.wire.message import Kind, Message
from efvfl.wire.packet import Packet

LIMIT = 1 << 12  # entries of a block
TOKEN = "t" * 40


@dataclass(frozen=True)
class Fuzzer:
    """Inputs, and what they are given to."""

    name: str
    inputs: Callable[[], SearchStrategy[list[bytes]]]  # a few at a time
    target: Callable[[bytes], object]
    quick: int = 20  # draws of an ordinary test run, of a few inputs each

    def attempt(self, data: bytes) -> None:
        """Give an input to the target; only errors that are declared are let pass."""
        with contextlib.suppress(EfvflError):
            self.target(data)


# Packets and messages.


@cache
def packets() -> list[Packet]:
    """Return valid packets of every codec."""
    rng = np.random.default_rng(0)
    compressors = [cls() for cls in REGISTRY.values()]
    compressors += [TopK(0.7), TopK(1.0), RandK(1.0), QSGD(1), QSGD(8), QSGD(16), Cast("bf16"), TopKQSGD(0.5, 8)]
    blocks = [rng.standard_normal(shape).astype(t) for shape in ((5, 8), (3,), (0, 4), (150,)) for t in ("<f4", "<f8")]
    blocks += [np.zeros((4, 4), np.float32), np.full((7,), 1e30, np.float32)]
    return [compressor.encode(block, 7) for compressor in compressors for block in blocks]


@cache
def message_list() -> list[Message]:
    """Return valid messages of every kind."""
    held = packets()
    return [
        Message(kind, step, {1 + i: (held[(7 * step + i) % len(held)],) for i in range(blocks)}, hold=bool(step % 2))
        for kind in Kind
        for step, blocks in ((0, 0), (3, 1), (300, 2), (70_000, 3))
    ]


def read_packet(data: bytes) -> None:
    """Read and decode a packet: accepted bytes are the only ones that say the same, and the block is finite."""
    packet = Packet.from_bytes(data)
    assert packet.to_bytes() == data
    _decode(packet)


def _decode(packet: Packet) -> None:
    block = decode(packet, LIMIT)
    assert (block.shape, block.dtype) == (packet.shape, packet.dtype)
    assert np.isfinite(block).all()


def read_body(data: bytes) -> None:
    """Decode a body under a header that is right: byte 0 chooses it."""
    chosen = packets()[data[0] % len(packets())] if data else packets()[0]
    _decode(Packet(chosen.codec, chosen.dtype, chosen.shape, data[1:]))


def read_message(data: bytes) -> None:
    """Read a message and decode its packets."""
    message = Message.from_bytes(data)
    assert message.to_bytes() == data
    assert message.size == len(data)
    for group in message.packets.values():
        for packet in group:
            _decode(packet)


# What is decided, and what parties say of held-out rows.


def decisions() -> list[Message]:
    """Return valid decisions."""
    found = Decision(keep=True), Decision(use=True, rate=0.25), Decision()
    return [Message(Kind.DECIDE, 3, {1: decision.packets()}, True) for decision in found]


def read_decision(data: bytes) -> None:
    """Read what a server has decided: all that is accepted can be carried out, and says the same again."""
    for group in Message.from_bytes(data).packets.values():
        decision = Decision.read(group)
        assert isfinite(decision.rate)
        assert Decision.read(decision.packets()) == decision


@cache
def evaluated() -> Server:
    """Return a server that evaluates the rows of three parties by messages."""
    x = columns(torch.float32, rows=9)
    return problem(efvfl(TopK(0.3)), torch.float32, patience=2, validation=(x, classes(x)), test=(x, classes(x))).server


@cache
def evaluations() -> list[Message]:
    """Return valid reports on the nine validation rows, and on these and nine test rows exactly."""
    held = torch.ones(9, 4)
    parts = (TopK(0.3).encode(held.numpy(), 1),), send_exactly(held), send_exactly(held) * 2
    return [Message(Kind.EVALUATION, 0, {1: packets}) for packets in parts]


def read_evaluation(data: bytes) -> None:
    """Check a reply to EVALUATE, and to FINAL."""
    for kind in (Kind.EVALUATE, Kind.FINAL):
        with contextlib.suppress(EfvflError):
            evaluated().check("party1", Message.from_bytes(data), Message(kind, 0, {}, True))


@cache
def late_party() -> tuple[Party, dict[str, Any]]:
    """Return a party with an open report, where reports may come late, and its state."""
    run = problem(efvfl(TopK(0.3)), torch.float32, agreement=Agreement(asynchronous=Quorum(2, most_stale=3)))
    party = run.parties["party1"]
    party.handle(Message(Kind.BEGIN, 0))
    return party, party.state_dict()


def late_answers() -> list[Message]:
    """Return valid answers to its report."""
    packets = {1: send_exactly(torch.ones(ROWS, WIDTH))}
    return [Message(Kind.LATE, 2, packets), Message(Kind.LATE, 4, packets, True)]


def read_late(data: bytes) -> None:
    """Have a party take an answer to a report that came late; it never skips more steps than were agreed on."""
    party, state = late_party()
    message = Message.from_bytes(data)
    if message.kind == Kind.LATE:
        party.load_state_dict(state)
        party.handle(message)
        assert 2 <= party.step == message.step <= 4


# Frames, streams of them, and log entries.


@cache
def frames() -> list[bytes]:
    """Return valid frames without their checksums."""
    found = [Frame(kind, n, n // 2, b"body" * n) for kind in FrameKind for n in (0, 1, 200)]
    found += [json_frame(FrameKind.HELLO, {"name": "bank", "rows": [1, 2]}, 3)]
    found += [Frame(FrameKind.REQUEST, 5, 4, message.to_bytes()) for message in message_list()]
    return [each.to_bytes()[4:] for each in found]


def read_frame(data: bytes) -> None:
    """Read a frame as it is."""
    read = Frame.from_bytes(data)
    assert read.to_bytes() == data
    read.json()


def read_sealed_frame(data: bytes) -> None:
    """Read a frame whose checksum is right, whatever it holds."""
    read_frame(zlib.crc32(data).to_bytes(4, "little") + data)


@cache
def streams() -> list[bytes]:
    """Return streams of frames and signs of life, each after two bytes that say how it is cut."""
    bodies = [b"", b"a", bytes(30), bytes(range(256)) * 2]
    whole = b"".join(framed(body) + SIGN_OF_LIFE for body in bodies)
    return [bytes((step, shift)) + whole for step, shift in ((1, 0), (9, 3), (40, 7), (255, 0))]


def take_frames(data: bytes) -> None:
    """Take frames out of a stream that arrives in parts: what comes out is what is in it, however it is cut."""
    step, shift, stream = max(1, data[0]) if data else 1, data[1] if len(data) > 1 else 0, data[2:]
    taking, at_once, taken = Deframer(limit=600), Deframer(limit=600), []
    place = min(shift, len(stream))
    parts = [stream[:place], *(stream[i : i + step] for i in range(place, len(stream), step))]
    try:
        for part in parts:
            taking.add(part)
            while (frame := taking.next()) is not None:
                assert len(frame) <= 600
                taken.append(frame)
    finally:
        at_once.add(stream)
        for frame in taken:
            assert at_once.next() == frame
    assert at_once.next() is None
    assert at_once.beats == taking.beats


@cache
def log_entries() -> list[bytes]:
    """Return valid entries of a message log."""
    chosen = message_list()
    return [pack({"bank": a, "telco": b}) for a, b in zip(chosen, reversed(chosen), strict=True)]


# Questions, answers, handshakes and alignments.


class Answering:
    """A party that represents any rows by themselves."""

    name = "bank"
    model = SimpleNamespace(represent=lambda rows, alone=False: rows)
    plan = SimpleNamespace(presence=None)
    noise = None


@cache
def handler() -> QuestionHandler:
    """Return a party's answers to questions."""
    columns = {"train": torch.zeros(20, 3), "test": torch.ones(5, 3)}
    data: Any = SimpleNamespace(
        columns=columns, ids={s: [f"{s}:{n}" for n in range(len(x))] for s, x in columns.items()}
    )
    party: Any = Answering()
    data.encoder = None
    return QuestionHandler(party, data, columns=ColumnAnswers(party, data, seed=1, tells_names=True))


QUESTIONS: list[Any] = [
    {"split": "test", "start": 0, "stop": 5},
    {"ids": ["train:1", "test:0"]},
    {"ids": ["nobody", "test:0"]},
    {"columns": "list"},
    {"columns": 2, "split": "test", "rows": [0, 3, 4]},
    {"columns": {"values": [[0.1, 0.0, 0.2]] * 3, "split": "test", "rows": 5, "metric": "auc"}},
]


@cache
def answers() -> list[bytes]:
    """Return valid answers."""
    return [handler()(json.dumps(each).encode())[1] for each in QUESTIONS]


def read_answers(data: bytes) -> None:
    """Read an answer about five rows, one that says what is lacking, and one about columns."""
    with contextlib.suppress(EfvflError):
        assert read_answer("bank", data, 5, 3).shape == (5, 3)
    with contextlib.suppress(EfvflError):
        found = ColumnList.read("bank", data)
        assert len(found.names) in (0, found.count)
    with contextlib.suppress(EfvflError):
        places, rows = read_held("bank", data, 5, 3)
        assert rows.shape == (5 - len(places), 3)
        assert all(0 <= place < 5 for place in places)


@cache
def hello() -> dict[str, Any]:
    """Return what a participant says first."""
    ids = {"train": ["a", "b"], "validation": ["c"], "test": ["d"]}
    began = {"alignment": 3, "start": {"bank": "ab" * 16}}
    return handshake.about(RunConfig(), "bank", ["bank", "telco"], ids) | began


def read_hello(data: bytes) -> None:
    """Compare a HELLO with ours."""
    handshake.compare(hello(), Frame(FrameKind.HELLO, body=data).json())


EVERYBODY = {"has": {"bank": "ff"}, "labels": [0] * 8, "weights": [None] * 8, "names": ["a"], "loss": "cross_entropy"}

# What reads an alignment's questions and answers, and a valid example for each.
ALIGNMENT: list[tuple[Callable[[bytes], object], bytes]] = [
    (
        lambda data: messages.ShardQuestion.read(messages.read_kind(data)[1]),
        messages.ShardQuestion(bytes(messages.SALT), 9, 4, 3, bytes(2 * POINT)).to_bytes(),
    ),
    (lambda data: messages.read_points(data, 1, 2), messages.write_points(bytes(POINT), bytes(2 * POINT))),
    (
        lambda data: messages.read_digests(data, 0),
        messages.write(messages.AlignmentKind.DIGESTS, 2, bytes(2 * messages.DIGEST)),
    ),
    (
        lambda data: messages.read_count(data, messages.AlignmentKind.SPLITS),
        messages.write(messages.AlignmentKind.SPLITS, 7),
    ),
    (
        lambda data: messages.PlacesPart.read(messages.read_kind(data)[1]),
        messages.PlacesPart(bytes(messages.SALT), bytes(POINT), 3, 0, [(0, 4), (0, 300), (2, 0)]).to_bytes(),
    ),
    (
        lambda data: messages.read_place_answer(data, 3),
        messages.write_place_answer(3, (bytes(POINT), bytes(TAG))),
    ),
    (
        lambda data: messages.SplitsPart.read(messages.read_kind(data)[1]),
        messages.SplitsPart(bytes(messages.SALT), bytes(TAG), 3, 0, b"\x00\x01\x02").to_bytes(),
    ),
    (
        lambda data: messages.NumbersPart.read(messages.read_kind(data)[1], 40),
        messages.NumbersPart(bytes(messages.SALT), bytes(TAG), 1, (28, 6, 6), 0, [3, 7, 39]).to_bytes(),
    ),
    (
        lambda data: messages.EverybodyPart.read(messages.read_kind(data)[1]),
        messages.EverybodyPart(bytes(messages.SALT), bytes(TAG), 1, 0, 8, EVERYBODY).to_bytes(),
    ),
]


def read_alignment(data: bytes) -> None:
    """Give the bytes to every reader of an alignment."""
    for read, _ in ALIGNMENT:
        with contextlib.suppress(EfvflError):
            read(data)


# The prediction service.


class Predicting:
    """A batcher that knows every id."""

    settings = SimpleNamespace(timeout=5.0, quota=0, unknown=0)
    process = SimpleNamespace(in_one_form=lambda ids: ids)

    def predict_cached(self, ids: list[str]) -> Prediction:
        """Return a prediction for every id."""
        return Prediction(ids, [RowOutcome("ok", ("bank",))] * len(ids), {"prediction": [0] * len(ids)})

    def health(self) -> dict[str, Any]:
        """Return that all is well."""
        return {"status": "ok"}


@cache
def app() -> Any:
    """Return the service's app, in which the batcher, the log and the place of a connection are ours."""
    batcher: Any = Predicting()
    unlogged: Any = SimpleNamespace(record=lambda line: None)
    made = make_app(batcher, AccessControl(token=TOKEN), unlogged)

    async def placed(scope: Any, receive: Any, send: Any) -> None:
        await made(scope | {"state": {"place": SimpleNamespace(trusted=False)}}, receive, send)

    return placed


BODIES: list[Any] = [{"ids": ["a", "b"]}, {"ids": ["é"]}, {"ids": [str(n) for n in range(30)]}]
HEADERS = [
    f"POST /predict\nAuthorization: Bearer {TOKEN}\nContent-Type: application/json\n\n".encode() + b'{"ids": ["a"]}',
    f"POST /predict\nAuthorization: Bearer {TOKEN}\nHost: example.org\nX-Request-Id: 7\n\n".encode()
    + b'{"ids": ["a"]}',
    b"GET /health\nHost: example.org\n\n",
    b"PUT /predict/\nAuthorization: Basic dDp0\n\n{}",
]


def request_ids(data: bytes) -> None:
    """Read the ids in a body; and send it with valid credentials."""
    _request("POST", "/predict", [(b"authorization", f"Bearer {TOKEN}".encode())], data)
    read_ids(data)


def request_headers(data: bytes) -> None:
    """Send a request with these words and headers, one a line, and a body after an empty line."""
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, _, path = first.partition(b" ")
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    _request(method.decode("latin-1"), path.decode("latin-1"), headers, body)


def _request(method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Hand a request to the app as a server does; a status of 500 or an error is a finding."""

    async def send() -> int:
        stream = httpx.ByteStream(body)
        request = httpx.Request("POST", "http://service/", headers=headers, stream=stream)
        request.method = method
        url = request.url
        with contextlib.suppress(httpx.InvalidURL, ValueError):  # a server would not have let it through
            url = request.url.copy_with(raw_path=path.encode("latin-1"))
        request.url = url
        async with httpx.ASGITransport(app()) as transport:
            return (await transport.handle_async_request(request)).status_code

    status = asyncio.run(send())
    assert 200 <= status < 500, status


# Run files and experiment files.


def _documents() -> SearchStrategy[list[bytes]]:
    change = st.tuples(st.sampled_from(list(odd_settings.key_paths())), st.sampled_from(odd_settings.ODD))
    return st.builds(_document, st.sampled_from(odd_settings.BASES), st.lists(change, min_size=1, max_size=3))


def _document(base: dict[str, Any], changes: Sequence[tuple[odd_settings.Path_, Any]]) -> list[bytes]:
    for path, value in changes:
        base = odd_settings.changed(base, path, value)
    return [odd_settings.document(base).encode()]


def _sweeps() -> SearchStrategy[list[bytes]]:
    own = st.tuples(st.sampled_from(odd_settings.SWEEP_KEYS), st.sampled_from(odd_settings.ODD))
    run_keys = [("run", *path) for path in odd_settings.key_paths()] + [
        ("base", *path) for path in odd_settings.key_paths()
    ]
    theirs = st.tuples(st.sampled_from(run_keys), st.sampled_from(odd_settings.ODD))
    changes = st.lists(st.one_of(own, theirs), min_size=1, max_size=3)
    return st.builds(_document, st.just(odd_settings.SWEEP), changes)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    made = tempfile.TemporaryDirectory()
    odd_settings.prepare(Path(made.name))
    return made


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def build_run(data: bytes) -> None:
    """Build all that a run file says; layers are kept small, because time is counted."""
    odd_settings.build_all(_text(data), Path(_folder().name))


def build_sweep(data: bytes) -> None:
    """Build all that an experiment file says."""
    odd_settings.build_sweep(_text(data), Path(_folder().name))


def _encoded(parts: Sequence[Any]) -> list[bytes]:
    return [part.to_bytes() for part in parts]


FUZZERS: tuple[Fuzzer, ...] = (
    Fuzzer("packets", lambda: mutated(_encoded(packets())), read_packet, 30),
    Fuzzer("bodies", lambda: mutated([bytes((i,)) + p.body for i, p in enumerate(packets())]), read_body, 30),
    Fuzzer("messages", lambda: mutated(_encoded(message_list())), read_message, 30),
    Fuzzer("decisions", lambda: mutated(_encoded(decisions())), read_decision),
    Fuzzer("evaluations", lambda: mutated(_encoded(evaluations())), read_evaluation),
    Fuzzer("late-answers", lambda: mutated(_encoded(late_answers())), read_late),
    Fuzzer("frames", lambda: mutated([zlib.crc32(f).to_bytes(4, "little") + f for f in frames()]), read_frame),
    Fuzzer("sealed-frames", lambda: mutated(frames()), read_sealed_frame),
    Fuzzer("streams", lambda: mutated(streams()), take_frames),
    Fuzzer("log-entries", lambda: mutated(log_entries()), unpack),
    Fuzzer("questions", lambda: odd_json(QUESTIONS), handler()),
    Fuzzer("answers", lambda: mutated(answers()), read_answers),
    Fuzzer("handshakes", lambda: odd_json([hello()]), read_hello),
    Fuzzer("alignment", lambda: mutated([valid for _, valid in ALIGNMENT]), read_alignment),
    Fuzzer("http-bodies", lambda: odd_json(BODIES), request_ids, 5),
    Fuzzer("http-headers", lambda: mutated(HEADERS), request_headers, 5),
    Fuzzer("run-files", _documents, build_run, 50),
    Fuzzer("toml", lambda: mutated([odd_settings.document(b).encode() for b in odd_settings.BASES]), build_run, 3),
    Fuzzer("experiment-files", _sweeps, build_sweep, 15),
)

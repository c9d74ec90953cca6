"""What leaves the building over a real port with mutual TLS: every byte is searched, just before it is encrypted."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from leaks import find_leaks
from meetings import VICTIM, Meeting, Rogue, close_logs, own_copy, settings  # noqa: F401
from tapped_wire import TappedWire
from torch import Tensor

from efvfl.config.run_file import RunConfig
from efvfl.core.channel import send_exactly
from efvfl.core.fusion import StepContext
from efvfl.core.local_model import PlainModel
from efvfl.core.party import Party
from efvfl.network.identity import authority, certificates
from efvfl.network.links.connecting import dial
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.links.framing import framed
from efvfl.network.links.listening import listen
from efvfl.network.links.wire import Wire
from efvfl.network.ops import audit_log
from efvfl.network.training.build import frame_limit
from efvfl.runs.build import private_seed
from efvfl.wire.message import Message
from efvfl.wire.packet import Packet

ROWS, WIDTH, BATCH = 320, 16, 32
PARTIES = ("bank", "clinic")
SEEDS = {"": 918_273_645_546_372, "bank": 705_614_233_827_461, "clinic": 386_420_917_553_208}
SECRET_ID = "patient-{:05d}-kq"


def key_of(party: Party) -> int:
    """The key of the dropout that a party draws by itself."""
    assert isinstance(party.model, PlainModel)
    return party.model.key


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Columns without any two equal numbers, so that what is found is no accident; and ids that are secret."""
    folder = tmp_path_factory.mktemp("data")
    chance = np.random.default_rng(5)
    x = {name: chance.normal(size=(ROWS, WIDTH)).astype(np.float32) for name in PARTIES}
    ids = np.array([SECRET_ID.format(i) for i in chance.permutation(ROWS)])
    y = (x["bank"][:, :3] + x["clinic"][:, :3]).argmax(axis=1)
    np.savez(folder / "labels.npz", y=y, ids=ids)
    for name in PARTIES:
        np.savez(folder / f"{name}.npz", x=x[name], ids=ids)
    return folder


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "certs"
    authority.make(folder, [certificates.SERVER, *PARTIES])
    return folder


def file(**more: Any) -> RunConfig:
    parties = [{"name": name, "data": {"path": f"{name}.npz"}, "private_seed": SEEDS[name]} for name in PARTIES]
    return settings(
        epochs=3,
        batch_size=BATCH,
        data={"path": "labels.npz"},
        party=parties,
        private_seed=SEEDS[""],
        **more,
    )


@dataclass
class Seen:
    """What the search for leaks of the core's tests wants to know."""

    payloads: list[tuple[str, str, bytes]] = field(default_factory=list)
    label_batches: list[Tensor] = field(default_factory=list)
    fusion: list[Tensor] = field(default_factory=list)


class Overheard(Meeting):
    """A meeting of which every byte is kept: `server` for what the server sends, and a list for each party."""

    def __init__(self, folder: Path, ready: Path, data: Path, config: RunConfig) -> None:
        super().__init__(folder, config, data)
        self.sent: dict[str, list[bytes]] = {name: [] for name in ("server", *PARTIES)}
        self.ready = ready
        self.trail = audit_log.AuditLog(folder / "server")
        self.requests.hooks = replace(self.requests.hooks, on_frame=self.trail.record)
        self.batches: list[Tensor] = []
        self.fusion: list[Tensor] = []
        self.limit = frame_limit(self.serving.plan)
        own = certificates.load(ready, certificates.SERVER)
        self.server, self.port = listen("127.0.0.1:0", own, self.limit, len(PARTIES), self._accept)
        post, server = self.requests.post, self.serving.server

        def watched(messages: Any) -> None:
            self.batches.append(server.labels[server.batches.rows(max(0, server.step_number - 1))])
            self.fusion.append(server.block.vector())
            post(messages)

        self.requests.post = watched  # type: ignore[method-assign]

    def _accept(self, wire: Wire, name: str | None) -> None:
        self.requests.accept(TappedWire(wire, self.sent["server"].append), name)

    def dial_as(self, name: str) -> Wire:
        wire = dial(f"127.0.0.1:{self.port}", certificates.load(self.ready, name), self.limit)
        return TappedWire(wire, self.sent[name].append)

    def join(self, name: str, by: Callable[[], Wire] | None = None) -> None:
        super().join(name, by or partial(self.dial_as, name))

    def run(self) -> None:
        try:
            self.start(*PARTIES)
            self.finish()
        finally:
            self.stop()

    def stop(self) -> None:
        super().stop()
        self.server.close()
        self.trail.close()

    def bytes(self, *names: str) -> bytes:
        """All that these have sent."""
        return b"".join(data for name in names for data in self.sent[name])

    def labels_found(self) -> list[str]:
        """Labels and fusion parameters in what the server sent."""
        seen = Seen([("down", "", data) for data in self.sent["server"]], list(self.batches), self.fusion)
        seen.label_batches += self.serving.data.labels.values()
        found = find_leaks(seen)  # type: ignore[arg-type]
        data = self.bytes("server")
        for batch in seen.label_batches:  # as JSON would have them
            for separators in ((", ", ": "), (",", ":")):
                if json.dumps(batch.tolist(), separators=separators)[1:-1].encode() in data:
                    found.append("labels as text")
        return found

    def columns_found(self, name: str) -> list[str]:
        """Four numbers in a row of a party's columns in what it sent."""
        sent = [("up", "", data) for data in self.sent[name]]
        answerer: Any = self.members[name].represent
        rows = list(answerer.columns.values())
        assert sum(map(len, rows)) == ROWS
        return find_leaks(Seen(sent, [], [r.reshape(-1) for x in rows for r in (x, x.double())]))  # type: ignore[arg-type]


def ids_found(data: bytes) -> list[str]:
    """Ids, or digests of single ones, which could be guessed."""
    ids = [SECRET_ID.format(i) for i in range(ROWS)]
    forms: list[Callable[[bytes], bytes]] = [
        lambda b: b,
        *(partial(_digest, name) for name in ("md5", "sha1", "sha256", "blake2b")),
        lambda b: hashlib.blake2b(b, digest_size=16).digest(),
    ]
    found = [i for i in ids for form in forms if (code := form(i.encode())) in data or code.hex().encode() in data]
    return found + (["a part of an id"] if b"-kq" in data else [])


def _digest(name: str, data: bytes) -> bytes:
    return hashlib.new(name, data).digest()[:8]


def numbers_found(data: bytes, secret: int) -> list[str]:
    """A number of up to 64 bits in any of its usual forms."""
    forms = {"decimal": str(secret), "hexadecimal": f"{secret:x}"}
    found = [name for name, text in forms.items() if text.encode() in data or text.upper().encode() in data]
    for order in ("little", "big"):
        code = (secret % (1 << 64)).to_bytes(8, order)
        size = 8 if secret >= 1 << 56 else 6
        found += [order] if (code[:size] if order == "little" else code[-size:]) in data else []
    return found


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory, ready: Path, data: Path) -> Overheard:
    """A whole run, which ends as it does without a network."""
    made = Overheard(tmp_path_factory.mktemp("heard"), ready, data, file())
    made.run()
    return made


# The server: labels and the fusion model.


def test_all_that_was_sent_was_heard(heard: Overheard) -> None:
    """Both ends' lists hold every kind of frame, and as many bytes as the ledgers count."""
    kinds = {name: {Frame.from_bytes(data).kind for data in sent} for name, sent in heard.sent.items()}
    down = {FrameKind.WELCOME, FrameKind.REQUEST, FrameKind.ASK, FrameKind.STOP}
    assert kinds["server"] == down
    for name in PARTIES:
        assert kinds[name] == {FrameKind.HELLO, FrameKind.REPLY, FrameKind.ANSWER, FrameKind.BYE}
    requests = [Frame.from_bytes(data) for data in heard.sent["server"]]
    body = sum(len(frame.body) for frame in requests if frame.kind == FrameKind.REQUEST)
    assert body == heard.serving.ledger.total("down")
    steps = heard.serving.steps
    assert len(heard.batches) == len(heard.fusion) == steps + len(heard.records)


def test_the_trail_tells_of_every_byte(heard: Overheard) -> None:
    lines = [line for line in audit_log.read(heard.serving.folder) if line.direction == "out"]
    assert [line.frame for line in lines] == [len(framed(data)) for data in heard.sent["server"]]


def test_the_trail_tells_of_refusals_as_well(tmp_path: Path, ready: Path, data: Path) -> None:
    meeting = Overheard(tmp_path, ready, data, file())
    try:
        meeting.start("bank")
        rogue = Rogue.__new__(Rogue)
        rogue.meeting, rogue.wire = meeting, meeting.dial_as("clinic")
        rogue.send(Frame(FrameKind.STOP))
        assert "expected HELLO as the first frame of a connection" in rogue.refused()
        rogue.wire.close()
        meeting.join("clinic")
        meeting.finish()
    finally:
        meeting.stop()
    lines = [line.kind for line in audit_log.read(meeting.serving.folder) if line.direction == "out"]
    assert sorted(lines).count("refuse") == 1
    assert len(lines) == len(meeting.sent["server"])


def test_nothing_that_the_server_sent_holds_labels_or_fusion_parameters(heard: Overheard) -> None:
    assert len(heard.bytes("server")) > 80_000
    assert heard.labels_found() == []


@pytest.fixture
def planted(tmp_path: Path, ready: Path, data: Path) -> Iterator[Overheard]:
    """A run with a leak that the test plants; it need not end as others do."""
    made = Overheard(tmp_path, ready, data, file())
    made.check_same = lambda: None  # type: ignore[method-assign]
    yield made
    made.stop()


@pytest.mark.parametrize("secret", ["uint8", "int64", "float32", "fusion", "half a fusion"])
def test_a_leak_in_a_cotangent_is_found(planted: Overheard, secret: str) -> None:
    server = planted.serving.server
    honest = server.label_mode.answers

    def leaking(context: StepContext, reports: Mapping[str, Message], hold: bool) -> dict[str, Message]:
        messages = honest(context, reports, hold)
        if context.step != 7:
            return messages
        if secret.endswith("fusion"):
            vector = server.block.vector()
            body = send_exactly(vector[5:9] if secret.startswith("half") else vector)[0].body
        else:
            body = server.labels[context.rows].to(getattr(torch, secret)).numpy().tobytes()
        first = next(iter(messages))
        packet = messages[first].packets[1][0]
        start = 12 if secret.endswith("fusion") else 13  # an odd place where that still makes finite numbers
        hidden = Packet(
            packet.codec, packet.dtype, packet.shape, packet.body[:start] + body + packet.body[start + len(body) :]
        )
        return messages | {first: replace(messages[first], packets={1: (hidden,)})}

    server.label_mode.answers = leaking  # type: ignore[method-assign]
    planted.run()
    found = planted.labels_found()
    assert found
    assert all(("fusion" in text) is secret.endswith("fusion") for text in found)


@pytest.mark.parametrize("kind", [FrameKind.WELCOME, FrameKind.ASK, FrameKind.STOP])
def test_a_leak_in_any_other_frame_is_found(planted: Overheard, kind: FrameKind) -> None:
    put, labels = planted.requests._put, planted.serving.data.labels["test"]

    def leaking(connection: Any, frame: Frame) -> None:
        if frame.kind == kind:
            table = (json.loads(frame.body) if kind != FrameKind.STOP else {}) | {"hint": labels.tolist()}
            frame = replace(frame, body=json.dumps(table).encode())
        put(connection, frame)

    planted.requests._put = leaking  # type: ignore[method-assign]
    for member in planted.members.values():  # an honest party refuses a question with a hint in it
        member.represent = partial(_without_hint, member.represent)
    planted.run()
    assert planted.labels_found() == ["labels as text"]


def _without_hint(represent: Any, question: bytes) -> Any:
    table = json.loads(question)
    table.pop("hint", None)
    return represent(json.dumps(table).encode())


# The parties: columns, ids and seeds.


@pytest.mark.parametrize("name", PARTIES)
def test_nothing_that_a_party_sent_holds_its_columns(heard: Overheard, name: str) -> None:
    assert len(heard.bytes(name)) > 20_000
    assert heard.columns_found(name) == []


def test_columns_that_leave_are_found(planted: Overheard) -> None:
    member = planted.members["clinic"]
    answerer: Any = member.represent

    def leaking(question: bytes) -> tuple[int, bytes]:
        asked = json.loads(question)
        rows = answerer.columns[asked["split"]][asked["start"] : asked["stop"]]
        return len(rows), b"\0" + send_exactly(rows)[0].to_bytes()

    leaking.columns = answerer.columns  # type: ignore[attr-defined]
    member.represent = leaking
    planted.run()
    assert planted.columns_found("clinic")
    assert planted.columns_found("bank") == []


def test_no_id_leaves(heard: Overheard) -> None:
    assert heard.serving.data.ids["train"][0].endswith("-kq")
    assert ids_found(heard.bytes("server", *PARTIES)) == []


def test_no_seed_and_no_key_leaves(heard: Overheard) -> None:
    everything = heard.bytes("server", *PARTIES)
    server = heard.serving.server
    secrets = [*SEEDS.values(), server.plan.fusion_key, *(channel.key for channel in server.label_mode.downs.values())]  # type: ignore[attr-defined]
    for name, member in heard.members.items():
        assert private_seed(own_copy(heard.config, name), name) == SEEDS[name]
        secrets += [key_of(member.party), member.party.up.key]
    assert len({secret for secret in secrets if secret > 1 << 40}) >= 3 + 3
    for secret in secrets:
        if secret:  # a channel that only receives has no key
            assert numbers_found(everything, secret) == []


def test_a_hello_says_what_it_must_and_no_more(heard: Overheard) -> None:
    for name in PARTIES:
        first = Frame.from_bytes(heard.sent[name][0])
        table = first.json()
        assert first.kind == FrameKind.HELLO
        assert set(table) == {"protocol", "name", "digest", "shared", "rows", "memory", "step", "asked"}
        assert set(table["rows"]) == {"train", "validation", "test"}
        shared = table["shared"]
        assert "seed" in shared  # the batches' seed is everyone's
        assert not {"private_seed", "party", "data", "model", "protect", "network"} & set(shared)


@pytest.mark.parametrize("secret", ["id", "digest", "seed", "key"])
def test_what_is_said_too_much_in_a_hello_is_found(planted: Overheard, secret: str) -> None:
    member = planted.members["bank"]
    one = planted.serving.data.ids["train"][17]
    said = {
        "id": one,
        "digest": hashlib.sha256(one.encode()).hexdigest(),
        "seed": SEEDS["bank"],
        "key": f"{key_of(member.party):x}",
    }
    member.about = member.about | {"note": said[secret]}
    planted.run()
    everything = planted.bytes("server", *PARTIES)
    assert bool(ids_found(everything)) is (secret in ("id", "digest"))
    assert bool(numbers_found(everything, SEEDS["bank"])) is (secret == "seed")
    assert bool(numbers_found(everything, key_of(member.party))) is (secret == "key")

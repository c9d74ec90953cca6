"""A federation in one process, with a participant among them that may send what it should not."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from efvfl.config import run_file as configs
from efvfl.config.run_file import LimitConfig, RunConfig
from efvfl.errors import LinkError
from efvfl.network.links.connections import ServerTimeouts
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.links.message_log import MessageLog
from efvfl.network.links.wire import Wire, memory_pair
from efvfl.network.training import participant_data
from efvfl.network.training.autosave import CheckpointPolicy
from efvfl.network.training.build import build_party, make_plan
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.questions import QuestionHandler
from efvfl.network.training.server_process import ServerProcess
from efvfl.runs.build import load_data, make_federation, watching

BASE: dict[str, Any] = {
    "seed": 3,
    "epochs": 2,
    "batch_size": 64,
    "observe_gradient": False,
    "data": {"subset": 200},
    "agreement": {"labels": "private"},
    "method": {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.1}},
}


VICTIM = "top-left"  # the party whose name is misused; block 1


OTHER = "top-right"


TIMEOUTS = ServerTimeouts(hello=10.0, tick=0.02, linger=300.0)


WAITING = PartyTimeouts(tick=0.05, longest=0.2, welcome=3.0, server=60.0)


SECONDS = 300.0  # until a test that hangs fails


def settings(**more: Any) -> RunConfig:
    return configs.read(RunConfig, BASE | more, "test")


_held: dict[tuple[str, Path, str], ParticipantData] = {}


def holding(config: RunConfig, name: str, data: Path) -> ParticipantData:
    """What a participant holds; nobody writes to it, so it is loaded once."""
    key = (repr((config.seed, config.data, config.party, config.agreement.labels)), data, name)
    if key not in _held:
        _held[key] = participant_data.load(config, data, name)
    return _held[key]


def own_copy(config: RunConfig, name: str) -> RunConfig:
    """The file as one participant has it: without the others' private seeds."""
    parties = tuple(party if party.name == name else replace(party, private_seed=None) for party in config.party)
    return replace(config, party=parties, private_seed=None if name else config.private_seed)


def make_member(
    config: RunConfig, name: str, folder: Path, limits: LimitConfig | None = None, data: Path = Path()
) -> PartyProcess:
    config = own_copy(config, name)
    held = holding(config, name, data)
    party = build_party(config, make_plan(config, held), held, name)
    about = held.about(config, name)
    saving = CheckpointPolicy(config.network)
    limits = limits or config.of(name).limits
    made = PartyProcess(party, folder, about, QuestionHandler(party, held, limits.train_rows), limits, saving)
    _open.append(made.message_log)
    return made


_open: list[MessageLog] = []


@pytest.fixture(autouse=True)
def close_logs() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


def same(left: Any, right: Any) -> bool:
    """Whether two states are equal, tensors bit for bit."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


def outcome(records: list[Any], server: Any, parties: dict[str, Any]) -> dict[str, Any]:
    """All that a run leaves, but for times and for what only one process can measure."""
    kept = ("epoch", "step", "surrogate_loss", "validation", "test", "bytes_up", "bytes_down", "ledger")
    return {
        "records": [{key: getattr(record, key) for key in kept} for record in records],
        "server": server.state_dict(),
        "parties": {name: party.state_dict() for name, party in parties.items()},
    }


_calm: dict[tuple[str, Path], dict[str, Any]] = {}


def undisturbed(config: RunConfig, data: Path = Path()) -> dict[str, Any]:
    """What the same run leaves in one process without a network."""
    key = (repr(config), data)
    if key not in _calm:
        federation = make_federation(config, load_data(config, data))
        records = list(federation.train(config.epochs, watching(config).every, False))
        _calm[key] = outcome(records, federation.server, dict(federation.parties))
    return _calm[key]


class Meeting:
    """A server and its members; each joins when it is told to."""

    def __init__(self, folder: Path, config: RunConfig | None = None, data: Path = Path()) -> None:
        self.config = config or settings()
        self.data = data
        own = own_copy(self.config, "")
        self.serving = ServerProcess(own, holding(own, "", data), folder / "server", TIMEOUTS)
        _open.append(self.serving.message_log)
        self.requests = self.serving.requests
        self.members = {name: make_member(self.config, name, folder / name, data=data) for name in self.requests.names}
        self.errors: list[BaseException] = []
        self.records: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._leaving: list[threading.Event] = []

    def start(self, *names: str) -> None:
        """Let the server run, and these parties join."""
        self._run(self._serve)
        for name in names:
            self.join(name)

    def join(self, name: str, by: Callable[[], Wire] | None = None) -> None:
        joining = Dialler(self.members[name], by or self.dial, WAITING)
        self._leaving.append(joining.stopping)
        self._run(joining.run)

    def dial(self) -> Wire:
        """Open a link within this process."""
        near, far = memory_pair()
        self.requests.accept(near, None)
        return far

    def _serve(self) -> None:
        try:
            for record in self.serving.train():
                self.records.append(record)
            assert self.serving.finish() == set()
        finally:
            self.requests.close()

    def _run(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()

    def until_connected(self, name: str) -> None:
        """Wait until a party is welcome; it joins on a thread of its own."""
        ends = time.monotonic() + SECONDS
        while name not in self.requests.connections:
            self.check()
            assert time.monotonic() < ends, f"{name} does not connect"
            time.sleep(0.005)

    def check(self) -> None:
        """Fail if somebody who should not has ended with an error."""
        if self.errors:
            raise AssertionError(f"the federation was harmed: {self.errors[0]!r}") from self.errors[0]

    def finish(self) -> None:
        """Wait until all are done and see that nothing has gone otherwise than without a network."""
        for thread in self._threads:
            thread.join(SECONDS)
            self.check()
            assert not thread.is_alive(), "the federation hangs"
        self.check_same()

    def check_same(self) -> None:
        parties = {name: member.party for name, member in self.members.items()}
        assert same(outcome(self.records, self.serving.server, parties), undisturbed(self.config, self.data))

    def stop(self) -> None:
        """Leave nothing running, whatever happened."""
        for event in (self.requests.stopping, *self._leaving):
            event.set()
        for thread in self._threads:
            thread.join(5)


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    """All but the victim are there; the server waits for it."""
    made = Meeting(tmp_path)
    made.start(*(name for name in made.requests.names if name != VICTIM))
    yield made
    made.stop()


def answer_of(member: PartyProcess, frame: Frame) -> Frame:
    """What a party answers to a frame that wants an answer."""
    answer = member.respond(frame)
    assert answer is not None
    return answer


class Rogue:
    """Uses the victim's name, with the victim's own member to answer rightly when it wants to."""

    def __init__(self, meeting: Meeting, wire: Wire | None = None) -> None:
        self.meeting = meeting
        self.member = meeting.members[VICTIM]
        self.wire = wire or meeting.dial()

    def send(self, frame: Frame | bytes) -> None:
        self.wire.send(frame if isinstance(frame, bytes) else frame.to_bytes())

    def answer(self, frame: Frame) -> Frame:
        return answer_of(self.member, frame)

    def receive(self) -> Frame:
        for _ in range(int(SECONDS / 0.2)):
            self.meeting.check()
            try:
                return Frame.from_bytes(self.wire.receive(0.2))
            except TimeoutError:
                continue
            except LinkError:
                self.meeting.check()
                raise
        raise AssertionError("nothing came")

    def greet(self) -> None:
        self.send(self.member.hello())
        assert self.receive().kind == FrameKind.WELCOME

    def play(self, kind: FrameKind, after: int = 0) -> Frame:
        """Be honest until a frame of this kind comes, after so many of them; return it unanswered."""
        self.greet()
        while True:
            frame = self.receive()
            if frame.kind == kind:
                after -= 1
                if after < 0:
                    return frame
            self.send(self.answer(frame))

    def refused(self) -> str:
        """Read up to REFUSE and return its text; then the link must be closed."""
        while (frame := self.receive()).kind != FrameKind.REFUSE:
            pass
        self.closed()
        return str(frame.json()["text"])

    def closed(self) -> None:
        """See that the link ends, and nothing but what was under way comes before."""
        try:
            while True:
                self.receive()
        except LinkError:
            return


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> list[Frame]:
    """Every frame that an honest server sends to the victim."""
    made = Meeting(tmp_path_factory.mktemp("script"))
    frames: list[Frame] = []
    respond = made.members[VICTIM].respond

    def spy(frame: Frame) -> Frame | None:
        frames.append(frame)
        return respond(frame)

    made.members[VICTIM].respond = spy  # type: ignore[method-assign]
    made.start(*made.requests.names)
    made.finish()
    return frames


def goes_on(member: PartyProcess, frames: list[Frame]) -> None:
    """See that the honest rest of a run ends as if nothing had happened."""
    for frame in frames:
        member.respond(frame)
    assert member.finished
    assert same(member.party.state_dict(), undisturbed(settings())["parties"][VICTIM])

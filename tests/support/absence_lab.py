"""A federation over memory wires that goes on without parties; each can be cut off, killed and started again."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import networks
import torch
from torch import Tensor

from efvfl.config.run_file import NetworkConfig, RunConfig
from efvfl.core.fusion_replicas import ReplicaReceiver
from efvfl.core.fusion_updates import CompressedReceiver
from efvfl.core.party import Party
from efvfl.core.server import Server
from efvfl.core.shared_labels import SharedLabelsParty
from efvfl.errors import Interrupted, LinkError
from efvfl.network.links.connections import Hooks, ServerTimeouts
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.links.wire import Wire, memory_pair
from efvfl.network.training import build, participant_data, questions
from efvfl.network.training.autosave import CheckpointPolicy
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.server_process import ServerProcess

AWAY = "top-right"
TIMEOUTS = ServerTimeouts(repeat=0.2, tick=0.005, stale=0.05, linger=networks.SECONDS)

SHARED: dict[str, dict[str, object]] = {
    "relay, send": {},
    "relay, compress": {"fusion": "compress"},
    "relay, replicate": {"fusion": "replicate", "digest_every": 2},
    "relay, two local steps": {"local_steps": 2, "fusion": "replicate", "digest_every": 2},
    "relay, all rows": {"reports": "all"},
    "relay, narrow": {"memory_dtype": "bfloat16"},
    "aggregate, send": {"downlink": "aggregate"},
    "aggregate, compress": {"downlink": "aggregate", "fusion": "compress"},
    "aggregate, replicate": {"downlink": "aggregate", "fusion": "replicate", "digest_every": 2},
    "relay, replicate, window of 4": {"fusion": "replicate", "digest_every": 1, "pipeline": 4},
    "aggregate, all rows, window of 2": {"downlink": "aggregate", "reports": "all", "pipeline": 2},
}


def stale_config(**changes: object) -> RunConfig:
    """A run of 24 steps that goes on without a party."""
    network = {"on_missing": "stale", "stale_seconds": 0.05}
    method = {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.2}}
    settings: dict[str, object] = {"epochs": 8, "observe_every": 2, "network": network, "method": method}
    return networks.config(**settings | changes)


def shared_config(case: str, **changes: object) -> RunConfig:
    """The same with shared labels, an optimiser that remembers and a rate that changes."""
    agreement = {"labels": "shared"} | SHARED[case]
    method: dict[str, object] = {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.2}}
    if agreement.get("fusion") == "compress":
        method["fusion"] = {"name": "topk", "ratio": 0.5}
    optimizer = {"name": "Adam", "lr": 0.05, "scheduler": {"name": "StepLR", "step_size": 3, "gamma": 0.9}}
    return stale_config(**{"agreement": agreement, "method": method, "optimizer": optimizer} | changes)


def private_window(size: int) -> RunConfig:
    """A run with private labels in which a row may be in several of the batches that are under way."""
    method = {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.2}, "down": {"name": "qsgd", "bits": 4}}
    return stale_config(agreement={"pipeline": size}, batch_order="independent", method=method)


def memory_of(channel: Any) -> Tensor:
    g: Tensor = channel.memory.g
    return g


def assert_equal_everywhere(server: Server, parties: dict[str, Party], steps: int = 24) -> None:
    """What is remembered of a party is the same at all who remember it, and so are copies of the fusion model."""
    assert server.step_number == steps
    assert not server.attendance.away
    for name, party in parties.items():
        assert party.step == steps
        assert torch.equal(memory_of(server.channels[name]), memory_of(party.up)), name
        guide = party.label_mode
        if not isinstance(guide, SharedLabelsParty):
            continue
        for other, channel in guide.peers.items():
            assert torch.equal(memory_of(server.channels[other]), memory_of(channel)), (name, other)
        if isinstance(guide.receiver, ReplicaReceiver):
            assert guide.receiver.block.digest() == server.block.digest(), name
            assert guide.receiver.mends == 0
            schedules = [block.scheduler for block in (guide.receiver.block, server.block)]
            assert len({str(s.state_dict()) for s in schedules if s}) <= 1
        if isinstance(guide.receiver, CompressedReceiver):
            sender: Any = server.label_mode
            assert torch.equal(memory_of(guide.receiver.channel), memory_of(sender.sender.channel)), name


class Killed(BaseException):
    """Ends a party's thread as a signal would end its process."""


class Watched(PartyProcess):
    """A member that meets its fate before or after it handles a request."""

    lab: "Lab"

    def respond(self, frame: Frame) -> Frame | None:
        if frame.kind == FrameKind.REQUEST:
            self.lab.before(self, frame.number)
        answer = super().respond(frame)
        if frame.kind == FrameKind.REQUEST:
            self.lab.after(self, frame.number)
        return answer


Fate = Callable[[Watched, int], None]  # may raise LinkError, which cuts the wire, or Killed


def nothing(member: Watched, number: int) -> None:
    """No harm."""


class Lab:
    """The server and its parties, in threads."""

    def __init__(self, folder: Path, config: RunConfig, save_steps: int = 2) -> None:
        self.folder, self.config, self.save_steps = folder, config, save_steps
        self.holding = participant_data.load(config, Path(), "")
        self.before: Fate = nothing
        self.after: Fate = nothing
        self.blocked: set[str] = set()  # who cannot dial
        self.dead: set[str] = set()
        self.errors: dict[str, BaseException] = {}
        self.members: dict[str, Watched] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.deadline = time.monotonic() + networks.SECONDS
        self._at, self._since = (0, 0), 0.0
        self.serving = self._serve()
        self.names = self.serving.requests.names
        # Built before any thread runs: initial parameters are drawn from torch's one generator.
        self._spare = {name: [self._build(name) for _ in range(4)] for name in self.names}

    def _build(self, name: str) -> tuple[Party, dict[str, Any], questions.QuestionHandler]:
        held = participant_data.load(self.config, Path(), name)
        party = build.build_party(self.config, build.make_plan(self.config, held), held, name)
        return (
            party,
            held.about(self.config, name),
            questions.QuestionHandler(party, held),
        )

    def _serve(self) -> ServerProcess:
        hooks = Hooks(on_tick=lambda: self.look())
        return ServerProcess(self.config, self.holding, self.folder / "server", TIMEOUTS, hooks)

    def restart_server(self) -> None:
        """Have the server gone with all it has not saved, and another one in its place."""
        self.serving.requests.close()
        self.serving.message_log.close()
        self.serving = self._serve()

    def look(self) -> None:
        """Fail if a party has ended, or nothing happens any more."""
        assert not self.errors, self.errors
        assert time.monotonic() < self.deadline, "the run hangs"

    def stuck(self) -> bool:
        """Whether the server has waited for the same request for half a second."""
        now = time.monotonic()
        at = (id(self.serving), self.serving.requests.number)
        if self._at != at:
            self._at, self._since = at, now
        return now - self._since > 0.5

    def _dial(self, name: str) -> Wire:
        if name in self.blocked:
            raise LinkError("out of reach")
        here, there = memory_pair()
        self.serving.requests.accept(here, None)
        return there

    def join(self, name: str) -> None:
        """Start a party, from what its folder holds."""
        party, about, answerer = self._spare[name].pop()
        saving = CheckpointPolicy(NetworkConfig(save_steps=self.save_steps))
        member = Watched(party, self.folder / name, about, answerer, None, saving)
        member.lab = self
        self.members[name] = member
        self.threads[name] = threading.Thread(target=self._join, args=(name, member), daemon=True)
        self.threads[name].start()

    def _join(self, name: str, member: Watched) -> None:
        try:
            Dialler(member, lambda: self._dial(name), networks.WAITING).run()
        except Killed:
            self.dead.add(name)
        except BaseException as error:
            self.errors[name] = error
        finally:
            member.message_log.close()

    def revive(self, name: str) -> None:
        """Start a party that was killed again."""
        self.threads[name].join(5)
        self.dead.discard(name)
        self.join(name)

    def wait_until(self, number: int) -> None:
        """Have a party's thread wait until the server has taken all replies to what it asked before this request."""
        while self.serving.requests.number < number and time.monotonic() < self.deadline:
            time.sleep(0.001)

    def wait_for(self, name: str) -> None:
        """Let the server listen until a party that was away has caught up."""
        requests = self.serving.requests

        def here() -> bool:
            connection = requests.connections.get(name)
            return (
                connection is not None
                and not connection.waiting
                and connection.position > requests.presence.left.get(name, -1)
            )

        requests._wait(here)

    def train(
        self,
        control: Callable[[], None] = lambda: None,
        at_end: Callable[[ServerProcess], object] = lambda serving: None,
    ) -> ServerProcess:
        """Train to the end; `control` is called before every request is answered."""
        for name in self.names:
            self.join(name)
        while not self.serving.finished:
            control()
            with suppress(Interrupted):  # a test's way out of a wait; nothing is saved
                self.serving.advance()
        self.serving.requests.hooks = Hooks()  # now they end
        self.blocked.clear()
        for name in sorted(self.dead):
            self.revive(name)
        at_end(self.serving)
        assert self.serving.finish() == set()
        for thread in self.threads.values():
            thread.join(20)
            assert not thread.is_alive()
        self.serving.message_log.close()
        assert not self.errors, self.errors
        return self.serving

    @property
    def parties(self) -> dict[str, Party]:
        """All parties, in their order; that of the label holder too."""
        own = self.serving.party
        return {n: own if own and n == own.name else self.members[n].party for n in self.holding.names}

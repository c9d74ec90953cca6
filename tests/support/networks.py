"""The same federation twice: in one process without a network, and over wires. Everything must come out bit for bit.

Participants are built in the main thread, one after another, because initial parameters are drawn from torch's global
generator; only the parties' loops run in threads.
"""

import functools
import importlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from efvfl import Federation, Record
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.core.party import Party
from efvfl.data.digits import NAMES
from efvfl.errors import Interrupted, LinkError
from efvfl.network import handshake
from efvfl.network.identity import authority, certificates
from efvfl.network.links.connecting import dial
from efvfl.network.links.connections import Hooks, ServerTimeouts
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.links.faulty import Faults, FaultyWire
from efvfl.network.links.listening import Listener, listen
from efvfl.network.links.wire import Wire, memory_pair
from efvfl.network.training import build, participant_data, questions
from efvfl.network.training.autosave import CheckpointPolicy
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.server_process import ServerProcess
from efvfl.runs.build import load_data, make_federation, watching
from efvfl.wire.ledger import Ledger

# Reading the digits takes longer than a run on a few of them.
_digits: Any = importlib.import_module("efvfl.data.digits")
_digits.load_digits = functools.cache(_digits.load_digits)

SECONDS = 300.0  # until a run that hangs fails
Transport = Literal["memory", "plain", "mtls", "faulty", "faulty-plain"]

TIMEOUTS = ServerTimeouts(hello=5.0, repeat=0.1, tick=0.01, linger=0.2)
WAITING = PartyTimeouts(welcome=0.3, tick=0.01, first=0.005, longest=0.05)
FAULTS = Faults(drop=0.03, repeat=0.06, delay=0.03, truncate=0.02, corrupt=0.03, cut=0.02)


def normed(inputs: int, width: int) -> nn.Module:
    """A model with running statistics, for files: 'networks:normed'."""
    return nn.Sequential(nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.Tanh())


def config(**changes: Any) -> RunConfig:
    """A small run of four parties, with some settings changed."""
    base: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 48,  # three steps an epoch, the last of them smaller
        "observe_gradient": False,
        "data": {"subset": 120, "validation": 0.03, "test": 0.02},
        "model": {"width": 4},
        "optimizer": {"name": "SGD", "lr": 0.5},
    }
    for key, value in changes.items():
        base[key] = base[key] | value if key in ("data", "model") else value
    return configs.read(RunConfig, base, "case")


MISSING_ROWS = 80


def with_missing_rows(folder: Path, **changes: Any) -> RunConfig:
    """Such a run in which parties lack rows: the second has a tenth of them, and none of some batches."""
    images, labels = (values[:MISSING_ROWS] for values in _digits.load_digits())
    has = np.random.default_rng(1).random((MISSING_ROWS, 4)) < (0.8, 0.1, 1.0, 0.5)
    quarters = [images[:, r : r + 4, c : c + 4].reshape(-1, 16) / 16 for r in (0, 4) for c in (0, 4)]
    columns = {name: np.where(has[:, [k]], x, np.nan) for k, (name, x) in enumerate(zip(NAMES, quarters, strict=True))}
    folder.mkdir(exist_ok=True)
    arrays: dict[str, Any] = {"y": labels, **columns}
    np.savez(folder / "missing.npz", **arrays)
    data = {"name": "npz", "path": str(folder / "missing.npz"), "subset": 0, "validation": 0.2, "test": 0.2}
    return config(**{"batch_size": 10, **changes, "data": data | changes.get("data", {})})


def own_copy(config: RunConfig, name: str) -> RunConfig:
    """The file as one participant has it: without the others' private seeds and limits."""
    parties = tuple(p if p.name == name else configs.PartyConfig(p.name, p.model, p.data) for p in config.party)
    return replace(config, party=parties, private_seed=None if name else config.private_seed)


# What is compared.


@dataclass(frozen=True)
class Outcome:
    """What is left of a run, as nested dicts of tensors, numbers and texts."""

    records: list[dict[str, Any]]
    server: dict[str, Any]  # parameters, optimiser, schedule, every memory
    parties: dict[str, dict[str, Any]]
    copies: dict[str, list[Tensor]]  # the parties' copies of the fusion model
    ledger: dict[Any, int]  # the server's
    ledgers: dict[str, dict[Any, int]]  # the parties' own

    def facts(self) -> dict[str, Any]:
        return dict(vars(self))


def _facts_of(record: Record) -> dict[str, Any]:
    facts = (
        "epoch",
        "step",
        "surrogate_loss",
        "validation",
        "test",
        "bytes_up",
        "bytes_down",
        "ledger",
        "paper_bits",
        "bytes_down_once",
    )
    return {name: getattr(record, name) for name in facts} | {"kept": str(record.kept)}  # nan is not equal to itself


def _copy_of_fusion(party: Party) -> list[Tensor]:
    fusion = getattr(party.label_mode, "fusion", None)
    return [] if fusion is None else [t.detach().clone() for t in (*fusion.parameters(), *fusion.buffers())]


def outcome(records: list[Record], server: Any, parties: Mapping[str, Party], ledger: Ledger, own: Any) -> Outcome:
    return Outcome(
        [_facts_of(record) for record in records],
        server.state_dict(),
        {name: party.state_dict() for name, party in parties.items()},
        {name: _copy_of_fusion(party) for name, party in parties.items()},
        dict(ledger.bytes),
        {name: dict(own[name].bytes) for name in own},
    )


def federation(config: RunConfig, arrivals: Sequence[Collection[str]] = ()) -> Federation:
    return make_federation(config, load_data(config, Path()), arrivals=arrivals)


def reference(config: RunConfig, arrivals: Sequence[Collection[str]] = ()) -> Outcome:
    """Train in one process, without any network; `arrivals`: with the reports at every step that came then."""
    made = federation(config, arrivals)
    records = list(made.train(config.epochs, watching(config).every, gradient=False))
    own = {}
    for name in made.parties:
        if name != config.label_holder:
            own[name] = Ledger()
            own[name].bytes |= {key: n for key, n in made.ledger.bytes.items() if key[1] == name}
    return outcome(records, made.server, made.parties, made.ledger, own)


def differences(left: Any, right: Any, where: str = "") -> Iterator[str]:
    """Say where two outcomes differ."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.dtype != right.dtype or not torch.equal(left, right):
            yield f"{where}: tensors differ"
    elif isinstance(left, dict) and isinstance(right, dict):
        if set(left) != set(right):
            yield f"{where}: keys {sorted(map(str, set(left) ^ set(right)))} are on one side only"
        for key in set(left) & set(right):
            yield from differences(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        if len(left) != len(right):
            yield f"{where}: {len(left)} and {len(right)} entries"
        for number, pair in enumerate(zip(left, right, strict=False)):
            yield from differences(*pair, f"{where}/{number}")
    elif left != right:
        yield f"{where}: {left!r:.200} and {right!r:.200}"


def assert_same(left: Outcome, right: Outcome) -> None:
    found = list(differences(left.facts(), right.facts()))
    assert not found, "\n".join(found)


# Ends that come too early.


class Killed(BaseException):
    """What SIGKILL is in a test: nobody catches it, nothing is saved."""


class Fate:
    """Ends a participant at its n-th event: a frame, an entry of its log before and after, a checkpoint."""

    def __init__(self, at: int = 0, kill: bool = True) -> None:
        """Kill it, or ask it to stop; 0: never."""
        self.at = at
        self.kill = kill
        self.events = 0
        self.stopping: threading.Event | None = None

    def event(self, *_: object) -> None:
        self.events += 1
        if self.events == self.at:
            if self.kill:
                raise Killed
            assert self.stopping is not None
            self.stopping.set()

    def follow(self, owner: ServerProcess | PartyProcess, stopping: threading.Event) -> None:
        """Watch over a participant's log and checkpoints."""
        self.stopping = stopping
        message_log, append = owner.message_log, owner.message_log.append

        def appended(*entry: Any, **options: Any) -> bool:
            self.event()
            new = append(*entry, **options)
            self.event()
            return new

        def then(call: Callable[[], None]) -> Callable[[], None]:
            def called() -> None:
                call()
                self.event()

            return called

        message_log.append = appended  # type: ignore[method-assign]
        message_log.flush = then(message_log.flush)  # type: ignore[method-assign]
        owner.save = then(owner.save)  # type: ignore[method-assign]


# A federation over wires.


@dataclass(frozen=True)
class Ready:
    """A party that has been built and has not started."""

    config: RunConfig
    holding: ParticipantData
    party: Party
    about: dict[str, Any]


def ready(config: RunConfig, name: str, folder: Path = Path(), home: Path | None = None) -> Ready:
    """Build a party from its own copy of the file. In the main thread. `home` has its list of aligned rows."""
    config = own_copy(config, name)
    holding = participant_data.load(config, folder, name, home)
    party = build.build_party(config, build.make_plan(config, holding), holding, name)
    return Ready(config, holding, party, holding.about(config, name))


def member(made: Ready, folder: Path) -> PartyProcess:
    """Start a party in its folder, or go on there."""
    limits = made.config.of(made.party.name).limits
    return PartyProcess(
        made.party,
        folder,
        made.about,
        questions.QuestionHandler.allowed(made.party, made.holding, made.config, folder),
        limits,
        CheckpointPolicy(made.config.network),
        handshake.own_model(made.config, made.party.name),
    )


def process_of(joining: Dialler) -> PartyProcess:
    """The participant that a dialler dials for."""
    assert isinstance(joining.handler, PartyProcess)
    return joining.handler


class Network:
    """A server and its parties over wires of one kind; any of them may die and come back to its folder."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        transport: Transport = "memory",
        seed: int = 0,
        faults: Faults = FAULTS,
        lives: int = 1,
        timeouts: ServerTimeouts = TIMEOUTS,
        waiting: PartyTimeouts = WAITING,
        fates: Callable[[str], Fate] = lambda name: Fate(),
    ) -> None:
        """Build the server, and every party as often as it may live. Each life has its fate; '' is the server."""
        self.config = config
        self.folder = folder
        self.transport = transport
        self.faults = faults if "faulty" in transport else None
        self.seed = seed
        self.timeouts = timeouts
        self.waiting = waiting if transport in ("memory", "faulty") else replace(waiting, welcome=1.0)
        self.serving: ServerProcess | None = None
        self.joinings: dict[str, Dialler] = {}
        self.futures: dict[str, Future[None]] = {}
        self.fates = fates
        self.revive = True  # whether who dies comes back at once
        self.watch: Callable[[], None] = lambda: None  # called while the server waits
        self.others: list[Dialler] = []  # who is no party of ours
        self._ends = time.monotonic() + SECONDS
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="party")
        self._numbers = count()
        self._listening: Listener | None = None
        self._port = 0
        self.serve()
        assert self.serving is not None
        self.names: list[str] = list(self.serving.requests.names)
        self.spare: dict[str, list[Ready]] = {
            name: [ready(config, name, home=self._home(name)) for _ in range(lives)] for name in self.names
        }
        if transport == "mtls":
            authority.make(folder / "certs", [certificates.SERVER, *self.names])
        if transport not in ("memory", "faulty"):
            self._listen()

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        for joining in (*self.joinings.values(), *self.others):
            joining.stopping.set()
        self.kill_server()
        self._threads.shutdown(wait=True)
        for joining in (*self.joinings.values(), *self.others):
            process_of(joining).message_log.close()
        if self._listening is not None:
            self._listening.close()

    def _home(self, name: str) -> Path | None:
        """Where a participant's list of aligned rows is, if it has one, or the draw of its labels."""
        draws = name == "server" and self.config.protect.releases
        return self.folder / name if draws or (self.folder / name / "alignments").exists() else None

    # The server.

    def serve(self) -> ServerProcess:
        """Start the server in its folder, or go on there."""
        config, fate = own_copy(self.config, ""), self.fates("")
        holding = participant_data.load(config, Path(), "", self._home("server"))
        serving = ServerProcess(config, holding, self.folder / "server", self.timeouts, Hooks(fate.event, self._look))
        fate.follow(serving, serving.requests.stopping)
        self.serving = serving
        return serving

    def kill_server(self) -> None:
        """Forget the server: what it did not save is lost, and its wires break."""
        if self.serving is not None:
            serving, self.serving = self.serving, None
            serving.requests.close()
            serving.message_log.close()

    def restart_server(self) -> ServerProcess:
        """Start it again, once no party computes: initial parameters are drawn from a generator that all share."""
        self.kill_server()
        while any(j.connected and not self.futures[name].done() for name, j in self.joinings.items()):
            time.sleep(0.001)
        return self.serve()

    def _look(self) -> None:
        for name, future in list(self.futures.items()):
            if future.done() and (error := future.exception()) is not None:
                if not isinstance(error, Killed | Interrupted):
                    raise error
                if not self.revive:
                    continue
                told = name in self._served().requests.told  # it died after its BYE: what counts is what it saved
                process_of(self.joinings[name]).message_log.close()
                self.join(name, run=not told)
        assert time.monotonic() < self._ends, "this federation hangs"
        self.watch()

    def _listen(self) -> None:
        serving = self._served()
        identity = certificates.load(self.folder / "certs", certificates.SERVER) if self.transport == "mtls" else None
        limit = build.frame_limit(serving.plan)

        def accept(wire: Wire, name: str | None) -> None:
            self._served().requests.accept(self._spoilt(wire), name)

        self._listening, self._port = listen("127.0.0.1:0", identity, limit, len(self.names), accept)

    def _served(self) -> ServerProcess:
        serving = self.serving
        if serving is None:
            raise LinkError("nobody listens.")
        return serving

    def _spoilt(self, wire: Wire) -> Wire:
        if self.faults is None:
            return wire
        return FaultyWire(wire, self.faults, Random(f"{self.seed}/{next(self._numbers)}"))

    # The parties.

    def dial(self, name: str) -> Wire:
        """Return a party's end of a new wire."""
        if self.transport in ("memory", "faulty"):
            requests = self._served().requests
            there, here = memory_pair()
            requests.accept(self._spoilt(there), None)
            return self._spoilt(here)
        identity = certificates.load(self.folder / "certs", name) if self.transport == "mtls" else None
        limit = build.frame_limit(self._served().plan)
        return self._spoilt(dial(f"127.0.0.1:{self._port}", identity, limit))

    def join(self, name: str, run: bool = True) -> Dialler:
        """Start a party in its folder, or go on there: the next of its lives."""
        fate = self.fates(name)
        started = member(self.spare[name].pop(), self.folder / name)
        joining = Dialler(started, functools.partial(self.dial, name), self.waiting, fate.event)
        fate.follow(started, joining.stopping)
        self.joinings[name] = joining
        self.futures[name] = self._threads.submit(joining.run if run else lambda: None)
        return joining

    def intrude(self, joining: Dialler) -> Future[None]:
        """Let somebody else have a try."""
        self.others.append(joining)
        return self._threads.submit(joining.run)

    def join_all(self) -> None:
        for name in self.names:
            self.join(name)

    # The run.

    def run(self) -> Outcome:
        """Train to the end, whoever dies on the way: it comes back at once."""
        if not self.joinings:
            self.join_all()
        while True:
            try:
                records = list(self._served().train())
                assert records == self._served().records[len(self._served().records) - len(records) :]
                self.finish()
                return self.outcome()
            except (Killed, Interrupted):
                self.restart_server()

    def finish(self) -> None:
        """Tell all parties until all have gone, the one whose BYE was lost as well."""
        serving = self._served()
        while not all(future.done() and future.exception() is None for future in self.futures.values()):
            serving.finish()
            self._look()
        serving.finish()

    def outcome(self) -> Outcome:
        serving = self._served()
        parties: dict[str, Party] = {}
        for name in serving.data.names:
            own = serving.party if name == self.config.label_holder else process_of(self.joinings[name]).party
            assert own is not None
            parties[name] = own
        own_ledgers = {name: process_of(joining).ledger for name, joining in self.joinings.items()}
        return outcome(serving.records, serving.server, parties, serving.ledger, own_ledgers)


def networked(config: RunConfig, folder: Path, transport: Transport = "memory", seed: int = 0) -> Outcome:
    """Train over wires, undisturbed but for what the wires do."""
    with Network(config, folder, transport, seed) as network:
        return network.run()

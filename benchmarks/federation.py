"""A federation of processes on loopback with mutual TLS, used by several benchmarks."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from benchmarks.replay import Replies, replay
from efvfl.config.run_file import RunConfig
from efvfl.network import handshake
from efvfl.network.identity import authority, certificates
from efvfl.network.links.connecting import dial
from efvfl.network.links.connections import Hooks
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.listening import listen
from efvfl.network.ops.audit_log import AuditLog
from efvfl.network.training import build, questions
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.server_process import ServerProcess

Hold = Callable[[str], ParticipantData]  # returns the data of the party of this name, or of the server ('')
P = ParamSpec("P")
R = TypeVar("R")


class CpuSeconds:
    """CPU time of participants so far, each in a process of its own: all of it, and what it computed of it."""

    def __init__(self, names: Sequence[str]) -> None:
        """Begin at zero; processes that are spawned with this write into it."""
        self._names = list(names)
        self._seconds = multiprocessing.get_context("spawn").RawArray("d", 2 * len(self._names))

    def counted(self, name: str, work: Callable[P, R]) -> Callable[P, R]:
        """Return this work of a participant, done in its process, as one that is counted as computing."""
        place = 2 * self._names.index(name)

        def counting(*args: P.args, **named: P.kwargs) -> R:
            began = time.thread_time()
            try:
                return work(*args, **named)
            finally:
                self._seconds[place + 1] += time.thread_time() - began
                self._seconds[place] = time.process_time()

        return counting

    def watch_server(self, serving: ServerProcess) -> None:
        """Count what this server computes: to check and absorb reports, to answer them and to learn."""
        server, requests = serving.server, serving.requests
        server.respond = self.counted("", server.respond)  # type: ignore[method-assign]
        server.learn = self.counted("", server.learn)  # type: ignore[method-assign]
        requests.checks = replace(requests.checks, reply=self.counted("", requests.checks.reply))

    def of(self, name: str) -> tuple[float, float]:
        """Return both for a participant, as of when it computed last."""
        place = 2 * self._names.index(name)
        return self._seconds[place], self._seconds[place + 1]


def _party(
    folder: Path,
    config: RunConfig,
    hold: Hold,
    name: str,
    port: int,
    replies: Replies | None,
    cpu: CpuSeconds | None,
) -> None:
    """Run a party until the server stops; with replies it computes nothing."""
    torch.set_num_threads(1)
    data = hold(name)
    plan = build.make_plan(config, data)
    made = build.build_party(config, plan, data, name)
    if replies:
        replay(made, replies)
    if cpu:
        made.handle = cpu.counted(name, made.handle)  # type: ignore[method-assign]
    about = handshake.about(config, name, data.names, data.trained_ids)
    member = PartyProcess(made, folder / name, about, questions.QuestionHandler(made, data))
    identity = certificates.load(folder / "certs", name)
    limit, audit = build.frame_limit(plan, made.label_mode.fusion_size), AuditLog(folder / name)
    Dialler(
        member,
        partial(dial, f"127.0.0.1:{port}", identity, limit),
        on_frame=audit.record,
        on_tick=audit.tick,
    ).run()


def _straight(port: int, count: int) -> Sequence[int]:
    return [port] * count


@contextmanager
def network(
    config: RunConfig,
    hold: Hold,
    folder: Path,
    ports: Callable[[int, int], Sequence[int]] = _straight,
    replies: Mapping[str, Replies] | None = None,
    cpu: CpuSeconds | None = None,
) -> Iterator[ServerProcess]:
    """Start a server here and its parties as processes, with a folder for all.

    Everyone asks `hold` for its own rows. `ports` says what each of so many parties dials, given the server's port.
    With `replies`, parties reply as they are recorded. `cpu` counts what everyone computes.
    """
    audit = AuditLog(folder / "server")
    serving = ServerProcess(config, hold(""), folder / "server", hooks=Hooks(audit.record, audit.tick))
    if cpu:
        cpu.watch_server(serving)
    names = serving.requests.names
    authority.make(folder / "certs", [certificates.SERVER, *names])
    identity, limit = certificates.load(folder / "certs", certificates.SERVER), build.frame_limit(serving.plan)
    listening, port = listen("127.0.0.1:0", identity, limit, len(names), serving.requests.accept)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(
            target=_party, args=(folder, config, hold, name, dialled, (replies or {}).get(name), cpu), daemon=True
        )
        for name, dialled in zip(names, ports(port, len(names)), strict=True)
    ]
    for process in processes:
        process.start()
    try:
        yield serving
    finally:
        for process in processes:
            process.kill()
            process.join()
        serving.requests.close()
        serving.message_log.close()
        listening.close()
        audit.close()

"""A federation of processes on loopback with mutual TLS, used by several benchmarks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from benchmarks.replay import Replies, replay
from efvfl.config.run_file import RunConfig
from efvfl.network import handshake
from efvfl.network.identity import authority, certificates
from efvfl.network.links.connecting import dial
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.listening import listen
from efvfl.network.training import build, questions
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.server_process import ServerProcess

Hold = Callable[[str], ParticipantData]  # returns the data of the party of this name, or of the server ('')


def _party(folder: Path, config: RunConfig, hold: Hold, name: str, port: int, replies: Replies | None) -> None:
    """Run a party until the server stops; with replies it computes nothing."""
    torch.set_num_threads(1)
    data = hold(name)
    plan = build.make_plan(config, data)
    made = build.build_party(config, plan, data, name)
    if replies:
        replay(made, replies)
    about = handshake.about(config, name, data.names, data.trained_ids)
    member = PartyProcess(made, folder / name, about, questions.QuestionHandler(made, data))
    identity = certificates.load(folder / "certs", name)
    Dialler(
        member, partial(dial, f"127.0.0.1:{port}", identity, build.frame_limit(plan, made.label_mode.fusion_size))
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
) -> Iterator[ServerProcess]:
    """Start a server here and its parties as processes, with a folder for all.

    Everyone asks `hold` for its own rows. `ports` says what each of so many parties dials, given the server's port.
    With `replies`, parties reply as they are recorded.
    """
    serving = ServerProcess(config, hold(""), folder / "server")
    names = serving.requests.names
    authority.make(folder / "certs", [certificates.SERVER, *names])
    identity, limit = certificates.load(folder / "certs", certificates.SERVER), build.frame_limit(serving.plan)
    listening, port = listen("127.0.0.1:0", identity, limit, len(names), serving.requests.accept)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(
            target=_party, args=(folder, config, hold, name, dialled, (replies or {}).get(name)), daemon=True
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

"""Not one byte on the wire has changed: a fixed run's messages and frames are those that were recorded once.

`recorded_bytes.json` holds, for every party, a digest of all it heard and said, and how many bytes that was. HELLO
is left out, because it names all settings and so changes with every new one. The record is made anew only when the wire
format changes on purpose: `python tests/contracts/test_recorded_bytes.py`.
"""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import recorded_case
from networks import SECONDS, member, own_copy, ready

from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.network.links.connections import ServerTimeouts
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.links.wire import Wire, memory_pair
from efvfl.network.training import participant_data
from efvfl.network.training.server_process import ServerProcess
from efvfl.runs.build import load_data, make_federation
from efvfl.wire.message import Message

RECORD = Path(__file__).with_name("recorded_bytes.json")
RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
Heard = dict[str, list[str | int]]


class Digest:
    """What was said so far."""

    def __init__(self) -> None:
        self.hash, self.bytes = hashlib.sha256(), 0

    def add(self, data: bytes) -> None:
        self.hash.update(data)
        self.bytes += len(data)

    def result(self) -> list[str | int]:
        return [self.hash.hexdigest()[:32], self.bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recorded_case.write_rows(tmp_path / "recorded.npz")
    return tmp_path


def config_of(name: str) -> RunConfig:
    return configs.read(RunConfig, recorded_case.settings(recorded_case.runs()[name]), name)


def messages_in_one_process(config: RunConfig, folder: Path) -> Heard:
    federation = make_federation(config, load_data(config, folder))
    heard = {name: Digest() for name in federation.parties}
    exchange = federation.transport.exchange

    def listening(messages: Mapping[str, Message]) -> dict[str, Message]:
        replies = exchange(messages)
        for name, message in messages.items():
            heard[name].add(message.to_bytes())
            heard[name].add(replies[name].to_bytes())
        return replies

    federation.transport.exchange = listening  # type: ignore[method-assign]
    federation.fit(config.epochs, gradient=False)
    return {name: digest.result() for name, digest in heard.items()}


def frames_over_wires(config: RunConfig, folder: Path) -> Heard:
    own = own_copy(config, "")
    timeouts = ServerTimeouts(repeat=SECONDS, linger=SECONDS, tick=0.01)  # nothing is said twice, however slow it is
    serving = ServerProcess(own, participant_data.load(own, folder, ""), folder / "server", timeouts)
    heard = {name: Digest() for name in serving.requests.names}

    def wrote(name: str, peer: str, direction: str, frame: Frame) -> None:
        if frame.kind != FrameKind.HELLO:
            heard[name].add(frame.to_bytes())

    def dial() -> Wire:
        there, here = memory_pair()
        serving.requests.accept(there, None)
        return here

    members = {name: member(ready(config, name, folder), folder / name) for name in heard}
    joinings = [Dialler(made, dial, PartyTimeouts(), partial(wrote, name)) for name, made in members.items()]
    with ThreadPoolExecutor(len(joinings)) as pool:
        done = [pool.submit(joining.run) for joining in joinings]
        list(serving.train())
        assert not serving.finish()
        for future in done:
            future.result()
    for log in (serving.message_log, *(made.message_log for made in members.values())):
        log.close()
    return {name: digest.result() for name, digest in heard.items()}


def test_the_record_has_every_run() -> None:
    assert sorted(RECORDED) == sorted(recorded_case.runs())


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_messages_are_those_recorded(name: str, folder: Path) -> None:
    assert messages_in_one_process(config_of(name), folder) == RECORDED[name]["messages"]


@pytest.mark.system
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_frames_are_those_recorded(name: str, folder: Path) -> None:
    assert frames_over_wires(config_of(name), folder) == RECORDED[name]["frames"]


def main() -> None:
    """Record all runs."""
    found = {}
    for name in recorded_case.runs():
        with tempfile.TemporaryDirectory() as place:
            folder, config = Path(place), config_of(name)
            recorded_case.write_rows(folder / "recorded.npz")
            messages, frames = messages_in_one_process(config, folder), frames_over_wires(config, folder)
            found[name] = {"messages": messages, "frames": frames}
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

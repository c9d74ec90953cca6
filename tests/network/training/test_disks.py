"""Disks that change bits, lose what they confirmed or hold old copies: runs end as they would have, or are refused."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from absence_lab import AWAY, Lab, Watched, stale_config
from networks import Killed, Network, Outcome, assert_same, differences, process_of, ready
from networks import member as make_member
from recovery import MODES, Fates, FrameFate, lose, rows, small, undisturbed  # noqa: F401

from efvfl.config.run_file import RunConfig
from efvfl.core.channel import Channel
from efvfl.errors import CheckpointError, Interrupted, LinkError, ProtocolError, RefusedError
from efvfl.network.links.frame import FrameKind
from efvfl.network.training.autosave import CHECKPOINT

PREVIOUS = "checkpoint.previous.safetensors"


def stopped(run: RunConfig, folder: Path, at: int = 8) -> None:
    """Leave the folders of a run that was stopped on request, everything saved, after so many replies of a party."""
    with Network(run, folder, fates=Fates("", FrameFate(FrameKind.REPLY, "in", at, kill=False))) as network:
        network.join_all()
        with pytest.raises(Interrupted):
            list(network._served().train())


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def places(path: Path, count: int) -> list[int]:
    """Bits all over a file, the first and the last among them."""
    bits = 8 * path.stat().st_size
    return [0, bits - 1, *Random(path.name).sample(range(bits), count - 2)]


# A bit that has changed.


def ends(run: RunConfig, folder: Path, expected: Outcome) -> str:
    """Go on from the folders: how it ends, 'equal' or the text of a refusal; anything else is an error."""
    try:
        with Network(run, folder) as network:
            network.waiting = replace(network.waiting, server=5.0)
            found = list(differences(expected.facts(), network.run().facts()))
    except (CheckpointError, ProtocolError, RefusedError) as error:
        return str(error)
    assert not found, "\n".join(found)
    return "equal"


@pytest.mark.slow
@pytest.mark.parametrize("who", ["server", "left"])
@pytest.mark.parametrize("mode", ["private", "pipelined-shared"])
@pytest.mark.attack(
    by="a disk",
    tries="flips one bit of a participant's checkpoint after a clean stop, at 12 places in each of 4 folders",
    outcome="the checkpoint before it is used, and the run ends bit for bit as it would have",
)
def test_a_bit_of_a_checkpoint(rows: Path, mode: str, who: str, tmp_path: Path) -> None:
    run = small(rows, mode, save_steps=2)
    stopped(run, tmp_path / "stopped")
    for bit in places(tmp_path / "stopped" / who / CHECKPOINT, 12):
        folder = tmp_path / str(bit)
        shutil.copytree(tmp_path / "stopped", folder)
        flip(folder / who / CHECKPOINT, bit)
        assert ends(run, folder, undisturbed(rows, mode)) == "equal"
        assert (folder / who / "checkpoint.damaged.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["server", "left"])
@pytest.mark.attack(
    by="a disk",
    tries="flips one bit of a participant's message log after a clean stop, at 10 places of each segment",
    outcome="refused with the name of the file, or the run ends bit for bit as it would have",
)
def test_a_bit_of_a_log(rows: Path, who: str, tmp_path: Path) -> None:
    run = small(rows, save_steps=2)
    stopped(run, tmp_path / "stopped")
    outcomes = set()
    for path in (tmp_path / "stopped" / who / "log").iterdir():
        for bit in places(path, 10):
            folder = tmp_path / f"{path.name}-{bit}"
            shutil.copytree(tmp_path / "stopped", folder)
            flip(folder / who / "log" / path.name, bit)
            outcomes.add(ends(run, folder, undisturbed(rows, "private")).replace(str(folder), ""))
    refusals = outcomes - {"equal"}
    assert refusals
    assert all(".log" in text or "A part of the log is missing" in text for text in refusals), refusals


def test_a_checkpoint_without_one_before_it_is_refused(rows: Path, tmp_path: Path) -> None:
    run = small(rows)
    stopped(run, tmp_path, 3)
    path = tmp_path / "left" / CHECKPOINT
    assert not (tmp_path / "left" / PREVIOUS).exists()
    flip(path, 4 * path.stat().st_size)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"left/checkpoint.* is damaged .*start anew"):
        make_member(ready(run, "left"), tmp_path / "left")
    assert path.read_bytes() == before


# A server that goes back in time.


class Backup:
    """Keeps a copy of the server's folder as it is at a moment."""

    def __init__(self, lab: Lab, kept: Path) -> None:
        self.lab, self.kept = lab, kept

    def take(self) -> None:
        self.lab.serving.save()
        shutil.copytree(self.lab.folder / "server", self.kept)

    def restore(self) -> None:
        """Have the server killed, and another one in its place that finds the old folder."""
        self.lab.serving.requests.close()
        self.lab.serving.message_log.close()
        shutil.rmtree(self.lab.folder / "server")
        shutil.copytree(self.kept, self.lab.folder / "server")
        self.lab.serving = self.lab._serve()


def away_at(lab: Lab, handled: int) -> None:
    """Cut a party off once, when it has handled so many requests."""
    cut: list[int] = []

    def fate(member: Watched, number: int) -> None:
        if member.name == AWAY and member.handled == handled and not cut:
            cut.append(number)
            lab.blocked.add(AWAY)
            raise LinkError("cut")

    lab.before = fate


def train(lab: Lab, control: Callable[[], None]) -> None:
    """Train, until it is done or somebody has ended with an error."""
    for name in lab.names:
        lab.join(name)
    while not lab.serving.finished:
        control()
        lab.serving.advance()
    lab.serving.finish()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "lab", stale_config(method=MODES["private"]["method"]), save_steps=1000)
    yield made
    made.serving.requests.stopping.set()
    made.serving.requests.close()
    made.serving.message_log.close()


@pytest.mark.attack(
    by="a disk",
    tries="gives the label holder an old copy of its folder, with on_missing = 'stale', after a party was away",
    outcome="each party that has handled more than the copy knows of is refused",
)
def test_an_old_copy_of_the_servers_folder_where_steps_go_without_a_party(lab: Lab, tmp_path: Path) -> None:
    backup, done = Backup(lab, tmp_path / "kept"), set[str]()
    away_at(lab, 6)

    def control() -> None:
        step = lab.serving.server.step_number
        if step == 4 and "copy" not in done:
            done.add("copy")
            backup.take()
        if step == 9 and "restored" not in done:
            done.add("restored")
            backup.restore()
            lab.blocked.clear()

    with pytest.raises(AssertionError, match="RefusedError"):
        train(lab, control)
    assert done == {"copy", "restored"}
    refused = [error for error in lab.errors.values() if isinstance(error, RefusedError)]
    assert refused
    assert "the server's folder was restored from an old copy, or its disk lost" in str(refused[0])


@pytest.mark.attack(
    by="a disk",
    tries="confirms the label holder's last 3 requests and loses them, with on_missing = 'stale'",
    outcome="each party that has handled them is refused",
)
def test_a_disk_of_the_server_that_loses_what_it_confirmed(lab: Lab) -> None:
    done: list[int] = []

    def control() -> None:
        if lab.serving.server.step_number == 9 and not done:
            done.append(9)
            lab.serving.requests.close()
            log = lab.serving.message_log
            log.close()
            path, place, _ = log._places[log.end - 3]
            with open(path, "r+b") as file:
                file.truncate(place)
            lab.serving = lab._serve()

    with pytest.raises(AssertionError, match="RefusedError"):
        train(lab, control)
    assert "is not in the log here, which ends at" in str(next(iter(lab.errors.values())))


def killed(run: RunConfig, folder: Path, at: int) -> None:
    """Leave the folders of a run whose server lost power after so many replies; the parties stopped later."""
    with Network(run, folder, fates=Fates("", FrameFate(FrameKind.REPLY, "in", at))) as network:
        network.join_all()
        with pytest.raises(Killed):
            list(network._served().train())
        network.kill_server()
        assert lose(folder / "server")


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"class_weights": "balanced"}, r"class_weights: \[\] then, 'balanced' now"),
    ({"protect": {"clip": 0.5}}, r"protect.clip: 0.0 then, 0.5 now"),
    ({"fusion": {"combine": "sum"}}, r"fusion.combine: 'mean' then, 'sum' now"),
    ({"private_seed": 5}, r"rows \(private_seed\)"),
]


@pytest.mark.parametrize(("changes", "what"), CHANGES, ids=["class_weights", "protect", "fusion", "private_seed"])
@pytest.mark.attack(
    by="the label holder",
    tries="changes class_weights, [protect], the fusion model or its private seed after a power failure",
    outcome="its own checkpoint is refused, and names the setting and both values, but no seed",
)
def test_a_setting_of_the_label_holder_that_changed(
    rows: Path,
    changes: dict[str, Any],
    what: str,
    tmp_path: Path,
) -> None:
    killed(small(rows, save_steps=3), tmp_path, 10)
    with pytest.raises(CheckpointError, match=rf"server/checkpoint.*{what}"):
        Network(small(rows, save_steps=3, **changes), tmp_path)
    with Network(small(rows, save_steps=3), tmp_path) as network:  # with the right ones it goes on
        assert_same(undisturbed(rows, "private"), network.run())


@pytest.mark.attack(
    by="the label holder",
    tries="changes class_weights after a power failure that left it no checkpoint, and asks other things again",
    outcome="parties refuse a request that differs from the one they answered under its number",
)
def test_another_request_under_an_old_number(rows: Path, tmp_path: Path) -> None:
    killed(small(rows), tmp_path, 5)
    assert not (tmp_path / "server" / CHECKPOINT).exists()
    with (
        pytest.raises(ProtocolError, match=r"request 1 differs from the one that was answered before: the server's"),
        Network(small(rows, class_weights="balanced"), tmp_path) as network,
    ):
        network.run()
    shutil.rmtree(tmp_path / "server")  # with the right ones it asks the same again, from the start
    with Network(small(rows), tmp_path) as network:
        assert_same(undisturbed(rows, "private"), network.run())


# What both ends remember.


def spoil(channel: Channel) -> None:
    channel.memory.g[0] += 1


@pytest.mark.parametrize("mode", ["private", "shared", "pipelined-shared"])
def test_memories_of_the_downlink_are_compared_at_the_handshake(rows: Path, mode: str, tmp_path: Path) -> None:
    run = small(rows, mode)
    fates = Fates("", FrameFate(FrameKind.ANSWER, "in", kill=False))  # parties hold: both ends have handled as many
    right = tmp_path / "right"
    with Network(run, right, fates=fates) as network:
        network.join_all()
        with pytest.raises(Interrupted):
            list(network._served().train())
    for place in range(len(ready(run, "left").party.label_mode.incoming())):
        folder = tmp_path / f"wrong{place}"
        shutil.copytree(right, folder)
        made = make_member(ready(run, "left"), folder / "left")
        spoil(made.party.label_mode.incoming()[place])
        made.save()
        made.message_log.close()
        with pytest.raises(RefusedError, match="do not remember the same"), Network(run, folder) as network:
            network.run()
    with Network(run, right) as network:
        assert_same(undisturbed(rows, mode), network.run())


@pytest.mark.parametrize("mode", ["private", "shared", "pipelined-shared"])
@pytest.mark.attack(
    by="a disk",
    tries="changes what a party remembers of cotangents or of its peers in the middle of training",
    outcome="both ends notice at the end, and say that the result is not to be trusted",
)
def test_memories_are_compared_at_the_end(rows: Path, mode: str, tmp_path: Path) -> None:
    with Network(small(rows, mode), tmp_path) as network:
        network.join_all()
        process = process_of(network.joinings["left"])
        list(network._served().train())
        spoil(process.party.label_mode.incoming()[0])
        serving = network._served()
        serving.requests.timeouts = replace(serving.requests.timeouts, linger=5.0)
        with pytest.raises(ProtocolError, match="training has ended, but the server and left do not remember the same"):
            serving.finish()
        network.futures["left"].result(5)
        assert process.diverged
        assert not process.finished


@pytest.mark.attack(
    by="a disk",
    tries="gives the label holder a checkpoint from before an evaluation, when the parties have learnt more since",
    outcome="a party that is ahead is refused, and not evaluated in place of what it was",
)
def test_what_was_evaluated_is_not_evaluated_again_with_other_models(rows: Path, tmp_path: Path) -> None:
    run = small(rows)
    with Network(run, tmp_path) as network:
        network.join_all()
        serving = network._served()
        while serving.server.step_number < 3:
            serving.advance()
        serving.save()
        shutil.copytree(tmp_path / "server", tmp_path / "kept")
        while serving.server.step_number < 5:
            serving.advance()
        network.kill_server()
        shutil.rmtree(tmp_path / "server")
        shutil.copytree(tmp_path / "kept", tmp_path / "server")
        network.restart_server()
        with pytest.raises(
            RefusedError, match=r"expected \w+ to have handled 4 requests when rows are evaluated, got [67]"
        ):
            network.run()

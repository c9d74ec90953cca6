"""Going on without a party, through lost replies, joint crashes and whatever chance brings."""

import threading
import time
from pathlib import Path
from random import Random

import pytest
from absence_lab import (
    AWAY,
    SHARED,
    Killed,
    Lab,
    Watched,
    assert_equal_everywhere,
    private_window,
    shared_config,
    stale_config,
)

from efvfl.config.run_file import RunConfig
from efvfl.errors import LinkError
from efvfl.wire.message import Kind


@pytest.mark.parametrize("config", [stale_config(), shared_config("relay, send")], ids=["private", "shared"])
def test_a_party_whose_reply_was_lost_is_welcome_while_the_next_request_is_out(
    tmp_path: Path, config: RunConfig
) -> None:
    """The server did not take its report, so they do not remember the same: SYNC is to mend that."""
    lab = Lab(tmp_path, config)
    lost: list[int] = []
    gone: list[object] = []  # its link that was cut

    def lose(member: Watched, number: int) -> None:
        if member.name == AWAY and number == 5 and not lost:
            lost.append(number)
            gone.append(lab.serving.requests.connections[AWAY])
            lab.blocked.add(AWAY)
            raise LinkError("the reply is lost")

    def dawdle(member: Watched, number: int) -> None:
        if member.name != AWAY and number == 6 and AWAY in lab.blocked:
            lab.blocked.discard(AWAY)
            while lab.serving.requests.connections.get(AWAY) in (None, *gone):  # until the other one has dialled again
                time.sleep(0.005)

    lab.after, lab.before = lose, dawdle
    serving = lab.train()
    assert lost
    assert any(record.absent for record in serving.records)
    assert_equal_everywhere(serving.server, lab.parties)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["relay, send", "relay, replicate", "aggregate, compress"])
def test_server_and_party_may_die_together_after_sync(tmp_path: Path, case: str) -> None:
    """The party goes on from before it left, so it needs again what it was asked until then, and only then SYNC."""
    lab = Lab(tmp_path, shared_config(case), save_steps=1000)
    done: list[str] = []

    def fate(member: Watched, number: int) -> None:
        if member.name == AWAY and member.handled == 7 and not done:
            done.append("left")
            lab.blocked.add(AWAY)
            raise LinkError("cut")
        if member.name == AWAY and member.handled == 8 and done == ["left", "back"]:  # this is SYNC
            done.append("killed")
            raise Killed
        if member.name == AWAY and "killed" in done:
            time.sleep(0.1)  # it computes again what it had not saved, while the server is ahead

    def control() -> None:
        if done == ["left"] and lab.serving.server.step_number >= 15:
            lab.blocked.discard(AWAY)
            lab.wait_for(AWAY)
            done.append("back")
        if AWAY in lab.dead:
            lab.restart_server()
            lab.revive(AWAY)
            lab.serving.requests._wait(lambda: len(lab.serving.requests.connections) == len(lab.names))

    def look() -> None:
        lab_look()
        if AWAY in lab.dead:
            lab.serving.requests.stopping.set()  # the server dies too

    lab_look, lab.look = lab.look, look  # type: ignore[method-assign]
    lab.before = fate
    serving = lab.train(control)
    assert done == ["left", "back", "killed"]
    assert_equal_everywhere(serving.server, lab.parties)


def test_a_party_that_dies_after_sync_handles_it_again_before_what_follows(tmp_path: Path) -> None:
    """With a window its reply to SYNC may be here while others are waited for; it has forgotten both."""
    lab = Lab(tmp_path, private_window(3), save_steps=1000)
    done: list[str] = []

    def syncs(number: int) -> bool:
        out = lab.serving.requests.out.get(number)
        return out is not None and AWAY in out.messages and out.messages[AWAY].kind == Kind.SYNC

    def before(member: Watched, number: int) -> None:
        if member.name == AWAY and member.handled == 4 and not done:
            done.append("left")
            lab.wait_until(number)
            lab.blocked.add(AWAY)
            raise LinkError("cut")
        while member.name != AWAY and syncs(number) and not ("revived" in done and lab.members[AWAY].handled > number):
            time.sleep(0.005)

    def after(member: Watched, number: int) -> None:
        if member.name == AWAY and syncs(number) and done == ["left", "back"]:
            done.append("synced")
        elif member.name == AWAY and done == ["left", "back", "synced"]:
            done.append("killed")
            raise Killed

    def control() -> None:
        if done == ["left"] and lab.serving.records and not lab.serving.requests.under_way:
            lab.blocked.discard(AWAY)
            lab.wait_for(AWAY)
            done.append("back")

    def look() -> None:
        lab_look()
        if AWAY in lab.dead:
            lab.revive(AWAY)
            done.append("revived")

    lab_look, lab.look = lab.look, look  # type: ignore[method-assign]
    lab.before, lab.after = before, after
    serving = lab.train(control)
    assert done == ["left", "back", "synced", "killed", "revived"]
    assert_equal_everywhere(serving.server, lab.parties)


@pytest.mark.parametrize("case", ["relay, send", "relay, replicate, window of 4"])
def test_training_goes_on_with_who_is_back_when_the_last_one_leaves(tmp_path: Path, case: str) -> None:
    lab = Lab(tmp_path, shared_config(case))
    last, cut = "top-left", set()

    def fate(member: Watched, number: int) -> None:
        if member.name not in cut and member.handled == (9 if member.name == last else 5):
            cut.add(member.name)
            lab.blocked.add(member.name)
            if member.name == last:  # nobody is left, and the others come back
                lab.blocked -= set(lab.names) - {last}
            raise LinkError("cut")

    def control() -> None:
        if lab.serving.server.step_number >= 15 and last in lab.serving.requests.presence.left:
            lab.blocked.discard(last)
            lab.wait_for(last)

    lab.before = fate
    serving = lab.train(control)
    assert cut == set(lab.names)
    assert_equal_everywhere(serving.server, lab.parties)


def test_who_was_away_survives_a_power_failure(tmp_path: Path) -> None:
    """Requests that were sent are on disk, not only in the kernel: nothing else says who took part in a step."""
    synced: list[str] = []
    lab = Lab(tmp_path, shared_config("relay, send"))
    message_log = lab.serving.message_log
    append = message_log.append

    def watched(number: int, data: bytes, gap: bool = False, durable: bool = False) -> bool:
        synced.append("durable" if durable else "not")
        return append(number, data, gap, durable)

    message_log.append = watched  # type: ignore[method-assign]
    lab.train()
    assert set(synced) == {"durable"}


@pytest.mark.slow
@pytest.mark.parametrize("case", [*SHARED, "private, window of 3"])
@pytest.mark.parametrize("seed", [1])
def test_whatever_chance_brings_all_agree_in_the_end(tmp_path: Path, case: str, seed: int) -> None:
    """Cuts before and after a reply, parties killed with old checkpoints, servers with and without a save."""
    chance, lock = Random(seed), threading.Lock()
    config = shared_config(case) if case in SHARED else private_window(3)
    lab = Lab(tmp_path, config, save_steps=chance.choice([1, 3, 1000]))
    until: dict[str, int] = {}
    lives = dict.fromkeys(lab.names, 1)

    def fate(member: Watched, number: int) -> None:
        with lock:
            step = lab.serving.server.step_number
            others = set(lab.names) - {member.name} - lab.blocked
            if step >= 18 or not others or (drawn := chance.random()) >= 0.08:
                return
            until[member.name] = step + chance.choice([0, 1, 2, 4])
            lab.blocked.add(member.name)
            if drawn < 0.03 and lives[member.name] < 4:
                lives[member.name] += 1
                raise Killed
        raise LinkError("cut")

    def look() -> None:
        lab_look()
        for name in [n for n, step in until.items() if lab.serving.server.step_number >= step or lab.stuck()]:
            if lab.threads[name].is_alive() and name not in lab.dead:
                pass  # it dials again by itself
            elif name in lab.dead:
                lab.revive(name)
            else:
                continue
            del until[name]
            lab.blocked.discard(name)
        for name in lab.dead - until.keys():  # that it was killed was not known yet when it was let in again
            lab.revive(name)

    def control() -> None:
        look()
        if lab.serving.server.step_number < 18 and chance.random() < 0.1:
            if chance.random() < 0.5:
                lab.serving.save()
            lab.restart_server()
        if lab.serving.server.step_number >= 20:
            for name in set(lab.serving.requests.presence.left) - lab.blocked:
                lab.wait_for(name)

    lab_look, lab.look = lab.look, look  # type: ignore[method-assign]
    lab.before = lab.after = fate
    serving = lab.train(control)
    assert_equal_everywhere(serving.server, lab.parties)

"""Faults of processes: killed, stopped, frozen."""

from __future__ import annotations

import random
import signal
import time

from faults.federation import Federation
from faults.participant import Hung

FROZEN = 60.0  # seconds after which others must have gone on without a party that says nothing


def victims(run: Federation, chance: random.Random, most: int = 2) -> list[str]:
    """Choose one or two of those that run."""
    alive = run.alive
    return chance.sample(alive, min(len(alive), chance.choice([1, 1, most])))


def someone(run: Federation, chance: random.Random) -> str:
    """Choose one of those that run: the server as often as all others together; '' if there is none."""
    others = [name for name in run.alive if name != "server"]
    if run.server.alive and (not others or chance.random() < 0.5):
        return "server"
    return chance.choice(others) if others else ""


def bring_down(run: Federation, name: str, chance: random.Random) -> str:
    """Kill or stop a participant; return how, or '' if it has ended by itself."""
    how = chance.choice(["killed", "stopped"])
    return how if (run[name].kill() if how == "killed" else run[name].stop()) else ""


def kill(run: Federation, chance: random.Random) -> str:
    """Kill one or two at once, and start them again, now or later."""
    dead = [name for name in victims(run, chance) if run[name].kill()]
    for name in dead:
        run.start_later(name, chance.choice([0.0, 0.0, 0.3, 1.0, 2.0]))
    return ", ".join(dead)


def kill_worker(run: Federation, chance: random.Random) -> str:
    """Kill one worker of a party; all of its workers are started again."""
    crew, rank = run[run.case.workers], chance.randrange(2)
    if not crew.alive:
        return ""
    crew.kill_one(rank)
    return f"rank {rank} of {crew.name}"


def stop(run: Federation, chance: random.Random) -> str:
    """Ask one or two to save and end, and start them again."""
    ended = [name for name in victims(run, chance) if run[name].stop()]
    for name in ended:
        run[name].start()
    return ", ".join(ended)


def freeze(run: Federation, chance: random.Random) -> str:
    """Stop one or two processes for a while (SIGSTOP), then let them continue."""
    names, seconds = victims(run, chance), chance.uniform(0.05, 1.5)
    for name in names:
        run[name].signal(signal.SIGSTOP)
    time.sleep(seconds)
    for name in names:
        run[name].signal(signal.SIGCONT)
    return f"{', '.join(names)} for {seconds:.1f} s"


def away_for_long(run: Federation, chance: random.Random, begin: int, end: int) -> str:
    """Send a party the signal `begin`, and `end` when the others have gone on without it.

    A process that is stopped (SIGSTOP) answers no pings; one that hangs (SIGUSR1) does, and is connected as before.
    """
    name = chance.choice(run.case.parties)
    if not run[name].alive or not run[name].said:  # it has just been started: it takes no signals yet
        return ""
    run[name].signal(begin)
    wanted, ends = run.position() + 5, time.monotonic() + FROZEN
    try:
        while run.server.alive and run.position() < wanted:
            if time.monotonic() > ends:
                raise Hung(f"all wait for {name}, which is connected and has said nothing for {FROZEN:g} s")
            time.sleep(0.05)
    finally:
        run[name].signal(end)
    return name

"""Faults of disks, and of those who restore backups and change files: each participant goes on from what is left."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from faults import damage
from faults.federation import Federation
from faults.process_faults import bring_down, someone, victims

ROOM = 8192  # bytes that every file may have on a full disk: what a participant prints must have room


def power_failure(run: Federation, chance: random.Random, zeros: bool = False) -> str:
    """Kill one or all; what was not flushed is lost, as the protocol reckons with."""
    names = run.alive if chance.random() < 0.4 else victims(run, chance, 1)
    dead = [name for name in names if run[name].kill()]
    lost = []
    for name in dead:
        folder = run[name].folder
        damage.leave_half_a_file(folder)
        if (folder / "ledger.jsonl").exists():
            damage.truncate(folder / "ledger.jsonl", chance)
        if (run.case.stale or run.case.asynchronous) and name == "server":
            lost.append("server: nothing")  # every request was flushed before it was sent
        else:
            lost.append(f"{name}: {damage.lose_end(damage.unsynced(folder), chance, zeros)}")
    for name in dead:
        run[name].start()
    return "; ".join(lost)


def _damaged(run: Federation, name: str, chance: random.Random, harm: Callable[[Path, random.Random], str]) -> str:
    """Kill or stop a participant, damage its folder, and start it again."""
    how = bring_down(run, name, chance)
    if not how:
        return ""
    text = harm(run[name].folder, chance)
    run[name].start()
    return f"{name} {how}: {text}"


def _anyone(run: Federation, chance: random.Random, harm: Callable[[Path, random.Random], str]) -> str:
    name = someone(run, chance)
    return _damaged(run, name, chance, harm) if name else ""


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def damaged_file(
    pattern: str, harm: Callable[[Path, random.Random], str]
) -> Callable[[Federation, random.Random], str]:
    """Return a fault that damages a file of somebody who has it."""

    def one(folder: Path, chance: random.Random) -> str:
        found = _files(folder, pattern)
        return harm(chance.choice(found), chance) if found else "nothing to damage"

    def apply(run: Federation, chance: random.Random) -> str:
        owners = [name for name in run.alive if _files(run[name].folder, pattern)]
        return _damaged(run, chance.choice(owners), chance, one) if owners else ""

    return apply


def lying_disk(run: Federation, chance: random.Random) -> str:
    """The disk has lost what it was told to flush: the end of the message log, from any place."""
    return _anyone(run, chance, lambda folder, rng: damage.lose_end(damage.segments(folder), rng))


def lost_log(run: Federation, chance: random.Random) -> str:
    """The same, but no more than what follows the last checkpoint."""
    return _anyone(run, chance, lambda folder, rng: damage.lose_end(damage.unsynced(folder), rng))


def _later(run: Federation, chance: random.Random) -> bool:
    """Let some requests pass."""
    return run.reach(run.position() + 2 + int(run.steps * chance.choice([0.0, 0.04, 0.1, 0.2])))


def _keep(run: Federation, name: str) -> Path:
    """Copy a folder as it is at this moment; return the copy."""
    kept = run.root / f"{name}.old"
    run[name].signal(signal.SIGSTOP)
    try:
        damage.copy(run[name].folder, kept)
    finally:
        run[name].signal(signal.SIGCONT)
    return kept


def old_folder(run: Federation, chance: random.Random, pattern: str = "") -> str:
    """Put back an old copy of somebody's folder, or of one file of it."""
    name = someone(run, chance)
    if not name:
        return ""
    since, kept = run.position(), _keep(run, name)
    if not _later(run, chance):
        return ""

    def harm(folder: Path, chance: random.Random) -> str:
        if not pattern:
            damage.copy(kept, folder)
        elif (kept / pattern).exists():
            (folder / pattern).write_bytes((kept / pattern).read_bytes())
        return f"as at request {since}, at request {run.position()}"

    return _damaged(run, name, chance, harm)


def forgotten_absence(run: Federation, chance: random.Random) -> str:
    """The others go on without a party, and then the server forgets that they did."""
    name = chance.choice(run.case.parties)
    if not run.server.alive or not run[name].alive:
        return ""
    kept = _keep(run, "server")
    if not run[name].kill():
        return ""
    since = run.position()
    run.start_later(name, 30.0)  # if the others do not get that far
    run.reach(since + chance.randint(4, 20))
    gone_on = run.position()
    if run.server.kill():
        damage.copy(kept, run.server.folder)
        run.server.start()
    run.start_later(name, 0.0)
    return f"{name} away from request {since} to {gone_on}"


def old_set(run: Federation, chance: random.Random) -> str:
    """Stop all, copy all folders, go on, and put all of them back later: a backup as the documents recommend it."""
    stopped = [run[name].stop() for name in run.names if run[name].alive]
    if len(stopped) < len(run.names) or not all(stopped):
        return ""
    since = run.position()
    for name in run.names:
        damage.copy(run[name].folder, run.root / f"{name}.old")
    run.start(chance)
    if not _later(run, chance) or len(run.alive) < len(run.names):
        return ""
    for name in run.names:
        run[name].kill()
        damage.copy(run.root / f"{name}.old", run[name].folder)
    run.start(chance)
    return f"as at request {since}"


def full_disk(run: Federation, chance: random.Random) -> str:
    """Kill somebody and start it where files cannot grow; once it has given up, or after a while, they can again."""
    name = someone(run, chance)
    if not name or not run[name].kill():
        return ""
    sizes = [path.stat().st_size for path in run[name].folder.glob("*") if path.suffix in (".jsonl", ".safetensors")]
    limit = max(ROOM, int(chance.choice([*sizes, 4096]) * chance.uniform(0.6, 1.2)))
    run[name].start(limit)
    ends = time.monotonic() + 3.0
    while run[name].alive and time.monotonic() < ends:
        time.sleep(0.02)
    ended = not run[name].kill()  # by itself, if only a moment ago
    gave_up = ended and run[name].code == 2 and "Traceback" not in run[name].said
    if ended and not gave_up:
        return f"{name}: {limit} bytes"  # in another way
    run[name].start()
    return f"{name}: {limit} bytes, {'gave up' if gave_up else 'enough'}"


def changed_weights(run: Federation, chance: random.Random) -> str:
    """The label holder's log loses its end, and its file changes before it starts again."""
    text = run.server.file.read_text(encoding="utf-8")
    if "class_weights" in text or not run.server.alive:
        return ""

    def harm(folder: Path, chance: random.Random) -> str:
        run.server.file.write_text(f'class_weights = "balanced"\n{text}', encoding="utf-8")
        return damage.lose_end(damage.unsynced(folder), chance)

    return _damaged(run, "server", chance, harm)

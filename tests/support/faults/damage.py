"""What happens to the files of a participant that does not run: lost ends, flipped bits, old versions."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from efvfl.errors import CheckpointError
from efvfl.network.training.autosave import CHECKPOINT
from efvfl.util import checkpoint


def flip(path: Path, chance: random.Random) -> str:
    """Flip one bit; return which."""
    data = bytearray(path.read_bytes())
    if not data:
        return f"nothing in {path.name}"
    bit = chance.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"bit {bit} of {path.name}, {len(data)} bytes"


def truncate(path: Path, chance: random.Random) -> str:
    """Lose a part of the end; return how much."""
    size = path.stat().st_size
    left = chance.randrange(size) if size else 0
    os.truncate(path, left)
    return f"{size - left} of {size} bytes of {path.name}"


def segments(folder: Path) -> list[Path]:
    """Return the files of the message log, in order."""
    return sorted((folder / "log").glob("*.log"))


def covered(folder: Path) -> int:
    """Return the first request that a participant need not have flushed to the disk; 0 without a checkpoint."""
    try:
        state = checkpoint.load(folder / CHECKPOINT)
    except CheckpointError:  # there is none yet, or another fault has damaged it
        return 0
    requests = state.get("requests")
    return int(requests["number"]) + int(requests["under_way"]) if requests else int(state["handled"])


def unsynced(folder: Path) -> list[Path]:
    """Return the files of the message log that were begun after the last checkpoint."""
    return [path for path in segments(folder) if int(path.stem) >= covered(folder)]


def lose_end(paths: list[Path], chance: random.Random, zeros: bool = False) -> str:
    """Lose what was written to these files last; `zeros`: their size is kept, but not what was in them."""
    if not paths:
        return "nothing to lose"
    place = chance.randrange(len(paths))
    size = paths[place].stat().st_size
    text = f"{len(paths) - place} of {len(paths)} segments, {truncate(paths[place], chance)}"
    if zeros:
        os.truncate(paths[place], size)
    for path in paths[place + 1 :]:
        path.unlink()
    return text


def leave_half_a_file(folder: Path) -> None:
    """Leave what a write that was interrupted leaves behind."""
    path = folder / CHECKPOINT
    if path.exists():
        data = path.read_bytes()
        path.with_name(f".{CHECKPOINT}.1.part").write_bytes(data[: len(data) // 2])


def copy(folder: Path, to: Path) -> None:
    """Copy a folder, in place of an older copy."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)

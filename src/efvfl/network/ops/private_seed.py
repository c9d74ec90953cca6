"""Private seeds: drawn once for a participant with an own file, and kept in its folder for nobody else to read.

Initial parameters and noise follow from it, so after a restart it must be the same, and others must not guess it.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

from efvfl.config.own_file import SERVER, Participant
from efvfl.config.run_file import PartyConfig, RunConfig
from efvfl.errors import CheckpointError, ConfigError
from efvfl.network.identity.authority import write_new
from efvfl.network.identity.certificates import read

FILE = "private_seed"  # in a participant's folder
BITS = 63


def completed(config: RunConfig, participant: Participant, folder: Path) -> RunConfig:
    """Return a run in which this participant has a private seed: that of its own file, or the one in its folder."""
    name = participant.name
    has = config if participant.serves else config.of(name)
    if has.private_seed is not None:
        return config
    seed = _kept(folder)
    if name != SERVER:
        entry = replace(config.of(name), private_seed=seed)
        config = replace(config, party=_with(config.party, entry))
    return replace(config, private_seed=seed) if participant.serves else config


def _with(parties: tuple[PartyConfig, ...], entry: PartyConfig) -> tuple[PartyConfig, ...]:
    return tuple(entry if party.name == entry.name else party for party in parties)


def _kept(folder: Path) -> int:
    """Return the seed in a folder; draw it if there is none."""
    path = folder / FILE
    try:
        if not path.exists():
            _draw(path)
        text = read(path, secret=True).decode("ascii", "replace").strip()
    except OSError as error:
        raise CheckpointError(f"cannot keep a private seed in {path}: {error}.") from error
    if not text.isdecimal() or int(text).bit_length() > BITS:
        raise CheckpointError(f"{path}: expected a number of {BITS} bits, got {text!r:.80}. Put a good copy back.")
    return int(text)


def _draw(path: Path) -> None:
    """Write a new seed; if another process is faster, its seed stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        write_new(path, f"{secrets.randbits(BITS)}\n".encode(), 0o600, [])
    except ConfigError:
        if not path.exists():
            raise

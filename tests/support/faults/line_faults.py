"""Faults of the lines between parties and the server: slow, silent, cut."""

from __future__ import annotations

import random

from faults.federation import Federation


def _lines(run: Federation, chance: random.Random) -> list[str]:
    return chance.sample(sorted(run.proxies), chance.randint(1, len(run.proxies)))


def slow_line(run: Federation, chance: random.Random) -> str:
    """Have every piece wait on its way, for a while."""
    names, delay, seconds = _lines(run, chance), chance.uniform(0.002, 0.05), chance.uniform(0.3, 1.5)
    for name in names:
        run.proxies[name].delay = delay
    run.pause(seconds)
    for name in names:
        run.proxies[name].heal()
    return f"{', '.join(names)}: {1000 * delay:.0f} ms for {seconds:.1f} s"


def trickle(run: Federation, chance: random.Random) -> str:
    """Have only a few bytes through at a time, for a while."""
    names, piece, seconds = _lines(run, chance), chance.choice([1, 7, 100]), chance.uniform(0.3, 1.5)
    for name in names:
        run.proxies[name].piece, run.proxies[name].delay = piece, 0.001
    run.pause(seconds)
    for name in names:
        run.proxies[name].heal()
    return f"{', '.join(names)}: {piece} bytes per ms for {seconds:.1f} s"


def silent_line(run: Federation, chance: random.Random, most: float = 1.5) -> str:
    """Keep connections open and have nothing through; then everything that was held back, or a cut."""
    names, seconds, cut = _lines(run, chance), chance.uniform(most / 5, most), chance.random() < 0.3
    for name in names:
        run.proxies[name].forwarding.clear()
    run.pause(seconds)
    for name in names:
        if cut:
            run.proxies[name].cut()
        run.proxies[name].heal()
    return f"{', '.join(names)} for {seconds:.1f} s{', then cut' if cut else ''}"


def cut_line(run: Federation, chance: random.Random) -> str:
    """Cut connections, several times."""
    names, times = _lines(run, chance), chance.randint(1, 4)
    for _ in range(times):
        for name in names:
            run.proxies[name].cut()
        run.pause(chance.uniform(0.0, 0.2))
    return f"{', '.join(names)}, {times} times"

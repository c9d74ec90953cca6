"""How many ids each side brings: said before anything is revealed, and capped where the file announces a number.

Nobody can see whether an id in a set is a guess. But a set of guesses is large, and a size can be compared.
"""

from __future__ import annotations

import logging
from typing import Final

from efvfl.config.run_file import RunConfig
from efvfl.errors import ConfigError, ProtocolError

log = logging.getLogger("efvfl")

UNLIKE: Final = 10  # times as many ids as the other side, and both are warned


def announced(config: RunConfig, name: str) -> int:
    """Return the number of ids in the file for a party, or for the label holder (''); 0: none."""
    return config.of(name).ids if name else config.data.ids


def all_announced(config: RunConfig) -> dict[str, int]:
    """Return the announced numbers of all; refuse one that nobody would look at."""
    if config.label_holder and config.of(config.label_holder).ids:
        raise ConfigError(
            f"[[party]] {config.label_holder!r} has `ids`, but it is the label holder: announce its number as data.ids."
        )
    names = ["", *(party.name for party in config.party if party.name != config.label_holder)]
    return {name: announced(config, name) for name in names}


def check(config: RunConfig, name: str, count: int) -> None:
    """Refuse a participant that brings over a tenth more ids than were announced for it."""
    expected = announced(config, name)
    if expected and count > expected + expected // 10:
        who, key = (name, f"`ids` of [[party]] {name!r}") if name else ("the label holder", "data.ids")
        raise ProtocolError(
            f"expected about {expected:,} ids from {who}, as {key} says, got {count:,}: agree on the number at all, or "
            "bring the table that was announced."
        )


def describe(who: str, theirs: int, here: int) -> None:
    """Say how many ids both sides bring, before anything is revealed."""
    log.info("%s brings %s ids, you bring %s.", who, f"{theirs:,}", f"{here:,}")
    if max(theirs, here) > UNLIKE * min(theirs, here):
        log.warning(
            "%s brings %s ids and you bring %s: who brings many more ids than expected may be guessing. Is that the "
            "table you agreed on? `ids` in the file caps its size",
            who,
            f"{theirs:,}",
            f"{here:,}",
        )

"""How the workers of a party find each other, and those of this start alone."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous


def meet(rank: int, size: int, seconds: float) -> Store:
    """Return a store that the workers of this start have to themselves.

    torchrun's own outlives a restart, with the addresses of the dead in it, and who looks there too early dials them.
    So every worker asks for a new place under a word that nobody has used before, and rank 0 answers until all
    are there.
    """
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
    word = secrets.token_hex(8)
    if rank:
        store.set(f"hello {rank}", word)
        place = store.get(f"answer to {word}").decode()
        store.set(f"{place} {rank}", "here")
        return PrefixStore(place, store)
    absent, ends = set(range(1, size)), time.monotonic() + seconds
    while absent:
        for other in sorted(absent):
            if store.check([f"hello {other}"]):  # perhaps a dead one's, and then there will be another
                store.set(f"answer to {store.get(f'hello {other}').decode()}", word)
        absent = {other for other in absent if not store.check([f"{word} {other}"])}
        if time.monotonic() > ends:
            raise RuntimeError(f"workers {sorted(absent)} did not come within {seconds:,.0f} seconds")
        time.sleep(0.01)
    return PrefixStore(word, store)

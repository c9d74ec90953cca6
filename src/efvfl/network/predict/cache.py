"""What the prediction service remembers: recently used representations, which ids a party holds or lacks, and means."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from efvfl.util import checkpoint

Rows = NDArray[np.float32]


class RepresentationCache:
    """Representations of one party's rows by id; the least recently used one is dropped when it is full."""

    def __init__(self, capacity: int, width: int) -> None:
        """Cache at most `capacity` rows of `width` numbers."""
        self.capacity = capacity
        self.width = width
        self._rows: Rows = np.empty((0, width), dtype=np.float32)
        self._places: OrderedDict[str, int] = OrderedDict()  # of ids in the array, the least recently used first
        self._lock = threading.Lock()  # requests read while new rows are added

    def __len__(self) -> int:
        return len(self._places)

    def get(self, ids: Sequence[str]) -> tuple[list[str], Rows]:
        """Return those of the ids that are cached, and their rows."""
        with self._lock:
            places = {i: self._places[i] for i in ids if i in self._places}
            for i in places:
                self._places.move_to_end(i)
            known = [i for i in ids if i in places]
            return known, self._rows[[places[i] for i in known]]

    def put(self, ids: Sequence[str], rows: Rows) -> None:
        """Add rows."""
        with self._lock:
            places = self._reserve(ids)
            self._rows[places] = rows

    def _reserve(self, ids: Sequence[str]) -> list[int]:
        places = []
        for i in ids:
            place = self._places.pop(i, None)
            if place is None and len(self._places) == self.capacity:
                place = self._places.popitem(last=False)[1]
            self._places[i] = len(self._places) if place is None else place
            places.append(self._places[i])
        short = len(self._places) - len(self._rows)
        if short > 0:  # doubled every time, so that rows are seldom copied
            more = min(max(short, len(self._rows)), self.capacity - len(self._rows))
            self._rows = np.concatenate([self._rows, np.empty((more, self._rows.shape[1]), dtype=np.float32)])
        return places


class IdMemory:
    """Ids that one party is known to lack, or to hold: asking it again would count towards its limit again.

    The ids that were added first go first. All are forgotten after some time, and when the party connects again: it may
    hold other rows then.
    """

    def __init__(
        self, capacity: int = 100_000, seconds: float = 600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Remember so many ids for so long."""
        self.capacity = capacity
        self.seconds = seconds
        self._clock = clock
        self._added: OrderedDict[str, float] = OrderedDict()  # when, by id, the oldest first
        self._connection: object = None

    def add(self, ids: Iterable[str]) -> None:
        """Remember ids."""
        now = self._clock()
        for i in ids:
            self._added[i] = now
            self._added.move_to_end(i)
            if len(self._added) > self.capacity:
                self._added.popitem(last=False)

    def among(self, ids: Iterable[str], connection: object) -> set[str]:
        """Return those of the ids that are remembered; `connection` is that of the party, None if it is away."""
        if connection is not None and connection is not self._connection:
            self._connection = connection
            self._added.clear()
        oldest = self._clock() - self.seconds
        return {i for i in ids if self._added.get(i, oldest) > oldest}


class MeanRepresentations:
    """Every party's mean representation of the training rows, in a file, so that it survives a restart."""

    def __init__(self, path: Path, fusion: nn.Module, requests: int) -> None:
        """Load the file, if it belongs to this fusion model after so many requests."""
        self.path = path
        self.by_party: dict[str, Rows] = {}
        self._model = _digest(fusion, requests)
        if path.exists():
            state = checkpoint.load(path)
            if state.get("model") == self._model:
                self.by_party = {name: mean.numpy() for name, mean in state["means"].items()}

    def add(self, name: str, mean: Rows) -> None:
        """Add a party's mean, and save all."""
        self.by_party = self.by_party | {name: mean}
        means = {name: torch.from_numpy(mean) for name, mean in self.by_party.items()}
        checkpoint.save(self.path, {"model": self._model, "means": means})


def _digest(fusion: nn.Module, requests: int) -> str:
    """Return a digest that changes with more training, which changes all representations."""
    digest = hashlib.blake2b(str(requests).encode(), digest_size=16)
    for tensor in fusion.state_dict().values():
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()

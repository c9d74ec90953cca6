"""What the prediction service keeps of the parties: representations lately used, and means for when one is missing."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from efvfl.util import checkpoint

Rows = NDArray[np.float32]


class KeptRows:
    """Representations of one party's rows by id. When there is no room, the one not used for longest goes."""

    def __init__(self, room: int, width: int) -> None:
        """Keep at most `room` rows."""
        self.room = room
        self._rows: Rows = np.empty((0, width), dtype=np.float32)
        self._places: OrderedDict[str, int] = OrderedDict()  # of ids in the array, the longest unused first
        self._lock = threading.Lock()  # requests read while new rows are put in

    def __len__(self) -> int:
        return len(self._places)

    def get(self, ids: Sequence[str]) -> tuple[list[str], Rows]:
        """Return those of the ids that are kept, and their rows."""
        with self._lock:
            places = {i: self._places[i] for i in ids if i in self._places}
            for i in places:
                self._places.move_to_end(i)
            known = [i for i in ids if i in places]
            return known, self._rows[[places[i] for i in known]]

    def put(self, ids: Sequence[str], rows: Rows) -> None:
        """Keep these rows."""
        with self._lock:
            places = self._make_room(ids)
            self._rows[places] = rows

    def _make_room(self, ids: Sequence[str]) -> list[int]:
        found = []
        for i in ids:
            place = self._places.pop(i, None)
            if place is None and len(self._places) == self.room:
                place = self._places.popitem(last=False)[1]
            self._places[i] = len(self._places) if place is None else place
            found.append(self._places[i])
        short = len(self._places) - len(self._rows)
        if short > 0:  # twice as long every time, so that rows are seldom copied
            more = min(max(short, len(self._rows)), self.room - len(self._rows))
            self._rows = np.concatenate([self._rows, np.empty((more, self._rows.shape[1]), dtype=np.float32)])
        return found


class Means:
    """The parties' mean representation of the training rows, in a file: a party may be missing after a restart too."""

    def __init__(self, path: Path, fusion: nn.Module, requests: int) -> None:
        """Go on with what the file holds, if it belongs to this fusion model after so many requests."""
        self.path = path
        self.of: dict[str, Rows] = {}
        self._model = _digest(fusion, requests)
        if path.exists():
            state = checkpoint.load(path)
            if state.get("model") == self._model:
                self.of = {name: mean.numpy() for name, mean in state["means"].items()}

    def add(self, name: str, mean: Rows) -> None:
        """Keep a party's."""
        self.of = self.of | {name: mean}
        means = {name: torch.from_numpy(mean) for name, mean in self.of.items()}
        checkpoint.save(self.path, {"model": self._model, "means": means})


def _digest(fusion: nn.Module, requests: int) -> str:
    """Return a text that is another one after more training, when all representations are others."""
    found = hashlib.blake2b(str(requests).encode(), digest_size=16)
    for tensor in fusion.state_dict().values():
        found.update(tensor.detach().cpu().numpy().tobytes())
    return found.hexdigest()

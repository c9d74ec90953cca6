"""The orders in which a party sent its points, on disk: after a crash it must still find its ids by their places."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import numpy as np

from efvfl.network.align.psi import NO_ID, Order
from efvfl.util.files import write_atomically

FOLDER: Final = "align-orders"


class SavedOrders:
    """A file for every shard of the alignment that is under way."""

    def __init__(self, folder: Path) -> None:
        """Keep them in a participant's folder."""
        self._folder = folder / FOLDER
        self._loaded: dict[tuple[bytes, int], Order] = {}

    def save(self, salt: bytes, shard: int, order: Order) -> None:
        """Write down an order before its points are sent."""
        self._loaded[salt, shard] = order
        write_atomically(self._path(salt, shard), order.astype("<u4").tobytes())

    def index(self, salt: bytes, shard: int, place: int) -> int | None:
        """Return the index of the id whose point was sent at a place; None if there was none."""
        if (salt, shard) not in self._loaded:
            path = self._path(salt, shard)
            data = path.read_bytes() if path.exists() else b""
            self._loaded[salt, shard] = np.frombuffer(data[: len(data) // 4 * 4], dtype="<u4").astype(np.uint32)
        order = self._loaded[salt, shard]
        found = int(order[place]) if place < len(order) else NO_ID
        return None if found == NO_ID else found

    def clear(self, keep: bytes | None = None) -> None:
        """Delete the orders of all alignments, but for one whose salt is given."""
        self._loaded = {key: order for key, order in self._loaded.items() if key[0] == keep}
        if keep is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        for path in self._folder.glob("*"):
            if not path.name.startswith(keep.hex()):
                path.unlink(missing_ok=True)

    def _path(self, salt: bytes, shard: int) -> Path:
        return self._folder / f"{salt.hex()}-{shard}"

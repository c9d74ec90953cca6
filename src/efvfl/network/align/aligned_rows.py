"""The result of an alignment: the rows that all participants share, in the order that all use, with their splits."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from efvfl.errors import DataError
from efvfl.network.align.messages import DIGEST
from efvfl.util.extras import optional
from efvfl.util.files import write_atomically

with optional("tables", "a list of aligned rows"):
    import polars

SPLITS: Final = ("train", "validation", "test")  # a row's code is the index of its split


@dataclass(frozen=True)
class Aligned:
    """The list of shared rows."""

    ids: list[str]
    splits: bytes  # a code for each id

    def digest(self) -> bytes:
        """Return a digest of the whole list."""
        digest = hashlib.blake2b(len(self.ids).to_bytes(8, "little") + self.splits, digest_size=DIGEST)
        for name in self.ids:
            code = name.encode()
            digest.update(len(code).to_bytes(8, "little") + code)
        return digest.digest()

    def counts(self) -> dict[str, int]:
        """Return how many rows each split has."""
        rows = Counter(self.splits)
        return {split: rows[code] for code, split in enumerate(SPLITS)}

    def save(self, path: Path) -> None:
        """Write the list as Parquet with the columns `id` and `split`."""
        buffer = io.BytesIO()
        polars.DataFrame({"id": self.ids, "split": [SPLITS[code] for code in self.splits]}).write_parquet(buffer)
        write_atomically(path, buffer.getvalue())

    def compared(self, before: Aligned) -> tuple[int, int]:
        """Return how many rows an earlier list did not have, and how many of its rows this one does not have."""
        now, then = set(self.ids), set(before.ids)
        return len(now - then), len(then - now)

    @classmethod
    def load(cls, path: Path) -> Aligned:
        """Return the list that `save` wrote."""
        try:
            frame = polars.read_parquet(path)
        except (OSError, polars.exceptions.PolarsError) as error:
            raise DataError(f"cannot read {path}: {error}. Run `efvfl align` first, all together.") from error
        if frame.schema != {"id": polars.String, "split": polars.String} or not set(frame["split"]) <= set(SPLITS):
            raise DataError(f"{path} was not written by `efvfl align`: run it again, all together.")
        return cls(frame["id"].to_list(), bytes(SPLITS.index(split) for split in frame["split"]))


def shapes(ids: Sequence[str]) -> str:
    """Describe the format of ids without showing any."""
    lengths = [len(name) for name in ids]
    kinds = Counter(map(_shape, ids))
    shares = ", ".join(f"{count / len(ids):.0%} {kind}" for kind, count in kinds.most_common())
    return f"{min(lengths)} to {max(lengths)} characters: {shares}"


def _shape(name: str) -> str:
    if name.isdecimal():
        return "digits only"
    if name.isalpha():
        return "letters only"
    return "digits and letters" if name.isalnum() else "with other characters"

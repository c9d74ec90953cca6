"""Which rows train, validate and test: a function of the seed and the id alone.

The place of an id is the keyed BLAKE2b hash of its UTF-8 bytes, 8 bytes read as a little-endian number; the key is
`derive(seed, "split")`. This is fixed for good: rows that are added later never move those that were there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efvfl.errors import ConfigError, DataError
from efvfl.util.rng import derive


def split_of(ids: Sequence[str], seed: int, shares: tuple[float, float]) -> dict[str, NDArray[np.int64]]:
    """Return the places in `ids` of each split, ascending; `shares` are those of validation and test, about."""
    _check(shares)
    position = _hashes(ids, seed) / 2.0**64
    return _cut(position, shares)


def stratified(
    ids: Sequence[str], labels: NDArray[Any], seed: int, shares: tuple[float, float]
) -> dict[str, NDArray[np.int64]]:
    """Return the same with the shares of every class exact to one row.

    Each class is cut by the order of its hashes, so rows that are added later may move rows at the border.
    """
    _check(shares)
    if len(labels) != len(ids):
        raise DataError(f"{len(labels):,} labels came for {len(ids):,} ids: one for each is expected.")
    if labels.dtype.kind == "f" and not np.all(labels == np.floor(labels)):
        raise DataError("the labels are numbers or missing, not classes: leave data.stratify out.")
    hashes = _hashes(ids, seed)
    position = np.empty(len(ids))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        ordered = rows[np.argsort(hashes[rows], kind="stable")]
        # Half a row in from the border, so that a share of n rows holds round(share * n) of them.
        position[ordered] = (np.arange(len(rows)) + 0.5) / len(rows)
    return _cut(position, shares)


def _check(shares: tuple[float, float]) -> None:
    validation, test = shares
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise ConfigError(
            f"data.validation = {validation} and data.test = {test} came: shares of 0 or more are expected that leave "
            "some rows to train."
        )


def _hashes(ids: Sequence[str], seed: int) -> NDArray[np.uint64]:
    keyed = hashlib.blake2b(key=derive(seed, "split").to_bytes(8, "little"), digest_size=8)

    def digest(name: str) -> bytes:
        one = keyed.copy()
        one.update(name.encode())
        return one.digest()

    return np.frombuffer(b"".join(map(digest, ids)), dtype="<u8")


def _cut(position: NDArray[np.float64], shares: tuple[float, float]) -> dict[str, NDArray[np.int64]]:
    validation, test = shares
    split = {
        "train": np.flatnonzero(position >= validation + test),
        "validation": np.flatnonzero((position >= test) & (position < validation + test)),
        "test": np.flatnonzero(position < test),
    }
    if not len(split["train"]):
        raise DataError(
            f"of {len(position):,} rows none is left to train with data.validation = {validation} and data.test = "
            f"{test}. More rows, smaller shares or another seed help."
        )
    return split

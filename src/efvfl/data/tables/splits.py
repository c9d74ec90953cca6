"""The split into training, validation and test rows: a function of the seed and the ids alone.

The position of an id is the keyed BLAKE2b hash of its UTF-8 bytes, 8 bytes as a little-endian integer; the key is
`derive(seed, "split")`. This never changes, so adding rows does not move existing ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efvfl.config.run_file import RunConfig
from efvfl.errors import ConfigError, DataError
from efvfl.util.rng import derive

SPLITS = ("train", "validation", "test")  # the code of a split is its place here


def split_seed(config: RunConfig) -> int:
    """Return the seed of the splits: the shared one, but with stratify the label holder's own.

    Classes are cut one by one. Who knew the order in each of them would see from the splits which class a row is in.
    """
    if config.data.stratify and config.private_seed is not None:
        return derive(config.private_seed, "stratify")
    return config.seed


def shuffled(ids: Sequence[str], seed: int) -> NDArray[np.int64]:
    """Return the places of ids in an order that follows from a seed and the ids alone, whatever theirs is.

    >>> [["".join(ids[i] for i in shuffled(ids, 1))] for ids in ("abcd", "dcba")]
    [['dacb'], ['dacb']]
    """
    first = np.array(sorted(range(len(ids)), key=lambda place: ids[place]), dtype=np.int64)
    return first[np.argsort(_hashes([ids[place] for place in first], seed, "order"), kind="stable")]


def split_codes(config: RunConfig, ids: Sequence[str], labels: NDArray[Any] | None) -> NDArray[np.uint8]:
    """Return the code of every id's split; labels are needed to stratify."""
    shares, seed = (config.data.validation, config.data.test), split_seed(config)
    if config.data.stratify and labels is not None:
        parts = stratified(ids, labels, seed, shares)
    else:
        parts = split_of(ids, seed, shares)
    codes = np.zeros(len(ids), dtype=np.uint8)
    for code, split in enumerate(SPLITS):
        codes[parts[split]] = code
    return codes


def split_of(ids: Sequence[str], seed: int, shares: tuple[float, float]) -> dict[str, NDArray[np.int64]]:
    """Return the sorted indices into `ids` of each split; `shares` are the approximate validation and test shares.

    >>> {split: rows.tolist() for split, rows in split_of(["a", "b", "c", "d"], 0, (0.25, 0.25)).items()}
    {'train': [1, 3], 'validation': [0], 'test': [2]}
    """
    _check(shares)
    position = _hashes(ids, seed) / 2.0**64
    return _cut(position, shares)


def stratified(
    ids: Sequence[str], labels: NDArray[Any], seed: int, shares: tuple[float, float]
) -> dict[str, NDArray[np.int64]]:
    """Return the same, but with the shares of every class exact to one row.

    Each class is split in the order of its hashes, so adding rows may move others across the boundary.
    """
    _check(shares)
    if len(labels) != len(ids):
        raise DataError(f"expected {len(ids):,} labels, one per id, got {len(labels):,}.")
    if labels.dtype.kind == "f" and not np.all(labels == np.floor(labels)):
        raise DataError(
            "expected classes as labels for data.stratify, got numbers or missing labels: remove data.stratify."
        )
    hashes = _hashes(ids, seed)
    position = np.empty(len(ids))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        ordered = rows[np.argsort(hashes[rows], kind="stable")]
        # Offset by half a row, so that a share of n rows has round(share * n) of them.
        position[ordered] = (np.arange(len(rows)) + 0.5) / len(rows)
    return _cut(position, shares)


def _check(shares: tuple[float, float]) -> None:
    validation, test = shares
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise ConfigError(
            f"expected data.validation and data.test to be 0 or more with a sum below 1, got {validation} and {test}."
        )


def _hashes(ids: Sequence[str], seed: int, of: str = "split") -> NDArray[np.uint64]:
    keyed = hashlib.blake2b(key=derive(seed, of).to_bytes(8, "little"), digest_size=8)

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
            f"none of {len(position):,} rows is left for training with data.validation = {validation} and data.test = "
            f"{test}. Use more rows, smaller shares or another seed."
        )
    return split

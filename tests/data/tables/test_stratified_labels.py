"""Stratified splits tell nobody labels: not even who knows the shared seed."""

import hashlib
from pathlib import Path
from random import Random

import numpy as np
import polars
import pytest

from efvfl.config.run_file import RunConfig, read
from efvfl.data.tables.load import join
from efvfl.util.rng import derive

ROWS = 2_000


def splits(folder: Path, shares: tuple[float, float], **more: int) -> tuple[dict[str, str], dict[str, int]]:
    """The split and the label of every row, as `efvfl run` and the label holder cut them."""
    chance = Random(3)
    labels = {f"customer-{i:05d}": chance.randrange(2) for i in range(ROWS)}
    ids = list(labels)
    polars.DataFrame({"id": ids, "x": 1.0, "y": list(labels.values())}).write_parquet(folder / "bank.parquet")
    polars.DataFrame({"id": ids, "z": 1.0}).write_parquet(folder / "telco.parquet")
    table = {
        "seed": 3,
        **more,
        "label_holder": "bank",
        "loss": "binary_cross_entropy",
        "data": {"stratify": True, "validation": shares[0], "test": shares[1]},
        "party": [
            {"name": "bank", "data": {"path": "bank.parquet", "id": "id", "label": "y"}},
            {"name": "telco", "data": {"path": "telco.parquet", "id": "id"}},
        ],
    }
    found = join(read(RunConfig, table, "case"), folder).ids
    return {name: split for split, names in found.items() for name in names}, labels


def hash_of(name: str, seed: int) -> int:
    """What orders ids under the shared seed, as documented."""
    key = derive(seed, "split").to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(name.encode(), key=key, digest_size=8).digest(), "little")


def guesses(split: dict[str, str], seed: int) -> dict[str, int]:
    """What a party makes of the splits: test rows are the lowest hashes of each class, up to a border of its own.

    So of the rows between the two borders, those for the test are of one class, and the others of the other class.
    """
    ids = list(split)
    position = np.array([hash_of(name, seed) for name in ids], dtype=np.uint64)
    test = np.array([split[name] == "test" for name in ids])
    between = (position >= position[~test].min()) & (position <= position[test].max())
    return {ids[i]: int(test[i]) for i in np.flatnonzero(between)}


def agreement(guessed: dict[str, int], labels: dict[str, int]) -> float:
    """The share of guesses that are right, whichever class is which."""
    right = float(np.mean([labels[name] == guess for name, guess in guessed.items()]))
    return max(right, 1 - right)


@pytest.mark.attack(
    by="a party",
    tries="reads labels off stratified splits with the shared seed, as it could exactly for 2 to 9 % of the rows",
    outcome="its guesses are no better than chance: the order in a class follows from the label holder's own seed",
)
def test_splits_tell_no_labels_to_who_knows_the_shared_seed(tmp_path: Path) -> None:
    split, labels = splits(tmp_path, (0.15, 0.5), private_seed=71_220_000_001)
    assert sum(one == "test" for one in split.values()) == pytest.approx(ROWS / 2, abs=1)
    guessed = guesses(split, seed=3)
    assert agreement(guessed, labels) < 0.55
    assert len(guessed) > ROWS / 10


def test_the_attack_works_on_splits_that_follow_from_the_shared_seed(tmp_path: Path) -> None:
    split, labels = splits(tmp_path, (0.15, 0.5))
    guessed = guesses(split, seed=3)
    assert ROWS / 100 < len(guessed) < ROWS / 10
    assert agreement(guessed, labels) == 1.0

"""Small runs whose participants die and come back."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import (
    Fate,
    Network,
    Outcome,
    config,
    reference,
)

from efvfl.config.run_file import RunConfig
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.util.checkpoint import load

MODES: dict[str, dict[str, Any]] = {
    "private": {"method": {"compressor": {"name": "topk", "ratio": 0.2}, "down": {"name": "qsgd", "bits": 4}}},
    "shared": {
        "agreement": {"labels": "shared", "fusion": "replicate", "digest_every": 2},
        "method": {"compressor": {"name": "qsgd", "bits": 4}},
        "optimizer": {"name": "SGD", "lr": 0.3, "momentum": 0.9},
    },
    "label-holder": {"label_holder": "right"},
    "noisy": {
        "protect": {"visits": {"noise": 1.0}},
        "party": [{"name": "left", "protect": {"clip": 1.0, "noise": 0.5}, "private_seed": 5}],
        "private_seed": 6,
        "evaluation": "compressed",
        "agreement": {"cached": {"steps": 1}},
    },
    "exact": {"method": {"compressor": {"name": "topk", "ratio": 0.2}, "start": "exact"}, "batch_order": "independent"},
    "pipelined": {
        "agreement": {"pipeline": True},
        "label_holder": "right",
        "method": {"compressor": {"name": "topk", "ratio": 0.2}, "start": "exact"},
        "batch_order": "independent",  # a row may be in both of the batches that are under way
    },
    "window": {
        "agreement": {"pipeline": 3, "cached": {"steps": 2, "batches": 3}},
        "method": {
            "compressor": {"name": "uniform", "levels": 1},
            "down": {"name": "uniform", "levels": 7, "scale": "row"},
            "first": {"name": "uniform", "levels": 15},
        },
        "optimizer": {"name": "Adam", "lr": 0.01},
    },
    "window-replicate": {
        "agreement": {"labels": "shared", "fusion": "replicate", "digest_every": 1, "pipeline": 3},
        "method": {"compressor": {"name": "qsgd", "bits": 4}},
        "optimizer": {"name": "SGD", "lr": 0.3, "momentum": 0.9},
    },
    "pipelined-shared": {
        "agreement": {"labels": "shared", "fusion": "compress", "pipeline": True},
        "method": {"compressor": {"name": "qsgd", "bits": 4}, "fusion": {"name": "qsgd", "bits": 8}},
        "optimizer": {"name": "SGD", "lr": 0.3, "momentum": 0.9},
    },
}


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of two parties: 24 rows to train on, 6 to test."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    ids = np.array([f"row{i}" for i in range(30)])
    held: dict[str, Any] = {
        "left": rng.normal(size=(30, 3)),
        "right": rng.normal(size=(30, 4)),
        "y": rng.integers(0, 3, 30),
    }
    np.savez(folder / "rows.npz", ids=ids, **held)
    np.savez(folder / "fewer.npz", ids=ids[:25], **{name: x[:25] for name, x in held.items()})
    order = [1, 0, *range(2, 30)]
    np.savez(folder / "swapped.npz", ids=ids[order], **{name: x[order] for name, x in held.items()})
    return folder


def small(rows: Path, mode: str = "private", save_steps: int = 1000, file: str = "rows.npz", **more: Any) -> RunConfig:
    """Two parties, two epochs of three steps, a record after each."""
    data = {"name": "npz", "path": str(rows / file), "subset": 0, "validation": 0.0, "test": 0.2}
    return config(**(MODES[mode] | {"batch_size": 8, "data": data, "network": {"save_steps": save_steps}} | more))


@cache
def undisturbed(rows: Path, mode: str, epochs: int = 2) -> Outcome:
    return reference(small(rows, mode, epochs=epochs))


class Fates:
    """One participant's first life ends at an event; all others live on."""

    def __init__(self, who: str, fate: Fate) -> None:
        self.who = who
        self.fate = fate
        self.used = False

    def __call__(self, name: str) -> Fate:
        if name != self.who or self.used:
            return Fate()
        self.used = True
        return self.fate


class FrameFate(Fate):
    """Ends a participant with the nth frame of a kind that it has sent or has received.

    One that is repeated counts once: on a busy machine requests are sent again, and so are the replies to them.
    """

    def __init__(self, kind: FrameKind, direction: str, nth: int = 1, kill: bool = True) -> None:
        super().__init__(nth, kill)
        self.kind = kind
        self.direction = direction
        self._seen: set[tuple[object, int]] = set()  # peers, and the numbers of their frames

    def event(self, *seen: object) -> None:
        if len(seen) != 3 or not isinstance(seen[2], Frame) or (seen[2].kind, seen[1]) != (self.kind, self.direction):
            return
        if (seen[0], seen[2].number) not in self._seen:
            self._seen.add((seen[0], seen[2].number))
            super().event()


def disturbed(run: RunConfig, folder: Path, who: str, fate: Fate) -> Outcome:
    with Network(run, folder, lives=2 if who else 1, fates=Fates(who, fate)) as network:
        return network.run()


def lose(folder: Path) -> int:
    """Drop what a participant wrote to its log after its checkpoint; return how much there was."""
    state = load(folder / "checkpoint.safetensors") if (folder / "checkpoint.safetensors").exists() else {}
    # The server's log holds the requests that are out when it saves, a party's ends with the last one it has answered.
    saved = state.get("requests")
    safe = int(saved["number"]) + int(saved["under_way"]) if saved else int(state.get("handled", 0))
    lost = [path for path in (folder / "log").iterdir() if int(path.stem) >= safe]
    for path in lost:
        path.unlink()
    return len(lost)

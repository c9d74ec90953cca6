"""What a federation leaves in the folders of its participants, and where two of these, or both ends of one, differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from efvfl.config import run_file
from efvfl.network.training.autosave import CHECKPOINT
from efvfl.runs.build import load_data, make_federation, watching
from efvfl.runs.run_folder import OUTPUTS, RECORDS
from efvfl.training.arrivals import load_arrivals
from efvfl.util import checkpoint


def states(root: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return everything that must not depend on what was done to the participants."""
    out: dict[str, Any] = {}
    for name in names:
        state = checkpoint.load(root / name / CHECKPOINT)
        if name == "server":
            out["records"] = [_timeless(line) for line in state.pop("records")]
            del state["driver"]["seconds"], state["requests"]["told"]
        state.pop("before")  # where the checkpoint before this one was
        out[name] = state
    lines = (root / "server" / RECORDS).read_text(encoding="utf-8").splitlines()
    out["records file"] = [_timeless(line) for line in lines]
    outputs = root / "server" / OUTPUTS
    out["outputs"] = outputs.read_bytes() if outputs.exists() else b""
    return out


def _timeless(line: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(line)
    record.pop("seconds")
    return record


def replayed(root: Path) -> dict[str, Any]:
    """Return what a run in one process leaves that takes the reports of asynchronous parties at the same steps."""
    config = run_file.load(root / "server.toml")
    torch.set_num_threads(config.threads)
    federation = make_federation(config, load_data(config, root), arrivals=load_arrivals(root / "server"))
    federation.fit(config.epochs, watching(config).every, gradient=False)
    parties = {name: {"party": party.state_dict()} for name, party in federation.parties.items()}
    return {"server": {"server": federation.server.state_dict()}, **parties}


def from_replay(root: Path, found: dict[str, Any]) -> Iterator[str]:
    """Yield every place where what is left differs from what the replay leaves."""
    for name, state in replayed(root).items():
        (part,) = state
        yield from differences(state[part], found[name][part], f"/{name}/replayed")


def differences(a: Any, b: Any, where: str = "") -> Iterator[str]:
    """Yield every place where two states differ."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or not torch.equal(a, b):
            yield where
    elif isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        yield where
    elif isinstance(a, dict) and isinstance(b, dict):
        for key in {*a, *b}:
            yield from differences(a.get(key), b.get(key), f"{where}/{key}")
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{where}/{i}")
    elif a != b:
        yield where


def between_ends(found: dict[str, Any]) -> Iterator[str]:
    """Yield every place where a party and the server do not remember the same of what was sent between them.

    A party that was away to the end is left out: it would learn what it missed when it is back.
    """
    whole = found["server"]
    server, left = whole["server"], whole["requests"]["presence"]["left"]
    for name in server["channels"]:
        if name in left or name not in found:  # a label holder's own party has but one end
            continue
        party = found[name]["party"]
        yield from differences(server["step"], party["step"], f"/{name}/step")
        yield from differences(whole["requests"]["number"], found[name]["handled"], f"/{name}/handled")
        yield from differences(server["channels"][name]["memory"], party["up"]["memory"], f"/{name}/up")
        ours, theirs = server["label_mode"], party["label_mode"]
        if theirs.get("down"):
            yield from differences(ours["down"][name]["memory"], theirs["down"]["memory"], f"/{name}/down")
        for other, channel in theirs.get("peers", {}).items():
            memory = server["channels"][other]["memory"]
            yield from differences(memory, channel["memory"], f"/{name}/peers/{other}")
        copy = theirs.get("fusion", {})
        if "block" in copy:
            yield from differences(server["block"], copy["block"], f"/{name}/fusion")
            yield from differences(0, copy["mends"], f"/{name}/mends")
        if "memory" in copy:
            yield from differences(ours["fusion"]["memory"], copy["memory"], f"/{name}/fusion")
    yield from differences(found["records"], found["records file"], "/records")

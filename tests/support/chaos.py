"""Kill participants with SIGKILL at random moments, start them again with the same command, and compare the end.

`make chaos` runs it at length; tests/network/training/test_chaos.py a little. Every participant is a process of its own
that runs the command line.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from ports import free_port
from warm_processes import WARM, run_command

CASES = {
    "private": """
        agreement = { labels = "private" }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.1 }, down = { name = "qsgd", bits = 4 } }
    """,
    "shared": """
        agreement = { labels = "shared", local_steps = 2, fusion = "replicate", digest_every = 5 }
        method = { name = "efvfl", compressor = { name = "qsgd", bits = 4 }, start = "exact" }
        optimizer = { name = "SGD", lr = 0.5, momentum = 0.9 }
    """,
    "aggregate": """
        label_holder = "top-left"
        agreement = { labels = "shared", downlink = "aggregate", fusion = "compress" }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.2 }, fusion = { name = "qsgd", bits = 8 } }
    """,
    "pipelined": """
        agreement = { labels = "private", pipeline = true }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.1 }, down = { name = "qsgd", bits = 4 } }
        optimizer = { name = "SGD", lr = 0.5, momentum = 0.9 }
    """,
}
FILE = """
epochs = {epochs}
batch_size = 32
observe_every = 3
seed = 3
{case}
[data]
name = "digits"
subset = 320

[network]
address = "127.0.0.1:{port}"
save_steps = {save}
"""
PARTIES = ("top-left", "top-right", "bottom-left", "bottom-right")


class Run:
    """All participants of one federation as processes."""

    def __init__(self, folder: Path, case: str, epochs: int, save: int) -> None:
        """Write the federation file and the certificates."""
        from efvfl.network.identity import authority

        self.folder = folder
        folder.mkdir(parents=True)
        text = "\n".join(line.strip() for line in CASES[case].splitlines())
        (folder / "f.toml").write_text(FILE.format(epochs=epochs, case=text, port=free_port(), save=save))
        holder = "top-left" if case == "aggregate" else ""
        self.names = ["server", *(name for name in PARTIES if name != holder)]
        authority.make(folder / "certs", self.names)
        self.processes: dict[str, BaseProcess] = {}

    def start(self, name: str) -> None:
        """Start a participant, with the same command as ever."""
        words = ["serve"] if name == "server" else ["join", "--party", name]
        words += [str(self.folder / "f.toml"), "--dir", str(self.folder / name), "--certs", str(self.folder / "certs")]
        log = self.folder / f"{name}.log"
        process = WARM.Process(target=run_command, args=([*words, "--status", "quiet"], None, log, log))
        process.start()
        self.processes[name] = process

    def kill(self, name: str) -> bool:
        """Kill a participant that is alive; return whether it was."""
        process = self.processes[name]
        alive = process.is_alive()
        process.kill()
        process.join()
        if process.exitcode not in (0, -9):
            raise AssertionError(f"{name} ended with {process.exitcode}:\n{self.log(name)}")
        return alive and process.exitcode == -9

    def log(self, name: str) -> str:
        """Return the end of what a participant printed."""
        path = self.folder / f"{name}.log"
        return path.read_text()[-3000:] if path.exists() else ""

    def finish(self, seconds: float) -> None:
        """Wait until all are done."""
        end = time.monotonic() + seconds
        for name, process in self.processes.items():
            process.join(max(0.0, end - time.monotonic()))
            if process.exitcode != 0:
                logs = "\n".join(f"--- {n}: {self.processes[n].exitcode}\n{self.log(n)}" for n in self.names)
                self.close()
                raise AssertionError(f"{name} ended with {process.exitcode}, 0 is expected.\n{logs}")

    def close(self) -> None:
        """Leave nothing running."""
        for process in self.processes.values():
            process.kill()
            process.join()

    def outcome(self) -> dict[str, Any]:
        """Return everything that must not depend on what was killed."""
        from efvfl.util import checkpoint

        out: dict[str, Any] = {}
        for name in self.names:
            state = checkpoint.load(self.folder / name / "checkpoint.safetensors")
            if name == "server":
                out["records"] = [_timeless(line) for line in state.pop("records")]
                del state["driver"]["seconds"], state["requests"]["told"]
            state.pop("rows_given", None)
            out[name] = state
        return out


def _timeless(line: str) -> dict[str, Any]:
    import json

    record: dict[str, Any] = json.loads(line)
    record.pop("seconds")
    return record


def differences(a: Any, b: Any, where: str = "") -> Iterator[str]:
    """Yield every place where two outcomes differ."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if not torch.equal(a, b):
            yield where
    elif isinstance(a, dict) and isinstance(b, dict):
        for key in {*a, *b}:
            yield from differences(a.get(key), b.get(key), f"{where}/{key}")
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{where}/{i}")
    elif a != b:
        yield where


def undisturbed(folder: Path, case: str, epochs: int) -> dict[str, Any]:
    """Return the outcome of a run in which nobody dies."""
    run = Run(folder, case, epochs, save=1000)
    for name in run.names:
        run.start(name)
    run.finish(120)
    return run.outcome()


def disturbed(folder: Path, case: str, epochs: int, seed: int, most: int) -> tuple[dict[str, Any], int]:
    """Return the outcome of a run with up to `most` kills, and how many there were."""
    chance = random.Random(seed)
    run = Run(folder, case, epochs, save=chance.choice([1, 3, 10, 50]))
    kills = 0
    try:
        for name in chance.sample(run.names, len(run.names)):
            run.start(name)
        while kills < most and run.processes["server"].exitcode is None:
            time.sleep(chance.uniform(0.05, 0.9))
            victims = chance.sample(run.names, chance.choice([1, 1, 2]))  # two at once, now and then
            dead = [name for name in victims if run.kill(name)]
            kills += len(dead)
            time.sleep(chance.choice([0.0, 0.0, 0.3]))
            for name in dead:
                run.start(name)
        run.finish(180)
    finally:
        run.close()
    return run.outcome(), kills


def chaos(folder: Path, cases: list[str], kills: int, epochs: int, seed: int = 0, loud: bool = False) -> int:
    """Kill at least so many, over several runs; return how many. Fails at the first difference."""
    wanted = {case: undisturbed(folder / f"{case}-calm", case, epochs) for case in cases}
    done, turn = 0, 0
    while done < kills:
        case = cases[turn % len(cases)]
        outcome, died = disturbed(folder / f"{case}-{turn}", case, epochs, seed + turn, most=-(-kills // len(cases)))
        found = list(differences(wanted[case], outcome))
        assert not found, f"{case}, seed {seed + turn}, {died} kills: {found[:10]} differ"
        done, turn = done + died, turn + 1
        if loud:
            print(f"{case}: {died} kills, the same bits at the end ({done} kills so far)", flush=True)
        assert turn < 20 * len(cases), "runs end before anybody can be killed: give them more epochs"
    return done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        done = chaos(Path(place), list(CASES), options.kills, options.epochs, options.seed, loud=True)
        print(f"{done} kills, no difference.")

"""Commands of efvfl in processes of their own, and the warm context that they are forked from.

A new interpreter needs several seconds to load torch and scikit-learn. These processes are forked from one that has
loaded them and has done nothing else: each costs a tenth of a second and is as separate as any other. What runs in them
asks for `quick_start.without_compiler`, as commands do: torch's compiler takes as long as all the rest.
"""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

PATIENT = 300.0  # a busy machine may take long to start a process

WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload(
    [
        "pytest",
        "sklearn.metrics",
        "efvfl.cli.sessions.serve",
        "efvfl.cli.sessions.join",
        "efvfl.runs.build",
        "efvfl.training.federate",
    ]
)


def run_command(arguments: list[str], folder: Path | None, out: Path, errors: Path) -> None:
    """Run the command line in this process, which does nothing else."""
    import torch

    from efvfl.cli import quick_start
    from efvfl.cli.main import main

    quick_start.without_compiler()
    torch.set_num_threads(1)
    for path, number in ((out, 1), (errors, 2)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    if folder is not None:
        os.chdir(folder)
    sys.exit(main(arguments))


def run_sweep(file: Path, out: Path) -> None:
    """Run an experiment in this process, with a checkpoint after every record."""
    from efvfl.cli import quick_start
    from efvfl.experiments import jobs
    from efvfl.experiments.experiment_file import load

    quick_start.without_compiler()
    jobs.CHECKPOINT_SECONDS = 0.0
    for job in load(str(file)).jobs():
        jobs.run_job(job, out)


class Process:
    """A command that runs."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """Start it in a folder."""
        self._said = Path(tempfile.mkdtemp())
        self._out, self._errors = self._said / "out", self._said / "errors"
        for path in (self._out, self._errors):
            path.touch()
        self._process = WARM.Process(target=run_command, args=(list(arguments), folder, self._out, self._errors))
        self._process.start()
        self.out = ""
        self.errors = ""
        self.code: int | None = None

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def port(self, key: str = "port") -> int:
        """Wait until a port is told."""
        return self._until(lambda: next((p for line in _lines(self._out) if (p := json.loads(line).get(key))), 0))

    def told(self, start: str) -> str:
        """Wait until a line of its output begins so, and return the rest of it."""
        return self._until(lambda: next((x.removeprefix(start) for x in _lines(self._out) if x.startswith(start)), ""))

    def wait_for(self, text: str) -> None:
        """Wait until there is a text among the messages."""
        self._until(lambda: text in self._errors.read_text(encoding="utf-8"))

    def _until(self, look: Callable[[], Found]) -> Found:
        ends = time.monotonic() + PATIENT
        while time.monotonic() < ends:
            running = self.running
            if found := look():
                return found
            if not running:
                raise AssertionError(f"it ended with {self.end().code}: {self.errors}")
            time.sleep(0.005)
        raise AssertionError("nothing was said")

    def stop(self) -> "Process":
        """Ask it to finish its step and save."""
        os.kill(self.pid, signal.SIGTERM)
        return self

    def kill(self) -> "Process":
        self._process.kill()
        return self

    def end(self) -> "Process":
        """Wait for its end, and keep what it has said."""
        if self.code is None:
            self._process.join(PATIENT)
            assert self._process.exitcode is not None, "it does not end"
            self.code = self._process.exitcode
            self.out, self.errors = (path.read_text(encoding="utf-8") for path in (self._out, self._errors))
            shutil.rmtree(self._said)
        return self


class Stage:
    """Starts commands, and ends those that still run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Process] = []

    def start(self, *arguments: str) -> Process:
        self._started.append(Process(self.folder, *arguments, "--status", "json"))
        return self._started[-1]

    def together(self, lead: str, follow: dict[str, str]) -> dict[str, Process]:
        """Run one command at the label holder, the bank, and one at each of the others, until all have ended."""
        server = self.start(*lead.split())
        address = ("--address", f"127.0.0.1:{server.port()}")
        others = {name: self.start(*words.split(), "--party", name, *address) for name, words in follow.items()}
        return {"bank": server.end(), **{name: process.end() for name, process in others.items()}}

    def close(self) -> None:
        for process in self._started:
            if process.running:
                process.kill().end()


def _lines(path: Path) -> list[str]:
    """All whole lines of a file."""
    return path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()

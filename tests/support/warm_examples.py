"""The scripts of examples, as warm processes whose own commands are forked from them.

Such a script starts a dozen commands, each of which would load torch again. Short ones are started as scripts do it.
A script whose own process works with polars is told with `warm_launch` instead: threads do not outlive a fork.
"""

import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

import pytest
from warm_processes import PATIENT, WARM, run_command

FORK = multiprocessing.get_context("fork")
AS_THEY_ARE = {"audit", "inspect"}  # commands


class Script:
    """The script of an example that runs, with the folder that it is given."""

    def __init__(self, script: Path, folder: Path) -> None:
        """Start it."""
        said = Path(tempfile.mkdtemp()) / "said"
        os.mkfifo(said)
        self._process = WARM.Process(target=run_script, args=(script, folder, said))
        self._process.start()
        self._said: TextIO = os.fdopen(os.open(said, os.O_RDONLY), encoding="utf-8")

    def wait_for(self, text: str) -> None:
        """Read until a line has a text."""
        for line in self._said:
            if text in line:
                return
        raise AssertionError(f"it ended without {text!r}")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> tuple[int | None, str]:
        """Wait for its end; return its exit code and the rest of what it printed."""
        with self._said:
            rest = self._said.read()
        self._process.join(PATIENT)
        return self._process.exitcode, rest


def run_script(script: Path, folder: Path, said: Path) -> None:
    """Run a script of an example in this process, which does nothing else."""
    _speak_to(os.open(said, os.O_WRONLY))
    sys.argv = [str(script), str(folder)]
    sys.path[:0] = [str(script.parent), str(script.parent.parent)]
    processes = importlib.import_module("processes")  # of examples
    launch = vars(processes)["launch"]
    vars(processes)["launch"] = lambda at, words: (launch if words[0] in AS_THEY_ARE else fork)(at, words)
    runpy.run_path(str(script), run_name="__main__")


class Piped:
    """A command as scripts know processes: what it says, errors too, comes through a pipe."""

    def __init__(self, process: BaseProcess, stdout: TextIO) -> None:
        self._process = process
        self.stdout = stdout

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join(PATIENT)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def fork(folder: Path, words: tuple[str, ...]) -> Piped:
    """Start a command in a folder, forked from this process."""
    here, there = os.pipe()
    process = FORK.Process(target=run_forked, args=(list(words), folder, there))
    process.start()
    os.close(there)
    return Piped(process, os.fdopen(here, encoding="utf-8"))


def warm_launch(folder: Path, words: tuple[str, ...]) -> Piped:
    """Start a command in a folder, as a warm process."""
    said = Path(tempfile.mkdtemp()) / "said"
    os.mkfifo(said)
    process = WARM.Process(target=run_command, args=(list(words), folder, said, said))
    process.start()
    return Piped(process, os.fdopen(os.open(said, os.O_RDONLY), encoding="utf-8"))


def run_forked(words: list[str], folder: Path, said: int) -> None:
    """Run the command line in this process, with nothing left of the script that it was forked from."""
    import torch

    from efvfl.cli import quick_start
    from efvfl.cli.main import main

    quick_start.without_compiler()
    torch.set_num_threads(1)
    _speak_to(said)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
    os.setsid()
    os.chdir(folder)
    os.environ["COLUMNS"] = "110"
    sys.exit(main(words))


def _speak_to(file: int) -> None:
    """Have all output of this process go to a file."""
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)


def tell_story(script: Path, folder: Path, patch: pytest.MonkeyPatch) -> object:
    """Run an example's script here, its longer commands as warm processes; return its exit code."""
    patch.setattr(sys, "path", [str(script.parent), str(script.parent.parent), *sys.path])
    patch.setattr(sys, "argv", [str(script), str(folder)])
    processes = importlib.import_module("processes")  # of examples
    real = processes.__dict__["launch"]
    patch.setattr(processes, "launch", lambda at, words: (real if words[0] in AS_THEY_ARE else warm_launch)(at, words))
    before = signal.getsignal(signal.SIGTERM)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        return ended.code
    finally:
        signal.signal(signal.SIGTERM, before)
    return None

"""Helpers of the examples: processes of several participants on one machine, each in its own folder."""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

EFVFL = (sys.executable, "-m", "efvfl")


def tell(title: str, folder: str, predictions: str, story: Callable[["Processes", Path], None]) -> int:
    """Run an example in a folder, unless its predictions exist; return the exit code."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(folder))
    place: Path = parser.parse_args().folder
    if (place / predictions).exists():
        sys.exit(f"{place / predictions} is there already: delete {place}, or name another folder.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    processes = Processes()
    try:
        story(processes, place)
    except KeyboardInterrupt:
        print("\nStopping all; the same command goes on from here.", flush=True)
        return 130
    finally:
        processes.stop(grace=0.0)
    return 0


def equip(folder: Path, file: Path, own: dict[str, Path], certified: dict[str, str]) -> None:
    """Give each participant what it has before the start: its file, its rows, its key and the CA's certificate.

    `own` has the rows of each, `certified` the name in its certificate.
    """
    subprocess.run([*EFVFL, "certs", file, "--out", folder / "ca"], check=True)
    text = file.read_text(encoding="utf-8")
    for name, rows in own.items():
        home, identity = folder / name, certified.get(name, name)
        (home / "certs").mkdir(parents=True, exist_ok=True)
        (home / file.name).write_text(own_copy(text, name), encoding="utf-8")
        shutil.copy(rows, home)
        for part in ("ca.crt", f"{identity}.crt", f"{identity}.key"):
            shutil.copy(folder / "ca" / part, home / "certs")  # with its mode: only the owner may read a key


class Processes:
    """The running processes; all of them are stopped at the end."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.readers: list[threading.Thread] = []

    def start(self, name: str, folder: Path, *words: str) -> None:
        """Start `efvfl` in a participant's folder; its output is printed after its name."""
        print(f"{name:6} $ efvfl {' '.join(words)}", flush=True)
        process = launch(folder, words)
        self.running[name] = process
        self.readers.append(threading.Thread(target=show, args=(name, process), daemon=True))
        self.readers[-1].start()

    def wait(self, name: str) -> None:
        """Wait for a process; stop the others if it fails."""
        code = self.running[name].wait()
        if code != 0:
            sys.exit(f"{name} ended with exit code {code}.")

    def stop(self, grace: float) -> None:
        """Wait some seconds for the processes, then terminate them, then kill them."""
        self._wait(grace)
        for process in self.running.values():
            process.terminate()  # they finish their step and save
        self._wait(20.0)
        for process in self.running.values():
            process.kill()
        for reader in self.readers:
            reader.join()
        self.running, self.readers = {}, []

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(process.poll() is None for process in self.running.values()):
            time.sleep(0.05)


def launch(folder: Path, words: tuple[str, ...]) -> "subprocess.Popen[str]":
    """Start `efvfl` in a folder; what it prints, errors too, is to be read from its stdout."""
    return subprocess.Popen(
        [*EFVFL, *words],
        cwd=folder,
        env=os.environ | {"COLUMNS": "110"},  # the width of its output
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C reaches only this script, which then stops each process once
    )


def show(name: str, process: subprocess.Popen[str]) -> None:
    """Print the lines of a process after its name."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            print(f"{name:6} | {line}", end="", flush=True)


def own_copy(text: str, name: str) -> str:
    """Return a participant's copy of the federation file, without lines that belong to others."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if "# own: " not in line or f"# own: {name}" in line)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

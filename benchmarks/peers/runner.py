"""Run scripts in separate processes and environments, and survive their failures."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.rows import Failed, Row, read
from efvfl.util.files import write_atomically

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENTS = ROOT / ".bench"
INSTALLING = 1800.0  # seconds
KEPT = 1 << 20  # bytes of output that are read
SHOWN = 300  # characters of a reason


@dataclass(frozen=True)
class Case:
    """A case to measure: a peer's script, or one of efvfl."""

    name: str
    warm: int
    steps: int
    peer: bool = False


CASES = [
    Case("central", 200, 2000),
    Case("efvfl-local", 200, 2000),
    Case("svfl-local", 200, 2000),
    Case("efvfl-network", 100, 1000),
    Case("svfl-network", 100, 1000),
    Case("fate", 50, 400, peer=True),
    Case("nvflare", 50, 400, peer=True),
    Case("flower", 10, 100, peer=True),
]


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - KEPT))
        return file.read().decode(errors="replace")


def _reason(*outputs: str) -> str:
    """Return the last line that is not blank."""
    for output in outputs:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        if lines:
            return lines[-1][:SHOWN]
    return "no output"


def call(command: Sequence[str], timeout: float, extra: dict[str, str] | None = None) -> str:
    """Return the output of a command. If it fails or hangs, all its processes are killed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        out, err = folder / "out", folder / "err"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": place, "RAY_TMPDIR": place} | (extra or {})
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status is None:
            raise Failed(f"not finished after {timeout:g} s; its last output: {_reason(_tail(err), _tail(out))}")
        if status:
            raise Failed(f"exit status {status}: {_reason(_tail(err), _tail(out))}")
        return _tail(out)


def environment(name: str) -> Path:
    """Return the interpreter of a peer's environment, which is created if missing or outdated."""
    requirements = HERE / f"requirements-{name}.txt"
    folder, wanted = ENVIRONMENTS / name, requirements.read_bytes()
    python, ready = folder / "bin" / "python", folder / "ready.txt"
    if not ready.exists() or ready.read_bytes() != wanted:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        torch = next(line for line in wanted.decode().splitlines() if line.startswith("torch=="))
        call([sys.executable, "-m", "venv", "--clear", str(folder)], INSTALLING)
        call([*pip, torch], INSTALLING)  # first and alone, so that pip finds the CPU build
        call([*pip, "--requirement", str(requirements)], INSTALLING)
        write_atomically(ready, wanted)
    return python


def _peer(case: Case, asked: list[str], timeout: float) -> str:
    python = environment(case.name)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        # Only the scripts' folder is importable: their processes import `problem` from it.
        extra = {"PYTHONPATH": str(HERE), "HOME": home, "FLWR_TELEMETRY_ENABLED": "0"}
        return call([str(python), str(HERE / f"on_{case.name}.py"), *asked], timeout, extra)


def _own(case: Case, asked: list[str], timeout: float) -> str:
    extra = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return call([sys.executable, "-m", "benchmarks.peers.ours", case.name, *asked], timeout, extra)


def measure(case: Case, timeout: float) -> Row:
    """Return one row, also if the script fails."""
    asked = ["--warm", str(case.warm), "--steps", str(case.steps)]
    try:
        return read(case.name, (_peer if case.peer else _own)(case, asked, timeout))
    except Failed as failed:
        return Row(case.name, failure=str(failed))

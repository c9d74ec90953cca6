"""A command of efvfl in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from refusal_case import (  # noqa: F401
    SECONDS,
    VICTIM,
    WAITING,
    Meeting,
    close_logs,
    goes_on,
    make_member,
    same,
    script,
    settings,
)

PATIENT = 300.0  # a busy machine may take long to start a process


class Process:
    """A command that runs."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "efvfl", *arguments],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out = ""
        self.errors = ""

    def port(self) -> int:
        """Read on until the port is told."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.out += line
            if (port := json.loads(line).get("port")) is not None:
                return int(port)
        raise AssertionError(self.end().errors)

    def stop(self) -> "Process":
        self.process.send_signal(signal.SIGTERM)
        return self

    def end(self) -> "Process":
        out, self.errors = self.process.communicate(timeout=PATIENT)
        self.out += out
        return self

    @property
    def code(self) -> int:
        return int(self.process.returncode)

"""Commands do not wait for torch's compiler, unless a model of the user's own asks for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = "epochs = 1\n[data]\nsubset = 40\n"
# A model that says at its first forward pass what is loaded; once more after it has compiled a function.
NET = """
import sys

import torch


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(16, 4)

    def forward(self, x):
        if not hasattr(Net, "seen"):
            Net.seen = True
            torch.optim.AdamW(self.parameters()).step()
            print("before", "torch._dynamo.convert_frame" in sys.modules)
            twice = torch.compile(lambda t: t + t, backend="eager")
            print("compiled", twice(torch.ones(2)).tolist(), "torch._dynamo.convert_frame" in sys.modules)
        return super().forward(x)
"""


@pytest.mark.slow
def test_the_compiler_is_imported_when_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "net_that_compiles.py").write_text(NET)
    (tmp_path / "run.toml").write_text(RUN + "[model]\nname = 'net_that_compiles:Net'\n")
    done = subprocess.run(
        [sys.executable, "-m", "efvfl", "run", "run.toml"],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith(("before", "compiled"))] == [
        "before False",
        "compiled [2.0, 2.0] True",
    ]

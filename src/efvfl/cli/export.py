"""`efvfl export`: the models of a trained run for other programs, with a card."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command, folder_of

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.runs.trained import TrainedRun

_ABOUT = """Writes the models of a finished run: of a run in one process those of all parties and the fusion model, of
a participant's folder its own. Each becomes model.safetensors, model.pt2 (torch.export) and model.onnx, with the
encoder of its table and a model card. The ONNX file is compared with the model before it is written."""


def register(commands: Commands) -> None:
    """Add the command of this file to the parser."""
    export = add_command(
        commands,
        "export",
        "a trained run's models for other programs: safetensors, torch.export, ONNX and a model card",
        _ABOUT,
        "export bank.toml --out bank-model",
        "export runs/federation/bank",
    )
    export.add_argument("run", type=Path, help="a participant's own file or folder, or the folder of a run")
    export.add_argument("--out", type=Path, help="folder (default: export in that of the run)")
    export.add_argument("--code", type=Path, default=Path(), help="where your own models lie (default: here)")
    export.set_defaults(handler=_export)


def _export(options: argparse.Namespace, console: Console) -> None:
    from efvfl.config import user_code
    from efvfl.runs import export
    from efvfl.runs.model_notes import ModelNotes

    user_code.look_in(options.code)
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    folder = folder_of(options.run)
    trained, notes = _open(folder), ModelNotes.load(folder)
    for path in export.export(trained, notes, options.out or folder / "export", say):
        say(f"wrote {path}")


def _open(folder: Path) -> TrainedRun:
    """Return a finished run in one process, or a participant's part of one."""
    from efvfl.network.training import trained_folder
    from efvfl.runs import run
    from efvfl.util import checkpoint

    if "about" in checkpoint.load(folder / run.CHECKPOINT):
        return trained_folder.open_trained(folder, None)
    return run.open_trained(folder)

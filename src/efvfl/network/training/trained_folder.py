"""A participant's folder of a finished run, as another run starts from it: its own parameters, and nobody else's."""

from __future__ import annotations

from pathlib import Path

from efvfl.errors import CheckpointError, ConfigError
from efvfl.network import handshake
from efvfl.network.training.autosave import CHECKPOINT, VERSION
from efvfl.network.training.participant_data import ENCODER
from efvfl.runs.trained import TrainedRun, module_state, read_encoder
from efvfl.util import checkpoint


def open_trained(folder: Path, name: str | None) -> TrainedRun:
    """Return what the folder of a party, or of the server (''), has of a finished run; None: of whoever it is."""
    path = folder / CHECKPOINT
    state = checkpoint.load(path)
    about = state.get("about")
    if "federation" in state:
        raise ConfigError(
            f"--from: expected a participant's folder of a run over a network, got {folder}, which `efvfl run` left "
            "with the models of all: start all without --from, or go on with `efvfl run`."
        )
    if not isinstance(about, dict) or state.get("version") != VERSION:
        raise CheckpointError(
            f"{path} was not left by `efvfl serve` or `efvfl join` of this version: give another folder."
        )
    name = about["name"] if name is None else name
    if about["name"] != name:
        wanted, found = name or "the server", about["name"] or "the server"
        raise ConfigError(f"--from: expected the folder of {wanted}, got {folder}, which is that of {found}.")
    memory = state["memory"] if name == "" else {name: state["memory"]}
    if not any(memory.values()):
        raise ConfigError(f"training in {folder} is not finished, or has not been told to be: finish it first.")
    shared, here = about["shared"], name or about["shared"]["label_holder"]
    encoder = folder / ENCODER
    return TrainedRun(
        folder,
        dict(zip(shared["parties"], shared["widths"], strict=True)),
        {here: module_state(state["party"]["block"])} if here else {},
        {} if name else module_state(state["server"]["block"]),
        {here: read_encoder(encoder)} if encoder.exists() else {},
        {
            party: _identity(about["digest"], about.get("rows_of", {}).get(party, about)["rows"], digest)
            for party, digest in memory.items()
            if digest
        },
    )


def _identity(settings: str, rows: object, memory: str) -> str:
    """Return what the server and a party of the same run compute alike: of settings, rows and what both remember."""
    return handshake.digest({"settings": settings, "rows": rows, "memory": memory})

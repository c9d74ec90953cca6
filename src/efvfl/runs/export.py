"""The models of a trained run as files that other programs read: safetensors, a program of torch.export, and ONNX.

Each party's model is a part of its own, and so is the fusion model: a folder has what its owner holds, nothing else.
"""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from efvfl.errors import CheckpointError
from efvfl.runs import model_card
from efvfl.runs.model_notes import ModelNotes
from efvfl.runs.trained import TrainedRun
from efvfl.util.extras import left_out, optional
from efvfl.util.files import write_atomically

log = logging.getLogger("efvfl")

PARTIES, FUSION = "parties", "fusion"  # the folders of what is written
CLOSE = 1e-5  # between ONNX and torch, for outputs of size 1
ROWS = 64  # random ones, that both are compared on


@dataclass(frozen=True)
class Part:
    """One model: what goes in, and what it is called outside."""

    name: str  # of the party; empty: the fusion model
    module: nn.Module
    inputs: Mapping[str, Tensor]  # some rows, by the names of the inputs
    output: str
    metadata: Mapping[str, str] = field(default_factory=dict)  # of the safetensors file
    any_subset: bool = False  # the last input of a fusion model says who is present

    @property
    def folder(self) -> Path:
        """Where it lies, in the folder of the whole."""
        return Path(PARTIES) / self.name if self.name else Path(FUSION)

    def arguments(self, rows: int) -> tuple[Any, ...]:
        """Return what the module is called with for so many rows: a fusion model takes a list, and who is present."""
        values = [x[:rows] for x in self.inputs.values()]
        if self.name:
            return (values[0],)
        return (values[:-1], values[-1]) if self.any_subset else (values,)

    def shapes(self, rows: Any) -> tuple[Any, ...]:
        """Return what of the arguments may vary."""
        each = [{0: rows} for _ in self.inputs]
        if self.name:
            return (each[0],)
        return (each[:-1], each[-1]) if self.any_subset else (each,)


def export(trained: TrainedRun, notes: ModelNotes, out: Path, say: Callable[[str], object] = log.info) -> list[Path]:
    """Write all models of a folder, their encoders, and a card; return the files.

    Without the packages of the extra `export`, which `say` is told, there is no ONNX file.
    """
    written: dict[Path, bytes] = {}
    differences: dict[str, float] = {}
    for part in _parts(trained, notes):
        program = _program(part)
        files = {"model.safetensors": to_safetensors(_state(part.module), dict(part.metadata))}
        files["model.pt2"] = _saved(program)
        with left_out(say):
            files["model.onnx"] = _onnx(program, part)
            differences[part.name] = _compared(files["model.onnx"], part)
        for name, content in files.items():
            written[out / part.folder / name] = content
    for name, encoder in trained.encoders.items():
        written[out / PARTIES / name / "encoder.json"] = encoder.to_json().encode()
    written[out / model_card.FILE] = model_card.text(trained, notes, differences).encode()
    for path, content in written.items():
        write_atomically(path, content)
    return list(written)


def _parts(trained: TrainedRun, notes: ModelNotes) -> Iterator[Part]:
    """Yield the models that are here."""
    for name, note in notes.locals.items():
        model, encoder = notes.local_model(name, trained), trained.encoders.get(name)
        metadata = {"party": name, "inputs": json.dumps(encoder.names if encoder else list(note.row))}
        yield Part(name, model, {"columns": note.example(ROWS)}, "representation", metadata)
    fusion = notes.fusion(trained)
    if fusion is not None and notes.head is not None:
        noise = torch.Generator().manual_seed(1)
        inputs = {name: torch.rand(ROWS, width, generator=noise) for name, width in notes.head.widths.items()}
        metadata = {"parties": json.dumps(list(inputs))}
        if notes.head.any_subset:
            inputs[notes.head.present] = (torch.rand(ROWS, len(inputs), generator=noise) < 0.7).float()
        yield Part("", fusion, inputs, "output", metadata, notes.head.any_subset)


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, each with memory of its own."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()}


def _program(part: Part) -> torch.export.ExportedProgram:
    """Return the module's computation for any number of rows."""
    rows = torch.export.Dim("rows")
    try:
        with _own_warnings():
            program = torch.export.export(part.module, part.arguments(ROWS), dynamic_shapes=part.shapes(rows))
    except Exception as error:  # whatever a module of somebody else's does to a tracer
        raise CheckpointError(
            f"the model of {part.name or FUSION} cannot be exported: torch.export does not understand it. {error}"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where the code lies on this machine is nobody's business
    return program


def _saved(program: torch.export.ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    with _own_warnings():
        torch.export.save(program, buffer)
    return buffer.getvalue()


def _onnx(program: torch.export.ExportedProgram, part: Part) -> bytes:
    _tell_nobody()
    with optional("export", "ONNX"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    names = {"input_names": list(part.inputs), "output_names": [part.output]}
    with _own_warnings():
        made = torch.onnx.export(program, dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
    assert made is not None, "with dynamo=True there is a program"
    content: bytes = made.model_proto.SerializeToString()
    return content


def _compared(content: bytes, part: Part) -> float:
    """Return how far onnxruntime is from torch, for one row and for many; refuse what computes something else."""
    worst = 0.0
    for rows in (1, ROWS):
        inputs = {name: x[:rows].numpy() for name, x in part.inputs.items()}
        with torch.no_grad():
            expected = part.module(*part.arguments(rows)).numpy()
        worst = max(worst, float(np.abs(run_onnx(content, inputs) - expected).max() / max(1.0, np.abs(expected).max())))
    if not worst <= CLOSE:
        raise CheckpointError(
            f"the ONNX file of {part.name or FUSION} would differ from the model by {worst:.1e}, more than {CLOSE:.0e}."
        )
    return worst


def run_onnx(model: bytes, inputs: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return the one output of an ONNX model."""
    _tell_nobody()
    with optional("export", "ONNX"):
        import onnxruntime
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    found: Sequence[np.ndarray[Any, Any]] = session.run(None, dict(inputs))
    return found[0]


def _tell_nobody() -> None:
    """Keep onnxruntime from reporting its use to its makers, which it begins when it is imported."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@contextmanager
def _own_warnings() -> Iterator[None]:
    """Keep to itself what torch says about torch: that it deprecates parts it uses, and lacks torchvision."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, message=r".*LeafSpec")
            yield
    finally:
        registration.setLevel(before)

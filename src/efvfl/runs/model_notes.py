"""What a folder keeps beside the parameters of a trained run, so that its models can be made again without the rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from efvfl.config.parsing import read
from efvfl.config.run_file import FusionConfig, ModelConfig, RunConfig
from efvfl.core.fusion import Fusion
from efvfl.core.plan import Plan
from efvfl.core.row_protection import RowClip
from efvfl.core.source_columns import OwnColumns
from efvfl.errors import DataError
from efvfl.runs.build import head_outputs, make_head, make_local_model, model_config
from efvfl.runs.trained import TrainedRun
from efvfl.util.files import write_atomically

FILE = "models.json"


@dataclass(frozen=True)
class Head:
    """The fusion model, at the label holder."""

    config: FusionConfig
    widths: dict[str, int]  # of the parties' representations, in their order
    outputs: int
    loss: str  # which says what the outputs mean
    classes: tuple[str, ...] = ()  # their names, where labels were texts
    any_subset: bool = False  # parties may lack rows: a further input says who is present

    @property
    def present(self) -> str:
        """The name of the input that says who is present: for each party 1 or 0, in their order."""
        return "present" if "present" not in self.widths else "present_parties"

    def fusion(self) -> Fusion:
        """Return the fusion model as it is before training."""
        head, widths = make_head(self.config, list(self.widths.values()), self.outputs), list(self.widths.values())
        return Fusion(head, self.config.combine, widths if self.any_subset else None, self.config.shows_presence)


@dataclass(frozen=True)
class Local:
    """A party's model, and a row of what goes into it."""

    config: ModelConfig
    row: tuple[int, ...]  # the shape of one row
    dtype: str = "float32"
    clip: float = 0.0  # of a row's representation, where the party protects its rows; 0: none

    def example(self, rows: int) -> Tensor:
        """Return so many rows of random numbers."""
        noise = 3 * torch.randn(rows, *self.row, generator=torch.Generator().manual_seed(0))
        return noise.to(getattr(torch, self.dtype))


@dataclass(frozen=True)
class ModelNotes:
    """The models that a folder has: all of a run in one process, or those of one participant."""

    locals: dict[str, Local]
    head: Head | None = None

    def save(self, folder: Path) -> None:
        """Write them down."""
        write_atomically(folder / FILE, (json.dumps(asdict(self), indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> ModelNotes:
        """Return what `save` wrote."""
        path = folder / FILE
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            found = {name: read(Local, entry, "model") for name, entry in table["locals"].items()}
            return cls(found, read(Head, table["head"], "fusion") if table["head"] else None)
        except FileNotFoundError as error:
            raise DataError(
                f"there is no {FILE} in {folder}: finish training there first, or if it was trained by an older "
                "version, give its last command once more (`efvfl run --resume`, `serve` or `join`)."
            ) from error
        except (OSError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise DataError(f"expected what a run wrote about its models in {path}: {error}.") from error

    def local_model(self, name: str, trained: TrainedRun) -> nn.Module:
        """Return a party's trained model, in evaluation mode, on the CPU."""
        note = self.locals[name]
        model = make_local_model(note.config, note.example(1)[0], trained.encoders.get(name))
        model.load_state_dict(dict(trained.models[name]))
        if note.clip:
            RowClip(note.clip).put_on(model, name)
        return model.eval()

    def fusion(self, trained: TrainedRun) -> Fusion | None:
        """Return the trained fusion model, if it is here, in evaluation mode."""
        if self.head is None:
            return None
        fusion = self.head.fusion()
        fusion.load_state_dict(dict(trained.fusion))
        return fusion.eval()


def local_note(config: RunConfig, name: str, columns: OwnColumns) -> Local:
    """Return what is to be kept of a party's model, which takes rows of these columns."""
    dtype, clip = str(columns.dtype).removeprefix("torch."), config.of(name).protect.clip
    return Local(model_config(config, name), tuple(columns.shape[1:]), dtype, clip)


def head_note(config: RunConfig, plan: Plan, classes: int, names: tuple[str, ...] = ()) -> Head:
    """Return what is to be kept of the fusion model of a plan; the loss is the plan's: a file may leave it open."""
    widths = dict(zip(plan.names, plan.widths, strict=True))
    outputs, any_subset = head_outputs(plan.loss.name, classes), plan.presence is not None
    return Head(config.fusion, widths, outputs, plan.loss.name, names, any_subset)

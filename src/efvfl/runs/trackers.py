"""Callbacks that write what training shows to an experiment tracker: TensorBoard, MLflow, or Weights & Biases.

Each writes to a folder on this machine unless it is told otherwise: the numbers of a run tell of labels, and leave the
label holder only if it says so.
"""

from __future__ import annotations

import abc
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

from efvfl.training.callbacks import Callback, TrainingStep
from efvfl.training.record import Record
from efvfl.util.extras import optional

Tracker = Literal["tensorboard", "mlflow", "wandb"]
Settings = Mapping[str, Any]  # of a run, such as `dataclasses.asdict(config)`; tables in it become names with dots


class _Tracking(Callback, abc.ABC):
    """A callback that writes numbers by name and step, and is closed when a run ends."""

    def on_step(self, step: TrainingStep) -> None:
        """Write the loss of a step."""
        if math.isfinite(step.loss):
            self.write({"step/loss": step.loss}, step.number)

    def on_epoch(self, record: Record) -> None:
        """Write what a record holds."""
        self.write(numbers(record), record.step)
        self.flush()

    @abc.abstractmethod
    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers by their names."""

    def flush(self) -> None:
        """Put on disk what was written so far."""

    @abc.abstractmethod
    def close(self) -> None:
        """End; nothing can be written afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class TensorBoardLogger(_Tracking):
    """Writes event files for `tensorboard --logdir FOLDER`.

    >>> def train_and_watch(federation):
    ...     with TensorBoardLogger("runs/first") as logger:
    ...         federation.fit(20, callbacks=[logger])
    """

    def __init__(self, folder: Path | str, settings: Settings | None = None) -> None:
        """Write to a folder; the settings become a text."""
        with optional("tensorboard", "TensorBoardLogger"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(folder))
        if settings:
            lines = (f"    {name} = {value}" for name, value in flat(settings).items())
            self._writer.add_text("settings", "\n".join(lines))

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write a scalar for each number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Put the events on disk."""
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class MLflowLogger(_Tracking):
    """Writes a run of MLflow to `mlflow.db` in a folder, or to the tracking server of a URI.

    `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db` shows it.

    >>> def train_and_track(federation):
    ...     with MLflowLogger("runs/first", experiment="credit") as logger:
    ...         federation.fit(20, callbacks=[logger])
    """

    BATCH = 1000  # numbers in a request, of which MLflow takes no more

    def __init__(
        self, where: Path | str, experiment: str = "efvfl", settings: Settings | None = None, name: str | None = None
    ) -> None:
        """Start a run of an experiment; the settings become its parameters. `where` is a folder, or has `://` in it."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would call its makers, read when it is imported
        with optional("mlflow", "MLflowLogger"):
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        self._metric = Metric
        self._waiting: list[Any] = []
        self._client = MlflowClient(tracking_uri=_mlflow_uri(where))
        known = self._client.get_experiment_by_name(experiment)
        identity = known.experiment_id if known else self._client.create_experiment(experiment)
        self.run_id: str = self._client.create_run(identity, run_name=name).info.run_id
        params = [Param(key, str(value)) for key, value in flat(settings or {}).items()]
        for start in range(0, len(params), 100):
            self._client.log_batch(self.run_id, params=params[start : start + 100])

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Keep numbers until there are enough for a request: one each would be slow."""
        now = time.time_ns() // 1_000_000
        self._waiting += [self._metric(name, value, now, step) for name, value in values.items()]
        if len(self._waiting) >= self.BATCH:
            self.flush()

    def flush(self) -> None:
        """Hand over what waits."""
        while self._waiting:
            self._client.log_batch(self.run_id, metrics=self._waiting[: self.BATCH])
            del self._waiting[: self.BATCH]

    def close(self) -> None:
        """End the run."""
        self.flush()
        self._client.set_terminated(self.run_id)


class WandbLogger(_Tracking):
    """Writes a run of Weights & Biases to a folder; `wandb sync` sends it later, `mode="online"` at once.

    >>> def train_and_log(federation):
    ...     with WandbLogger("runs/first", project="credit") as logger:
    ...         federation.fit(20, callbacks=[logger])
    """

    def __init__(
        self,
        folder: Path | str,
        project: str = "efvfl",
        settings: Settings | None = None,
        name: str | None = None,
        mode: Literal["offline", "online"] = "offline",
    ) -> None:
        """Start a run of a project; the settings become its configuration."""
        with optional("wandb", "WandbLogger"):
            import wandb
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=project,
            name=name,
            dir=str(folder),
            mode=mode,
            config=flat(settings or {}),
            # No lines of the terminal, code, commits or loads of the machine: they tell more than was asked for.
            settings=wandb.Settings(
                console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True, save_code=False, silent=True
            ),
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers, those of the same step together."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


TRACKERS: dict[Tracker, Callable[[Path, Settings], _Tracking]] = {
    "tensorboard": lambda folder, settings: TensorBoardLogger(folder, settings),
    "mlflow": lambda folder, settings: MLflowLogger(folder, settings=settings),
    "wandb": lambda folder, settings: WandbLogger(folder, settings=settings),
}


def open_trackers(names: Iterable[Tracker], folder: Path, settings: Settings, stack: ExitStack) -> list[Callback]:
    """Return a callback for each name, which writes to a folder of that name; they are closed with the stack."""
    return [stack.enter_context(TRACKERS[name](folder / name, settings)) for name in dict.fromkeys(names)]


def numbers(record: Record) -> dict[str, float]:
    """Return what trackers show of a record, by name; what it could not know is left out.

    >>> numbers(Record(epoch=2, step=8, surrogate_loss=0.5, test={"accuracy": 0.9}, bytes_up=10))
    {'epoch': 2.0, 'epoch/loss': 0.5, 'test/accuracy': 0.9, 'bytes/up': 10.0}
    """
    found = {"epoch": record.epoch, "epoch/loss": record.surrogate_loss}
    for split in ("train", "validation", "test"):
        found |= {f"{split}/{name}": value for name, value in getattr(record, split).items()}
    found |= {"gradient": record.gradient, "distortion": record.distortion, "seconds": record.seconds}
    found |= {"bytes/up": record.bytes_up, "bytes/down": record.bytes_down}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def flat(settings: Settings, before: str = "") -> dict[str, Any]:
    """Return settings by names with dots, without private seeds.

    >>> flat({"data": {"name": "digits", "private_seed": 7}, "epochs": 3})
    {'data.name': 'digits', 'epochs': 3}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "private_seed":
            continue
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{key}.")
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            found |= flat({str(i): item for i, item in enumerate(value)}, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found


def _mlflow_uri(where: Path | str) -> str:
    """Return a URI as it is, or that of a database in a folder, which is made."""
    if "://" in str(where):
        return str(where)
    Path(where).mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{Path(where).resolve() / 'mlflow.db'}"

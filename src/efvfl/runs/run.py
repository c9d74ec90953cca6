"""A run from its first step to its last, with everything it leaves on disk. One loop for all runs in one process.

>>> from efvfl import train                      # doctest: +SKIP
>>> records = train("run.toml", "runs/run")      # doctest: +SKIP
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from efvfl.config import run_file, user_code
from efvfl.config.run_file import RunConfig
from efvfl.core.channel import codec_seconds
from efvfl.data import Dataset
from efvfl.errors import CheckpointError, ConfigError
from efvfl.runs import run_folder, run_outputs
from efvfl.runs.alone import leave_alone, no_longer_than
from efvfl.runs.build import load_data, make_federation, watching
from efvfl.runs.status_file import StatusFile, kept
from efvfl.runs.svfl_bytes import bytes_beside
from efvfl.runs.trained import TrainedRun, module_state, read_encoder
from efvfl.training.arrivals import load_arrivals
from efvfl.training.callbacks import Callback
from efvfl.training.federation import Federation
from efvfl.training.options import Evaluation
from efvfl.training.record import Record
from efvfl.util import checkpoint, nested
from efvfl.util.files import write_atomically
from efvfl.util.finish_request import FinishRequest

if TYPE_CHECKING:
    from efvfl.data.tables.encode import Encoder

log = logging.getLogger("efvfl")

CHECKPOINT = "checkpoint.safetensors"  # in a run's folder
VERSION = 2  # of the checkpoint's layout
SAVE_SECONDS = 60.0  # a checkpoint is at most so old, and one step
STARTED_FROM = "started_from.json"  # in a run's folder: which trained run it started from

# Sees a federation before it goes on, and hands its records through: a progress bar.
Watch = Callable[[Federation, Iterable[Record]], Iterable[Record]]


@dataclass(frozen=True)
class RunCheckpoint:
    """One file with everything a run needs to go on: its settings, its federation and its records."""

    path: Path
    settings: dict[str, Any]  # what the file must have been made with
    keep: bool = True  # the one before it, too

    def exists(self) -> bool:
        """Whether there is something to go on from."""
        return checkpoint.exists(self.path)

    def save(self, federation: Federation, records: Sequence[Record]) -> None:
        """Write where the run stands."""
        lines = [record.to_json() for record in records]
        state = {"version": VERSION, "config": self.settings, "federation": federation.state_dict(), "records": lines}
        checkpoint.save(self.path, state, keep=self.keep)

    def load(self, federation: Federation) -> list[Record]:
        """Put a federation where the saved one was, and return the records so far.

        If the file is damaged, that is where the one before it was: a run in one process loses nothing but time by it.
        """
        state = checkpoint.load_kept(self.path)
        _check_layout(self.path, state)
        if changed := nested.changes(state["config"], self.settings):
            raise ConfigError(
                f"{self.path} was made with other settings ({'; '.join(changed)}): restore them, or start anew in "
                "another folder."
            )
        federation.load_state_dict(state["federation"])
        return [Record.from_json(line) for line in state["records"]]


def _check_layout(path: Path, state: Mapping[str, Any]) -> None:
    if not {"config", "federation", "records"} <= set(state):
        raise CheckpointError(f"{path} was not left by `efvfl run`: name another folder, or load it from Python.")
    if state.get("version") != VERSION:
        raise CheckpointError(
            f"{path} was left by another version of efvfl: go on with that one, or start anew in an empty folder."
        )


def open_trained(folder: Path) -> TrainedRun:
    """Return the parameters of a finished run in one process, for another one to start from."""
    path = folder / CHECKPOINT
    state = checkpoint.load(path)
    _check_layout(path, state)
    settings = run_folder.load_settings(folder)
    if settings is None or not settings.complete:
        raise ConfigError(f"the run in {folder} is not finished: give --resume to go on with it first.")
    parties = state["federation"]["parties"]
    models = {name: module_state(party["block"]) for name, party in parties.items()}
    fusion = module_state(state["federation"]["server"]["block"])
    return TrainedRun(folder, {name: settings.widths[name] for name in parties}, models, fusion, _encoders(folder))


def reopen(folder: Path, base: Path) -> tuple[RunConfig, Federation, Callable[[], object]]:
    """Return a run in one process as it was before training: settings, federation, and what puts it at its end.

    The rows are loaded again; relative paths of theirs start at `base`.
    """
    path = folder / CHECKPOINT
    state = checkpoint.load_kept(path)
    _check_layout(path, state)
    user_code.look_in(base)
    settings = run_folder.load_settings(folder)
    later = {name: settings.config[name] for name in ("epochs", "patience")} if settings else {}
    table = {name: value for name, value in (state["config"] | later).items() if name != "rows"}
    config = run_file.read(RunConfig, nested.without_none(table), str(path))
    data = load_data(config, base, _encoders(folder))
    federation = make_federation(config, data)
    return config, federation, lambda: federation.load_state_dict(state["federation"])


def _encoders(folder: Path) -> dict[str, Encoder]:
    """Return the encoders that a run has left, by party; none if it had no tables."""
    return {path.stem: read_encoder(path) for path in sorted((folder / run_outputs.ENCODERS).glob("*.json"))}


def _note_start(folder: Path, data: Dataset, start: TrainedRun | None) -> None:
    """Keep what a warm start needs to be resumed: known columns must not be learnt from the rows of today then."""
    note = folder / STARTED_FROM
    if start is None:
        if note.exists():  # of a run that was killed before its first checkpoint
            note.unlink()
        return
    run_outputs.save_encoders(folder, data)
    write_atomically(note, (json.dumps({"folder": str(start.folder)}) + "\n").encode())


def train(
    config: RunConfig | Path | str,
    folder: Path | str,
    resume: bool = False,
    *,
    start_from: Path | str | None = None,
    base: Path | str | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] | None = None,
    alone: bool = False,
    callbacks: Sequence[Callback] = (),
    replay: Path | str | None = None,
) -> list[Record]:
    """Train what a run file says, and return the records.

    - `config`: the settings, or the path of a TOML file that has them.
    - `folder`: gets a checkpoint and `records.jsonl` after every record, and in the end what `efvfl report` reads.
    - `resume`: go on from the checkpoint in the folder, for as many epochs as the settings say now.
    - `start_from`: the folder of a finished run whose parameters this one starts from, as far as they fit
      ([how](docs/tables.md)); one that is resumed has started from it already.
    - `base`: where relative paths in the settings start, and where your own modules lie: beside the file, or here.
    - `watch`: gets the federation and an iterable of records, and hands the records on: for a progress bar.
    - `say`: gets a sentence about each table, how many of its rows take part; left out: the log `efvfl` has it.
    - `alone`: afterwards train the label holder's own columns alone, if it has any, for the report to compare with.
    - `callbacks`: are told of every step and of every record ([how](docs/python.md#callbacks-and-experiment-trackers)).
    - `replay`: the folder of a run with asynchronous parties, or its `arrivals.jsonl`: every step takes the reports
      that it took there ([how](docs/asynchronous.md)).

    A run that was killed and is resumed gives the same records, bit for bit, as one that was not.

    >>> import tempfile
    >>> from efvfl.config.run_file import DataConfig
    >>> config = RunConfig(epochs=1, data=DataConfig(subset=100))  # of the digits that come with the package
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = train(config, folder)
    >>> records[0].epoch
    1
    """
    if not isinstance(config, RunConfig):
        base = Path(config).parent if base is None else base
        config = run_file.load(Path(config))
    folder, base = Path(folder), Path(base or ".")
    user_code.look_in(base)
    if config.threads:
        torch.set_num_threads(config.threads)
    start = replace(open_trained(Path(start_from)), teller=say) if start_from and not resume else None
    warm = resume and (folder / STARTED_FROM).exists()
    data = load_data(config, base, start.encoders if start else _encoders(folder) if warm else None)
    _say_rows(data, say)
    if not config.loss:
        (say or log.info)(f"The loss follows from the label: {data.loss}.")
    arrivals = load_arrivals(Path(replay)) if replay else ()
    federation = make_federation(config, data, folder, start, arrivals)
    saved = RunCheckpoint(folder / CHECKPOINT, _settings(config, federation))
    config = replace(config, loss=config.loss or data.loss)
    if not resume and saved.exists():
        raise ConfigError(
            f"{saved.path} is there already: give --resume to go on from it (resume=True in Python), or another folder."
        )
    records = saved.load(federation) if resume else []
    if not resume:
        _note_start(folder, data, start)

    def save(records: Sequence[Record]) -> None:
        saved.save(federation, records)
        run_folder.save_records(folder, records)
        if config.agreement.asynchronous.on:
            federation.driver.arrivals.save(folder)

    if federation.epoch < config.epochs:
        run_outputs.save_settings(federation, config, data, folder, complete=False)
    _say_spending(federation, config, say)
    request = FinishRequest(folder, fresh=not resume)
    federation.driver.asked = request.taken
    with kept(StatusFile(folder, "run", folder.name, lambda: watched_state(federation, config, folder))):
        train_on(federation, config, records, save, watch, callbacks=callbacks)
        request.take()  # one that came too late
        if not records:
            raise ConfigError(f"epochs = {config.epochs} leaves nothing to train.")
        run_outputs.leave_for_report(federation, config, data, folder)
        if alone and config.label_holder:
            leave_alone(folder, no_longer_than(records, config), run_outputs.own_rows(config, data), request.taken)
    return records


def watched_state(federation: Federation, config: RunConfig, folder: Path) -> dict[str, Any]:
    """Return where a run stands, for who watches it."""
    server, driver = federation.server, federation.driver
    of_parties = (channel for party in federation.parties.values() for channel in party.every_channel())
    codec = codec_seconds((*server.every_channel(), *of_parties))
    return {
        "step": server.step_number,
        "steps": config.epochs * server.batches.per_epoch,
        "epochs": config.epochs,
        "loss": server.surrogate_loss,
        "seconds": {"compute": max(0.0, driver.seconds - codec), "codec": codec},
        "here": list(federation.parties),
    } | bytes_beside(run_folder.load_settings(folder), federation.ledger, server.step_number)


def _say_rows(data: Dataset, say: Callable[[str], None] | None) -> None:
    """Say how many rows of every table take part; a log has it as a warning where some are left out."""
    for name, rows in data.participation.items():
        text = f"{name}: {rows.text()}"
        if say:
            say(text)
        else:
            log.log(logging.INFO if rows.complete else logging.WARNING, "%s", text)


def _say_spending(federation: Federation, config: RunConfig, say: Callable[[str], None] | None) -> None:
    """Say what the run will spend on what is protected."""
    for text in federation.promises(config.epochs):
        (say or log.info)(text)


def train_on(
    federation: Federation,
    config: RunConfig,
    records: list[Record],
    save: Callable[[Sequence[Record]], None],
    watch: Watch | None = None,
    every: float = 0.0,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Train to the last epoch and add to the records; `save` them after each, if so many seconds have passed.

    Where a record takes longer, it is also saved between two steps, after SAVE_SECONDS at most.
    """
    saved = time.monotonic()

    def save_after(seconds: float) -> None:
        nonlocal saved
        if time.monotonic() - saved >= seconds:
            save(records)
            saved = time.monotonic()

    def between_steps() -> None:
        if federation.driver.between_steps:
            save_after(max(every, SAVE_SECONDS))

    federation.driver.pause = between_steps
    following: Iterable[Record] = federation.train(
        config.epochs, watching(config).every, config.observe_gradient, callbacks, config.note_every
    )
    for record in watch(federation, following) if watch else following:
        records.append(record)
        save_after(every)


def _settings(config: RunConfig, federation: Federation) -> dict[str, Any]:
    """Return what must not change between two parts of a run: more epochs, or memories elsewhere, are no harm.

    Neither is more patience: then a run that has stopped goes on.
    """
    features = federation.splits["train"].features
    rows = {name: list(x.shape) for name, x in zip(federation.parties, features, strict=True)}
    evaluation: Evaluation = "compressed" if federation.server.evaluation else "exact"
    kept = replace(config, epochs=0, memory="ram", patience=None)
    return asdict(kept) | {"evaluation": evaluation, "rows": rows, "loss": federation.server.loss.name}

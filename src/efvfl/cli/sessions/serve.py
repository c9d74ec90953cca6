"""`efvfl serve`, `predict` and `serve-predictions`: the label holder's process."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from efvfl.cli.sessions import setup
from efvfl.config.run_file import RunConfig
from efvfl.core.channel import codec_seconds
from efvfl.core.protection import Protection
from efvfl.errors import ConfigError, IncompleteError
from efvfl.network.identity import certificates
from efvfl.network.identity.certificates import Credentials
from efvfl.network.links.connections import Hooks, ServerTimeouts
from efvfl.network.ops.audit_log import AuditLog
from efvfl.network.ops.session import SessionOptions, stop_on_signal, tick
from efvfl.network.ops.status import StatusLine
from efvfl.network.predict import service
from efvfl.network.predict.prediction import prediction_columns
from efvfl.network.training import build, participant_data
from efvfl.network.training.alone import train_alone
from efvfl.network.training.column_inquiry import ColumnFindings, inquire
from efvfl.network.training.joint_prediction import PredictedRows
from efvfl.network.training.panel import PartyPanel
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.training.server_process import ServerProcess
from efvfl.network.workers import worker_group
from efvfl.runs import metrics
from efvfl.runs.model_notes import ModelNotes, head_note, local_note
from efvfl.runs.run_folder import ALONE, load_outputs, load_settings
from efvfl.runs.status_file import StatusFile
from efvfl.runs.svfl_bytes import bytes_beside
from efvfl.runs.trackers import Tracker, open_trackers
from efvfl.training.stopping import ending
from efvfl.util.extras import optional
from efvfl.util.files import write_atomically
from efvfl.util.finish_request import finish_on_signal

if TYPE_CHECKING:
    from efvfl.network.ops.metrics import MetricsEndpoint

log = logging.getLogger("efvfl")


@dataclass(frozen=True)
class PredictionFile:
    """Which rows to predict, by a file of ids or by a split, the file that the predictions go to, and by whom."""

    ids: Path | None
    split: str | None
    out: Path
    required: Sequence[str] = ()  # parties without which a row is not predicted
    wait: float | None = None  # seconds for a party that is missing; None: the usual time

    def read_ids(self, data: ParticipantData) -> list[str]:
        """Return the ids to predict, or refuse options that make no sense."""
        if (self.ids is None) == (self.split is None):
            raise ConfigError("give either --ids FILE, with one id a line, or --split validation or test.")
        if self.out.suffix not in (".csv", ".parquet"):
            raise ConfigError(f"expected a name that ends in .csv or .parquet, got --out {self.out}.")
        if self.ids is None:
            of_split = data.ids.get(self.split or "")
            if of_split is None:
                raise ConfigError(f"there are no {self.split} rows.")
            return of_split
        try:
            ids = [line.strip() for line in self.ids.read_text(encoding="utf-8").splitlines() if line.strip()]
        except OSError as error:
            raise ConfigError(f"cannot read {self.ids}: {error}") from error
        if not ids:
            raise ConfigError(f"expected one id a line, but {self.ids} is empty.")
        return ids

    def spelt(self, ids: list[str], data: ParticipantData) -> list[str]:
        """Return ids as the reader knows them: those of a file as they are, those of a split as in the table."""
        return [data.spelling.get(i, i) for i in ids] if self.split else ids


def train(
    options: SessionOptions,
    config: RunConfig,
    console: Console,
    stack: ExitStack,
    alone: bool = False,
    trackers: Sequence[Tracker] = (),
) -> None:
    """Train with the parties that join; what is opened is closed with the stack.

    `alone`: when they are told that it is over, train the own columns alone, for the report to compare with.
    """
    if not config.label_holder:
        worker_group.refuse("serve")
    if not worker_group.rank():
        setup.lock(options.folder_of(certificates.SERVER), stack)
    data = _load_data(options, config)
    if worker_group.rank():
        setup.work(config, data, config.label_holder)
        return
    session = _open(options, config, data, console, stack)
    session.listen(options, stack)
    process = session.process
    if not process.finished:
        (process.folder / ALONE).unlink(missing_ok=True)  # of fewer epochs
    process.driver.callbacks = open_trackers(trackers, process.folder, asdict(config), stack)
    with stop_on_signal(process.requests.stopping), finish_on_signal(process.folder):
        _train(process, session.status)
        _finish(process)
        if alone and config.label_holder:
            train_alone(process)


def predict(
    options: SessionOptions, wanted: PredictionFile, config: RunConfig, console: Console, stack: ExitStack
) -> None:
    """Predict rows with the parties that join, and write a file; what is opened is closed with the stack."""
    setup.lock(options.folder_of(certificates.SERVER), stack)
    data = _load_data(options, config)
    ids = wanted.read_ids(data)
    session = _open(options, config, data, console, stack, trained=True)
    process = session.process
    panel = PartyPanel.convene(process.plan, process.requests.presence, wanted.required, wanted.wait)
    session.listen(options, stack)
    with stop_on_signal(process.requests.stopping):
        # By id also for a split: the service asks so too, and both give a row the same prediction to the last bit.
        normal = ids if wanted.split else process.in_one_form(ids)
        found = process.predict(normal, panel)
        shown = wanted.spelt(ids, data)
        if len(found.output):
            write_predictions(wanted.out, shown, found, process.plan.loss.name, data.class_names)
        count = len(found.output)
        session.status.say(
            f"Predictions of {count:,} of {len(ids):,} rows: {wanted.out}{_rest_on(found, data.names)}",
            predicted=count,
            asked=len(ids),
        )
        _finish(process)
    if count < len(ids):
        _say_lacking(found, shown, wanted.out)


def _rest_on(found: PredictedRows, names: Sequence[str]) -> str:
    """Say how many predictions rest on the columns of each party, if not all do on those of all."""
    ok = [outcome for outcome in found.outcomes if outcome.ok]
    counts = {name: sum(name in outcome.parties for outcome in ok) for name in names}
    if all(count == len(ok) for count in counts.values()):
        return ""
    return f". On columns of {', '.join(f'{name}: {count:,} of them' for name, count in counts.items())}"


def _say_lacking(found: PredictedRows, shown: Sequence[str], out: Path) -> None:
    """End with an error of its own after the predictions are written."""
    lost = [(row, outcome) for row, outcome in zip(shown, found.outcomes, strict=True) if not outcome.ok]
    where = f"{out} has no prediction for them" if len(found.output) else "nothing was written"
    raise IncompleteError(
        f"{len(lost):,} of {len(shown):,} rows were not predicted, such as {lost[0][0]!r:.80} ({lost[0][1].text()}): "
        f"{where}. The parties' own logs say how many they lack."
    )


def value_columns(options: SessionOptions, config: RunConfig, console: Console, stack: ExitStack) -> ColumnFindings:
    """See with the parties that join and agreed which columns matter; what is opened is closed with the stack."""
    setup.lock(options.folder_of(certificates.SERVER), stack)
    session = _open(options, config, _load_data(options, config), console, stack, trained=True)
    session.listen(options, stack)
    with stop_on_signal(session.process.requests.stopping):
        found = inquire(session.process)
        _finish(session.process)
    return found


def serve_predictions(
    options: SessionOptions,
    wanted: service.ServiceOptions,
    config: RunConfig,
    console: Console,
    stack: ExitStack,
) -> None:
    """Predict rows for clients until a signal stops the service; what is opened is closed with the stack."""
    setup.lock(options.folder_of(certificates.SERVER), stack)
    session = _open(options, config, _load_data(options, config), console, stack, trained=True)
    endpoint = service.prepare(wanted, session.process.folder, stack)
    session.listen(options, stack)
    service.run(endpoint, session.process, session.status, session.metrics)


def write_predictions(path: Path, ids: list[str], found: PredictedRows, loss: str, names: Sequence[str] = ()) -> None:
    """Write ids, predictions, whose columns they rest on, and statuses as CSV or Parquet; `names` are the classes."""
    with optional("tables", "a file of predictions"):
        import polars

    columns = prediction_columns(found.output, loss, names)
    if "probabilities" in columns:  # one column for each class
        shares = list(zip(*columns.pop("probabilities"), strict=True))
        columns |= {f"probability_{name}": list(p) for name, p in zip(names or range(len(shares)), shares, strict=True)}
    place = {row: n for n, row in enumerate(row for row, outcome in enumerate(found.outcomes) if outcome.ok)}
    predicted = {
        name: [values[place[row]] if row in place else None for row in range(len(ids))]
        for name, values in columns.items()
    }
    parties = [", ".join(outcome.parties) if outcome.ok else None for outcome in found.outcomes]
    statuses = [outcome.text() for outcome in found.outcomes]
    buffer = io.BytesIO()
    frame = polars.DataFrame({"id": ids, **predicted, "parties": parties, "status": statuses})
    frame.write_csv(buffer) if path.suffix == ".csv" else frame.write_parquet(buffer)
    write_atomically(path, buffer.getvalue())


@dataclass(frozen=True)
class _Session:
    process: ServerProcess
    audit: AuditLog
    status: StatusLine
    credentials: Credentials | None
    metrics: MetricsEndpoint | None

    def listen(self, options: SessionOptions, stack: ExitStack) -> None:
        """Open the port for the parties."""
        requests, config = self.process.requests, self.process.config
        limit = build.frame_limit(self.process.plan)
        port = setup.open_port(options, config, self.credentials, limit, requests, self.audit, stack)
        self.status.say(setup.listening_text(options, config, port, requests), port=port)


def _load_data(options: SessionOptions, config: RunConfig) -> ParticipantData:
    folder = options.folder_of(certificates.SERVER)
    if worker_group.rank() and config.agreement.labels == "private":
        config = replace(config, protect=Protection())  # it needs columns alone, and one process draws the labels
    return participant_data.load(config, options.file.parent, "", folder, setup.open_start(options, "", folder))


def _open(
    options: SessionOptions,
    config: RunConfig,
    data: ParticipantData,
    console: Console,
    stack: ExitStack,
    trained: bool = False,
) -> _Session:
    """Continue from what is in the folder, which is locked; `trained` refuses a training that is not finished."""
    folder, network = options.folder_of(certificates.SERVER), config.network
    credentials = options.credentials_of(certificates.SERVER)
    setup.warn_without_private_seed(config)
    if config.protect.on and config.private_seed is None:
        raise ConfigError("[protect] is on, but its noise would follow from the shared seed: set private_seed.")
    audit = setup.open_audit_log(folder, stack)
    timeouts = ServerTimeouts(absent=network.absent_seconds, stale=network.stale_seconds, silent=network.silent_seconds)
    status = StatusLine(options.status, console, lambda: _state(process, audit))
    stack.callback(status.close)
    metrics = setup.open_metrics(options, lambda: _state(process, audit), status, stack)
    file = StatusFile(folder, "serve", certificates.SERVER, lambda: _watched(process, audit))
    shows: list[Callable[[], None]] = [status] if trained else [status, file]  # what training left is not about this
    shows += [metrics] if metrics else []
    hooks = Hooks(audit.record, lambda: tick(shows, audit, process.workers))
    process = ServerProcess(config, data, folder, timeouts, hooks)
    config, here = replace(config, loss=process.plan.loss.name), config.label_holder
    own = {here: local_note(config, here, data.columns["train"])} if here else {}
    head = head_note(config, process.plan, data.classes, data.class_names)
    ModelNotes(own, head).save(folder)
    if not trained:
        file.watch()
        stack.push(file.leave)
    if process.workers:
        stack.push(process.workers.leave)
    stack.callback(process.message_log.close)
    if trained:
        process.requests.told.clear()  # parties that take part now must be told when this is over, too
        if not process.finished:
            raise ConfigError(f"training in {folder} is not finished: run `efvfl serve {options.file}` first.")
    return _Session(process, audit, status, credentials, metrics)


def _state(process: ServerProcess, audit: AuditLog) -> dict[str, Any]:
    """Return what a status line shows."""
    server = process.server
    codec = codec_seconds(server.every_channel())
    return {
        "step": server.step_number,
        "steps": process.steps,
        "loss": server.surrogate_loss if math.isfinite(server.surrogate_loss) else None,
        "bytes_out": audit.totals["out"],
        "bytes_in": audit.totals["in"],
        "compute": max(0.0, process.computing + process.requests.handled - codec),
        "codec": codec,
        "waiting": process.requests.waited,
        "missing": process.requests.presence.missing_for(),
        "parties": list(process.requests.names),
        "epoch": process.driver.epoch,
        "scores": process.scores,
    }


def _watched(process: ServerProcess, audit: AuditLog) -> dict[str, Any]:
    """Return what a dashboard shows of the label holder."""
    state, missing = _state(process, audit), process.requests.presence.missing_for()
    seconds = {key: state.pop(key) for key in ("compute", "codec", "waiting")}
    here = [name for name in process.data.names if name not in missing]
    sent = bytes_beside(load_settings(process.folder), process.ledger, process.server.step_number)
    return state | {"seconds": seconds, "here": here, "epochs": process.config.epochs} | sent


def _train(process: ServerProcess, status: StatusLine) -> None:
    if process.promise:
        status.say(process.promise)
    for record in process.train():
        split, scores = ("validation", record.validation) if record.validation else ("test", record.test)
        parts = [f"loss on surrogates {record.surrogate_loss:.4f}"]
        parts += [f"{split} {name} {value:.4f}" for name, value in scores.items()]
        parts += [f"{sum(b - a + 1 for a, b in spans)} steps without {name}" for name, spans in record.absent.items()]
        status.say(f"epoch {record.epoch}: {', '.join(parts)}")
    if process.records and (ended := ending(process.records[-1], process.config.epochs)):
        status.say(ended)
    scores_of = {
        split: metrics.of_loss(process.plan.loss.name, o.output, o.labels)
        for split, o in load_outputs(process.folder).items()
    }
    for split, values in scores_of.items():
        status.say(f"{split}: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}", **{split: values})
    status.say(f"Trained. Records: {process.folder / 'records.jsonl'}. A page about it: efvfl report {process.folder}")


def _finish(process: ServerProcess) -> None:
    for name in sorted(process.finish()):
        log.warning("%s could not be told that the run has ended: start `efvfl serve` again when it is back.", name)

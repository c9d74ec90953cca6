"""The runs of a sweep, in parallel over processes or a Ray cluster. A finished run is a file and is never repeated.

An interrupted run continues from its last checkpoint, with the same result as an uninterrupted one: kill -9 costs at
most the time since that checkpoint.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from efvfl.config import user_code
from efvfl.errors import CheckpointError, CompressionError, ConfigError, DataError
from efvfl.experiments.experiment_file import Job
from efvfl.experiments.results import Result, unfinished
from efvfl.training.step_notes import joined
from efvfl.util.extras import optional
from efvfl.util.versions import versions

if TYPE_CHECKING:
    from efvfl.training.federation import Federation
    from efvfl.training.record import Record

Engine = Literal["processes", "ray"]
CHECKPOINT_SECONDS = 60.0
SHOWN_SECONDS = 2.0  # between two writes of records for who watches

# The fields of a record that become columns of a result; only the last record's ledger is stored.
_NUMBERS = (
    "epoch",
    "step",
    "surrogate_loss",
    "gradient",
    "distortion",
    "bytes_up",
    "bytes_down",
    "paper_bits",
    "seconds",
)


def run_job(job: Job, folder: Path, progress: Callable[[int], None] | None = None) -> None:
    """Train one run, from its checkpoint if there is one, and write its result."""
    import torch

    from efvfl.runs.build import load_data, make_federation
    from efvfl.runs.run import RunCheckpoint, train_on, watched_state
    from efvfl.runs.run_folder import save_records
    from efvfl.runs.status_file import StatusFile, kept
    from efvfl.util.files import write_atomically

    target, part = folder / job.file, folder / ".parts" / f"{job.key}.safetensors"
    if target.exists():
        part.unlink(missing_ok=True)  # left by a kill after the result was written
        return
    torch.set_num_threads(job.config.threads or 1)
    if job.folder:
        user_code.look_in(job.folder)
    federation = make_federation(job.config, load_data(job.config, job.folder or Path()))
    saved = RunCheckpoint(part, {"key": job.key}, keep=False)
    records: list[Record] = []
    if part.exists():
        with contextlib.suppress(CheckpointError):  # an unreadable checkpoint only costs time
            records = saved.load(federation)

    work, shown = part.with_suffix(""), [0.0]  # for who watches: a folder as that of a run

    def watch(federation: Federation, following: Iterable[Record]) -> Iterator[Record]:
        for record in following:
            if progress:
                progress(record.epoch)
            if time.monotonic() - shown[0] > SHOWN_SECONDS:
                shown[0] = time.monotonic()
                save_records(work, [*records, record], flush=False)
            yield record

    name = f"{job.cell}, seed {job.config.seed}"
    with kept(StatusFile(work, "reproduce", name, lambda: watched_state(federation, job.config, work))):
        train_on(federation, job.config, records, partial(saved.save, federation), watch, CHECKPOINT_SECONDS)
    write_atomically(target, _result(job, records).to_json().encode(), public=True)
    part.unlink(missing_ok=True)
    shutil.rmtree(work, ignore_errors=True)
    for leftover in part.parent.glob(f".{part.name}.*.part"):  # of a process that was killed while writing
        leftover.unlink(missing_ok=True)


def _result(job: Job, records: Sequence[Any]) -> Result:
    columns: dict[str, list[float]] = {name: [getattr(r, name) for r in records] for name in _NUMBERS}
    for split in ("train", "validation", "test"):
        for metric in getattr(records[-1], split):
            columns[f"{split}_{metric}"] = [getattr(r, split).get(metric, float("nan")) for r in records]
    steps = joined([record.steps for record in records])
    return Result(job.cell, asdict(job.config), columns, records[-1].ledger, versions(), steps)


def check(jobs: Sequence[Job]) -> None:
    """Build every cell once, so that a mistake in the last one is found before the first has trained for hours."""
    from efvfl.runs.build import load_data, make_federation

    first: dict[str, Job] = {}
    for job in jobs:
        first.setdefault(job.cell, job)
    loaded: tuple[Any, Any] = (None, None)
    for job in first.values():
        config, folder = job.config, job.folder
        if folder:
            user_code.look_in(folder)
        rows = (config.seed, config.data, config.party, config.agreement, config.label_holder, config.loss)
        try:
            if loaded[0] != rows:  # most cells of a sweep use the same data
                loaded = (rows, load_data(config, folder or Path()))
            make_federation(config, loaded[1])
        except (ConfigError, DataError) as error:
            raise type(error)(f"run {job.cell!r}: {error}") from error


Report = Callable[[Job, int], None]  # called with a job and its number of finished epochs


def run_all(
    jobs: Sequence[Job], folder: Path, workers: int = 0, engine: Engine = "processes", report: Report | None = None
) -> None:
    """Run all jobs without a result; diverged runs are reported after all others have finished."""
    folder.mkdir(parents=True, exist_ok=True)
    pending = unfinished(jobs, folder)
    if not pending:
        return
    check(pending)
    if engine == "ray":
        _run_on_ray(pending, folder, report)
        return
    workers = min(workers or os.cpu_count() or 1, len(pending))
    context = multiprocessing.get_context("spawn")  # a fork would not copy the threads of torch and numba
    with context.Manager() as manager:
        updates = manager.Queue()
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)
        try:
            futures = {pool.submit(_work, job, folder, updates): job for job in pending}
            _watch(futures, updates, {job.key: job for job in pending}, report)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def end_with_parent() -> None:
    """Have this process end as soon as the one that started it is gone, in the middle of a step too.

    Otherwise a sweep that was killed would go on computing until the run at work has its next record.
    """
    parent = multiprocessing.parent_process()

    def wait_for_end() -> None:
        if parent:
            parent.join()
            os._exit(1)  # what was saved stays

    threading.Thread(target=wait_for_end, daemon=True, name="efvfl-parent").start()


class Failures:
    """Collects diverged runs, which do not stop the others; any other error stops the sweep at once."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @contextlib.contextmanager
    def of(self, job: Job) -> Iterator[None]:
        """Record the error if the run in this context diverges."""
        try:
            yield
        except CompressionError as error:
            self.texts.append(f"{job.cell}, seed {job.config.seed}: {error}")

    def raise_any(self, runs: int) -> None:
        """Raise one error about all diverged runs, if there are any."""
        if self.texts:
            count = f"{len(self.texts)} of {runs} runs diverged, the others are finished."
            raise CompressionError("\n".join([count, *self.texts]))


def _work(job: Job, folder: Path, updates: queue.Queue[tuple[str, int]]) -> None:
    run_job(job, folder, lambda epoch: updates.put((job.key, epoch)))


def _watch(
    futures: dict[Future[None], Job], updates: queue.Queue[tuple[str, int]], jobs: dict[str, Job], report: Report | None
) -> None:
    waiting, failures = set(futures), Failures()
    while waiting:
        done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
        for key, epoch in _drain(updates):
            if report:
                report(jobs[key], epoch)
        for future in done:
            with failures.of(futures[future]):
                future.result()  # raises the error of the run
                if report:
                    report(futures[future], futures[future].config.epochs)
    failures.raise_any(len(futures))


def _drain(updates: queue.Queue[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield updates.get_nowait()


def _run_on_ray(jobs: Sequence[Job], folder: Path, report: Report | None) -> None:
    """Submit every run to a Ray cluster: the one RAY_ADDRESS names, or a local one. `folder` must be shared."""
    with optional("ray", "--engine ray"):
        import ray
    started, empty = not ray.is_initialized(), tempfile.TemporaryDirectory()
    if started:
        # Ray's workers look for modules in the working folder first: an empty one, not the current one.
        ray.init(log_to_driver=False, include_dashboard=False, runtime_env={"working_dir": empty.name})
    try:
        remote = ray.remote(num_cpus=1)(run_job)
        futures = {remote.remote(job, folder.resolve()): job for job in jobs}
        waiting, failures = list(futures), Failures()
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            for future in done:
                with failures.of(futures[future]):
                    ray.get(future)
                    if report:
                        report(futures[future], futures[future].config.epochs)
        failures.raise_any(len(futures))
    finally:
        if started:
            ray.shutdown()
        empty.cleanup()

"""Answers requests for predictions, many at a time: one thread owns the links to the parties, others hand in requests.

What is kept needs no party and is answered at once, in the thread that asks. The rest waits in a short queue; all that
has gathered there while parties were busy goes out as one question.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from efvfl.errors import DataError, Interrupted, ProtocolError
from efvfl.network.predict.cache import KeptRows, Means, Rows
from efvfl.network.predict.prediction import Declined, Prediction, said
from efvfl.network.training.questions import CHUNK, MAX_QUESTION, lacking, question, read_answer
from efvfl.network.training.server_process import ServerProcess

ROOM = 64  # requests that may wait for parties

Found = dict[str, dict[str, Rows]]  # by party and id, one row each
Lacks = dict[str, set[str]]  # ids that a party does not hold
Span = tuple[str, int, int]  # a split, and rows of it


@dataclass(frozen=True)
class ServiceSettings:
    """What a service does."""

    timeout: float = 10.0  # seconds until a request must be answered
    source: Literal["cached", "live"] = "cached"
    cache_rows: int = 1_000_000  # of every party
    warm: bool = False  # all rows of the splits are fetched before anybody asks
    fallback: Literal["mean", ""] = ""  # what stands in for a party that is missing


@dataclass(frozen=True)
class _Request:
    ids: list[str]
    ends: float
    future: Future[Prediction] = field(default_factory=Future)


def _turn_away(batch: list[_Request]) -> None:
    for request in batch:
        if not request.future.done():
            request.future.set_exception(Declined(503, "the service is ending. Try again when it is back."))


class PredictionBatcher:
    """Predicts rows by id with what is kept and with what parties say."""

    def __init__(self, serving: ServerProcess, settings: ServiceSettings) -> None:
        """Work with a training that is finished."""
        self.serving = serving
        self.settings = settings
        self.requests = serving.requests
        self.requests.presence.on_missing = "wait"  # a service outlives the absence of a party
        self.widths = dict(zip(serving.holding.names, serving.plan.widths, strict=True))
        self.kept = {name: KeptRows(settings.cache_rows, width) for name, width in self.widths.items()}
        self.fusion = serving.server.fusion.eval()  # for good: nothing is trained here
        self.means = Means(serving.folder / "means.safetensors", self.fusion, self.requests.number)
        self.error: Exception | None = None  # what ended the thread
        self.on_end: Callable[[], None] = lambda: None
        self._ended = threading.Event()
        self._waiting: queue.Queue[_Request] = queue.Queue(ROOM)
        self._spans = {name: deque(self._to_fetch(name)) for name in self.widths}
        self._sums = {name: np.zeros(width) for name, width in self.widths.items()}

    # What other threads call.

    def at_once(self, ids: list[str]) -> Prediction | None:
        """Predict from what is kept; None if some of it is missing."""
        parts = []
        for kept in self.kept.values():
            known, rows = kept.get(ids)
            if len(known) < len(ids):
                return None
            parts.append(rows)
        return self._predict(ids, parts, [[] for _ in ids])

    def submit(self, ids: list[str]) -> Future[Prediction]:
        """Have rows predicted; the future holds Declined if that cannot be."""
        request = _Request(ids, time.monotonic() + self.settings.timeout)
        try:
            self._waiting.put_nowait(request)
        except queue.Full as error:
            raise Declined(429, f"{ROOM} requests wait for the parties already. Try again in a moment.") from error
        self.requests.wake()
        if self._ended.is_set():
            self._turn_all_away()
        return request.future

    def health(self) -> dict[str, Any]:
        """Return who is here, how many rows are kept, and whether all are that shall be from the start."""
        return {
            "parties": {name: self._here(name) for name in self.widths},
            "cached": {name: len(kept) for name, kept in self.kept.items()},
            "warm": not any(self._spans.values()),
        }

    def stop(self) -> None:
        """Ask the thread to end."""
        self.requests.stopping.set()
        self.requests.wake()

    # What the thread does.

    def run(self) -> None:
        """Answer until asked to stop."""
        try:
            while True:
                self.requests.idle(lambda: not self._waiting.empty() or bool(self._next_spans()))
                if batch := self._take():
                    try:
                        self._answer(batch)
                    finally:
                        _turn_away(batch)  # whom an error left without an answer
                else:
                    self._fetch_spans(self._next_spans())
        except Interrupted:
            pass
        except Exception as error:  # raised again where the thread was started
            self.error = error
        self._ended.set()
        self._turn_all_away()
        self.on_end()

    def _take(self) -> list[_Request]:
        """Return what has gathered, up to about one question."""
        batch: list[_Request] = []
        with contextlib.suppress(queue.Empty):
            while sum(len(request.ids) for request in batch) < CHUNK:
                request = self._waiting.get_nowait()
                if request.future.set_running_or_notify_cancel():
                    batch.append(request)
        return batch

    def _turn_all_away(self) -> None:
        while batch := self._take():
            _turn_away(batch)

    def _here(self, name: str) -> bool:
        return name in self.requests.links or name not in self.requests.names

    def _stand_ins(self) -> Mapping[str, Rows]:
        return self.means.of if self.settings.fallback == "mean" else {}

    def _given_up(self, name: str) -> bool:
        """Whether a party is missing and there is no need to wait for it."""
        return not self._here(name) and name in self._stand_ins()

    def _answer(self, batch: list[_Request]) -> None:
        ids = list(dict.fromkeys(i for request in batch for i in request.ids))
        lacks: Lacks = {name: set() for name in self.widths}
        found: Found = {}
        for name, kept in self.kept.items():
            known, rows = kept.get(ids)
            found[name] = dict(zip(known, rows, strict=True))

        def settled() -> bool:
            for request in batch:
                if time.monotonic() > request.ends:
                    self._settle(request, found, lacks)
            return all(request.future.done() for request in batch)

        while not settled() and (asked := self._to_ask(ids, found, lacks)):
            self._fetch(asked, found, lacks, settled)
        for request in batch:
            self._settle(request, found, lacks)

    def _to_ask(self, ids: list[str], found: Found, lacks: Lacks) -> dict[str, list[str]]:
        asked = {}
        for name in self.widths:
            open_ = [i for i in ids if i not in found[name] and i not in lacks[name]]
            if open_ and not self._given_up(name):
                asked[name] = _first_part(open_)
        return asked

    def _fetch(self, asked: dict[str, list[str]], found: Found, lacks: Lacks, settled: Callable[[], bool]) -> None:
        """Ask for rows by id, until all have answered or it is too late; what comes is kept."""
        answered: set[str] = set()

        def check(name: str, answer: bytes) -> None:
            ids = asked[name]
            if places := lacking(name, answer, len(ids)):
                lacks[name] |= {ids[place] for place in places}
            else:
                rows = read_answer(name, answer, len(ids), self.widths[name]).numpy()
                found[name] |= dict(zip(ids, rows, strict=True))
                if self.settings.source == "cached":
                    self.kept[name].put(ids, rows)
            answered.add(name)

        questions = {name: question({"ids": ids}) for name, ids in asked.items()}
        self.requests.ask(questions, check, lambda: settled() or all(n in answered or self._given_up(n) for n in asked))

    def _settle(self, request: _Request, found: Found, lacks: Lacks) -> None:
        """Answer a request with what there is."""
        if request.future.done():
            return
        unknown = [i for i in dict.fromkeys(request.ids) if any(i in ids for ids in lacks.values())]
        absent = [name for name, rows in found.items() if any(i not in rows for i in request.ids)]
        missing = [name for name in absent if name not in self._stand_ins()]
        if not missing and any(all(i not in rows for rows in found.values()) for i in request.ids):
            missing = absent  # a row that nobody holds is not predicted from means alone
        if unknown:
            names = [name for name, ids in lacks.items() if ids.intersection(unknown)]
            text = f"{len(unknown):,} ids are not held by {', '.join(names)}: all parties must hold a row."
            request.future.set_exception(Declined(404, text, unknown=unknown))
        elif missing:
            text = f"{', '.join(missing)} did not answer in time. Try again when all parties are here."
            request.future.set_exception(Declined(503, text, missing=missing))
        else:
            means = self._stand_ins()
            parts = [
                np.stack([rows[i] if i in rows else means[name] for i in request.ids]) for name, rows in found.items()
            ]
            fallback = [[name for name in absent if i not in found[name]] for i in request.ids]
            request.future.set_result(self._predict(request.ids, parts, fallback))

    def _predict(self, ids: list[str], parts: list[Rows], fallback: list[list[str]]) -> Prediction:
        with torch.no_grad():
            output: Tensor = self.fusion([torch.from_numpy(part) for part in parts])
        return Prediction(ids, said(output, self.serving.config.loss, self.serving.holding.class_names), fallback)

    # What is fetched before anybody asks: all rows, or what a mean needs.

    def _to_fetch(self, name: str) -> Iterator[Span]:
        for split, ids in self.serving.holding.trained_ids.items():
            if self.settings.warm or (split == "train" and self._lacks_mean(name)):
                for start in range(0, len(ids), CHUNK):
                    yield split, start, min(start + CHUNK, len(ids))

    def _lacks_mean(self, name: str) -> bool:
        return self.settings.fallback == "mean" and name in self.requests.names and name not in self.means.of

    def _next_spans(self) -> dict[str, Span]:
        return {name: spans[0] for name, spans in self._spans.items() if spans and self._here(name)}

    def _fetch_spans(self, spans: dict[str, Span]) -> None:
        ends = time.monotonic() + self.settings.timeout
        answered: set[str] = set()

        def check(name: str, answer: bytes) -> None:
            _, start, stop = spans[name]
            try:
                rows = read_answer(name, answer, stop - start, self.widths[name]).numpy()
            except DataError as error:
                raise ProtocolError(f"{name} does not represent rows that it holds: {error}") from error
            self._take_span(name, spans[name], rows)
            answered.add(name)

        tables = {name: {"split": split, "start": a, "stop": b} for name, (split, a, b) in spans.items()}
        questions = {name: question(table) for name, table in tables.items()}
        self.requests.ask(
            questions,
            check,
            lambda: time.monotonic() > ends or not all(n in answered or self._here(n) for n in spans),
        )

    def _take_span(self, name: str, span: Span, rows: Rows) -> None:
        split, start, stop = span
        ids = self.serving.holding.ids[split]
        if self.settings.warm:
            self.kept[name].put(ids[start:stop], rows)
        if split == "train":
            self._sums[name] += rows.sum(axis=0, dtype=np.float64)
            if stop == len(ids) and self._lacks_mean(name):
                self.means.add(name, (self._sums[name] / len(ids)).astype(np.float32))
        self._spans[name].popleft()


def _first_part(ids: list[str]) -> list[str]:
    """Return as many of the ids as fit in one question, however they are escaped there."""
    part, room = [], MAX_QUESTION - 64
    for i in ids[:CHUNK]:
        room -= 12 * len(i) + 4
        if room < 0:
            break
        part.append(i)
    return part

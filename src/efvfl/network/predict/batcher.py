"""Answers requests for predictions in batches: one thread owns the connections to the parties, others submit requests.

Cached rows need no party and are predicted in the thread that asks. Other requests wait in a short queue; all that
have gathered there while the parties were busy become one question.
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
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from efvfl.errors import DataError, Interrupted, ProtocolError
from efvfl.network.predict.cache import MeanRepresentations, RepresentationCache, Rows
from efvfl.network.predict.prediction import Declined, Prediction, prediction_columns
from efvfl.network.training.questions import CHUNK, MAX_QUESTION, lacking, question, read_answer
from efvfl.network.training.server_process import ServerProcess

QUEUE_SIZE = 64  # requests that may wait for parties

Representations: TypeAlias = dict[str, dict[str, Rows]]  # by party and id, one row each
UnknownIds: TypeAlias = dict[str, set[str]]  # by party: ids that it does not hold
Span: TypeAlias = tuple[str, int, int]  # a split, and a range of its rows


@dataclass(frozen=True)
class ServiceSettings:
    """How a prediction service works."""

    timeout: float = 10.0  # seconds until a request must be answered
    source: Literal["cached", "live"] = "cached"
    cache_rows: int = 1_000_000  # capacity for every party
    warm: bool = False  # fetch all rows of the splits at the start
    fallback: Literal["mean", ""] = ""  # what replaces a missing party's representation


@dataclass(frozen=True)
class _Request:
    ids: list[str]
    deadline: float
    future: Future[Prediction] = field(default_factory=Future)


def _decline(batch: list[_Request]) -> None:
    for request in batch:
        if not request.future.done():
            request.future.set_exception(Declined(503, "the service is stopping. Try again when it is back."))


class PredictionBatcher:
    """Predicts rows by id, from cached representations and from what parties answer."""

    def __init__(self, process: ServerProcess, settings: ServiceSettings) -> None:
        """Predict with the server of a finished training."""
        self.process = process
        self.settings = settings
        self.requests = process.requests
        self.requests.presence.on_missing = "wait"  # a service outlives the absence of a party
        self.widths = dict(zip(process.holding.names, process.plan.widths, strict=True))
        self.caches = {name: RepresentationCache(settings.cache_rows, width) for name, width in self.widths.items()}
        self.fusion = process.server.fusion.eval()  # nothing is trained here
        self.means = MeanRepresentations(process.folder / "means.safetensors", self.fusion, self.requests.number)
        self.error: Exception | None = None  # what ended the thread
        self._ended = threading.Event()
        self._queue: queue.Queue[_Request] = queue.Queue(QUEUE_SIZE)
        self._spans = {name: deque(self._spans_to_fetch(name)) for name in self.widths}
        self._sums = {name: np.zeros(width) for name, width in self.widths.items()}

    # Called by other threads.

    def predict_cached(self, ids: list[str]) -> Prediction | None:
        """Return a prediction from cached rows; None if some are not cached."""
        parts = []
        for cache in self.caches.values():
            known, rows = cache.get(ids)
            if len(known) < len(ids):
                return None
            parts.append(rows)
        return self._predict(ids, parts, [[] for _ in ids])

    def submit(self, ids: list[str]) -> Future[Prediction]:
        """Return a future of the prediction of rows; it raises Declined if there is none."""
        request = _Request(ids, time.monotonic() + self.settings.timeout)
        try:
            self._queue.put_nowait(request)
        except queue.Full as error:
            raise Declined(
                429, f"{QUEUE_SIZE} requests are waiting for the parties already. Try again in a moment."
            ) from error
        self.requests.wake()
        if self._ended.is_set():
            self._decline_all()
        return request.future

    def health(self) -> dict[str, Any]:
        """Return which parties are connected, how many rows are cached, and whether warming up is complete."""
        return {
            "parties": {name: self._connected(name) for name in self.widths},
            "cached": {name: len(cache) for name, cache in self.caches.items()},
            "warm": not any(self._spans.values()),
        }

    def stop(self) -> None:
        """Ask the thread to stop."""
        self.requests.stopping.set()
        self.requests.wake()

    # Called by the thread that owns the connections.

    def run(self) -> None:
        """Answer requests until asked to stop."""
        try:
            while True:
                self.requests.idle(lambda: not self._queue.empty() or bool(self._next_spans()))
                if batch := self._take():
                    try:
                        self._answer(batch)
                    finally:
                        _decline(batch)  # those that an error left without an answer
                else:
                    self._fetch_spans(self._next_spans())
        except Interrupted:
            pass
        except Exception as error:  # raised again where the thread was started
            self.error = error
        self._ended.set()
        self._decline_all()

    def _take(self) -> list[_Request]:
        """Return the requests that have gathered, up to about one question."""
        batch: list[_Request] = []
        with contextlib.suppress(queue.Empty):
            while sum(len(request.ids) for request in batch) < CHUNK:
                request = self._queue.get_nowait()
                if request.future.set_running_or_notify_cancel():
                    batch.append(request)
        return batch

    def _decline_all(self) -> None:
        while batch := self._take():
            _decline(batch)

    def _connected(self, name: str) -> bool:
        return name in self.requests.links or name not in self.requests.names

    def _fallbacks(self) -> Mapping[str, Rows]:
        return self.means.by_party if self.settings.fallback == "mean" else {}

    def _replaceable(self, name: str) -> bool:
        """Whether a party is missing and a mean can replace it."""
        return not self._connected(name) and name in self._fallbacks()

    def _answer(self, batch: list[_Request]) -> None:
        ids = list(dict.fromkeys(i for request in batch for i in request.ids))
        unknown: UnknownIds = {name: set() for name in self.widths}
        found: Representations = {}
        for name, cache in self.caches.items():
            known, rows = cache.get(ids)
            found[name] = dict(zip(known, rows, strict=True))

        def done() -> bool:
            for request in batch:
                if time.monotonic() > request.deadline:
                    self._resolve(request, found, unknown)
            return all(request.future.done() for request in batch)

        while not done() and (asked := self._to_ask(ids, found, unknown)):
            self._fetch(asked, found, unknown, done)
        for request in batch:
            self._resolve(request, found, unknown)

    def _to_ask(self, ids: list[str], found: Representations, unknown: UnknownIds) -> dict[str, list[str]]:
        asked = {}
        for name in self.widths:
            open_ = [i for i in ids if i not in found[name] and i not in unknown[name]]
            if open_ and not self._replaceable(name):
                asked[name] = _first_part(open_)
        return asked

    def _fetch(
        self, asked: dict[str, list[str]], found: Representations, unknown: UnknownIds, done: Callable[[], bool]
    ) -> None:
        """Ask for rows by id, until all have answered or it is too late; rows are cached."""
        answered: set[str] = set()

        def check(name: str, answer: bytes) -> None:
            ids = asked[name]
            if places := lacking(name, answer, len(ids)):
                unknown[name] |= {ids[place] for place in places}
            else:
                rows = read_answer(name, answer, len(ids), self.widths[name]).numpy()
                found[name] |= dict(zip(ids, rows, strict=True))
                if self.settings.source == "cached":
                    self.caches[name].put(ids, rows)
            answered.add(name)

        questions = {name: question({"ids": ids}) for name, ids in asked.items()}
        self.requests.ask(questions, check, lambda: done() or all(n in answered or self._replaceable(n) for n in asked))

    def _resolve(self, request: _Request, found: Representations, unknown: UnknownIds) -> None:
        """Complete a request with a prediction, or with the reason why there is none."""
        if request.future.done():
            return
        unheld = [i for i in dict.fromkeys(request.ids) if any(i in ids for ids in unknown.values())]
        absent = [name for name, rows in found.items() if any(i not in rows for i in request.ids)]
        missing = [name for name in absent if name not in self._fallbacks()]
        if not missing and any(all(i not in rows for rows in found.values()) for i in request.ids):
            missing = absent  # a row that no party holds is not predicted from means alone
        if unheld:
            names = [name for name, ids in unknown.items() if ids.intersection(unheld)]
            text = f"{len(unheld):,} ids are not held by {', '.join(names)}: all parties must hold a row."
            request.future.set_exception(Declined(404, text, unknown=unheld))
        elif missing:
            text = f"{', '.join(missing)} did not answer in time. Try again when all parties are here."
            request.future.set_exception(Declined(503, text, missing=missing))
        else:
            means = self._fallbacks()
            parts = [
                np.stack([rows[i] if i in rows else means[name] for i in request.ids]) for name, rows in found.items()
            ]
            fallback = [[name for name in absent if i not in found[name]] for i in request.ids]
            request.future.set_result(self._predict(request.ids, parts, fallback))

    def _predict(self, ids: list[str], parts: list[Rows], fallback: list[list[str]]) -> Prediction:
        with torch.no_grad():
            output: Tensor = self.fusion([torch.from_numpy(part) for part in parts])
        return Prediction(
            ids, prediction_columns(output, self.process.config.loss, self.process.holding.class_names), fallback
        )

    # Fetched before the first request: all rows, or those that a mean needs.

    def _spans_to_fetch(self, name: str) -> Iterator[Span]:
        for split, ids in self.process.holding.trained_ids.items():
            if self.settings.warm or (split == "train" and self._lacks_mean(name)):
                for start in range(0, len(ids), CHUNK):
                    yield split, start, min(start + CHUNK, len(ids))

    def _lacks_mean(self, name: str) -> bool:
        return self.settings.fallback == "mean" and name in self.requests.names and name not in self.means.by_party

    def _next_spans(self) -> dict[str, Span]:
        return {name: spans[0] for name, spans in self._spans.items() if spans and self._connected(name)}

    def _fetch_spans(self, spans: dict[str, Span]) -> None:
        deadline = time.monotonic() + self.settings.timeout
        answered: set[str] = set()

        def check(name: str, answer: bytes) -> None:
            _, start, stop = spans[name]
            try:
                rows = read_answer(name, answer, stop - start, self.widths[name]).numpy()
            except DataError as error:
                raise ProtocolError(
                    f"expected representations of rows that {name} holds, got an error: {error}"
                ) from error
            self._add_span(name, spans[name], rows)
            answered.add(name)

        tables = {name: {"split": split, "start": a, "stop": b} for name, (split, a, b) in spans.items()}
        questions = {name: question(table) for name, table in tables.items()}
        self.requests.ask(
            questions,
            check,
            lambda: time.monotonic() > deadline or not all(n in answered or self._connected(n) for n in spans),
        )

    def _add_span(self, name: str, span: Span, rows: Rows) -> None:
        split, start, stop = span
        ids = self.process.holding.ids[split]
        if self.settings.warm:
            self.caches[name].put(ids[start:stop], rows)
        if split == "train":
            self._sums[name] += rows.sum(axis=0, dtype=np.float64)
            if stop == len(ids) and self._lacks_mean(name):
                self.means.add(name, (self._sums[name] / len(ids)).astype(np.float32))
        self._spans[name].popleft()


def _first_part(ids: list[str]) -> list[str]:
    """Return as many of the ids as fit in one question, even if every character is escaped."""
    part, room = [], MAX_QUESTION - 64
    for i in ids[:CHUNK]:
        room -= 12 * len(i) + 4
        if room < 0:
            break
        part.append(i)
    return part

"""Answers requests for predictions in batches: one thread owns the connections to the parties, others submit requests.

Cached rows need no party and are predicted in the thread that asks. Other requests wait in a short queue; all that
have gathered there while the parties were busy become one question.

A row counts towards a party's limit also if the party does not hold it. So ids that may not exist are asked for first,
few at a time, and once one does not, no more than were paid for in advance. What a party holds is remembered.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from efvfl.core.fusion import predict_alone
from efvfl.errors import ConfigError, Interrupted
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.predict.batch_request import GUESSES, BatchRequest, decline_all
from efvfl.network.predict.cache import IdMemory, MeanRepresentations, RepresentationCache, Rows
from efvfl.network.predict.known_rows import KnownRows
from efvfl.network.predict.prediction import Declined, Prediction, prediction_columns
from efvfl.network.predict.prefetch import Prefetch, Span, first_part
from efvfl.network.training.panel import PartyPanel, RowOutcome
from efvfl.network.training.questions import CHUNK, question, read_held
from efvfl.network.training.server_process import ServerProcess

log = logging.getLogger("efvfl")

QUEUE_SIZE = 64  # requests that may wait for parties
HELD = 1_000_000  # ids of each party that it is known to hold
REST = 60  # seconds in which a party that refused is not asked


@dataclass(frozen=True)
class ServiceSettings:
    """How a prediction service works."""

    timeout: float = 10.0  # seconds until a request must be answered
    source: Literal["cached", "live"] = "cached"
    cache_rows: int = 1_000_000  # capacity for every party
    warm: bool = False  # fetch all rows of the splits at the start
    fallback: Literal["mean", ""] = ""  # what replaces a missing party's representation, if all are needed
    quota: int = 100_000  # ids a minute, of one client; 0: no limit
    unknown: int = 1_000  # ids an hour that are asked for in vain, of one client; 0: no limit
    wait: float | None = None  # seconds for a missing party, if not all are needed; None: the usual time
    required: tuple[str, ...] = ()  # parties without which a row is not predicted


class PredictionBatcher:
    """Predicts rows by id, from cached representations and from what parties answer."""

    def __init__(self, process: ServerProcess, settings: ServiceSettings) -> None:
        """Predict with the server of a finished training."""
        self.process = process
        self.settings = settings
        self.requests = process.requests
        self.requests.presence.on_missing = "wait"  # a service outlives the absence of a party
        self.panel = PartyPanel.convene(process.plan, self.requests.presence, settings.required, settings.wait)
        if self.panel.any_subset and settings.fallback:
            raise ConfigError(
                "this model was trained for subsets of parties and predicts with those that are here: leave --fallback "
                "out."
            )
        self.widths = dict(zip(process.data.names, process.plan.widths, strict=True))
        self.caches = {name: RepresentationCache(settings.cache_rows, width) for name, width in self.widths.items()}
        self.fusion = process.server.fusion.eval()  # nothing is trained here
        self.means = MeanRepresentations(process.folder / "means.safetensors", self.fusion, self.requests.number)
        self.error: Exception | None = None  # what ended the thread
        self._ended = threading.Event()
        self._queue: queue.Queue[BatchRequest] = queue.Queue(QUEUE_SIZE)
        data = process.data
        self._trained = {i for ids in data.trained_ids.values() for i in ids}  # all parties hold these
        self._own = {i for ids in data.ids.values() for i in ids} if process.local else None  # of the party here
        self._unknown = {name: IdMemory() for name in self.widths}
        self._held = {name: IdMemory(HELD, math.inf) for name in self.widths}  # beside those of the training
        self._refused: dict[str, float] = {}  # when a party last refused to answer
        self.requests.hooks = replace(self.requests.hooks, on_frame=self._watch(self.requests.hooks.on_frame))
        mean_of = self.requests.names if settings.fallback == "mean" else ()
        self.prefetch = Prefetch(data.trained_ids, self.caches, self.means, settings.warm, mean_of)

    # Called by other threads.

    def predict_cached(self, ids: list[str]) -> Prediction | None:
        """Return a prediction from cached rows; None if some are not cached."""
        known = KnownRows(self.panel, self.widths)
        for name, cache in self.caches.items():
            held, rows = cache.get(ids)
            if len(held) < len(ids):
                return None
            known.found[name] = dict(zip(ids, rows, strict=True))
        outcome = self.panel.outcome(self.widths, ())
        return self._predict(ids, [outcome] * len(ids), known) if outcome.ok else None

    def submit(self, ids: list[str]) -> Future[Prediction]:
        """Return a future of the prediction of rows; it raises Declined if there is none."""
        request = BatchRequest(ids, time.monotonic() + self.settings.timeout)
        try:
            self._queue.put_nowait(request)
        except queue.Full as error:
            text = f"{QUEUE_SIZE} requests are waiting for the parties already. Try again in a moment."
            raise Declined(429, text, retry=1) from error
        self.requests.wake()
        if self._ended.is_set():
            self._decline_all()
        return request.future

    def guesses(self, ids: list[str]) -> int:
        """Return how many of these ids may not exist and are asked for at first, as far as the service knows."""
        guesses = {i for i in ids if i not in self._trained}
        known = [
            self._held[name].among(guesses, None).union(c.get(list(guesses))[0]) for name, c in self.caches.items()
        ]
        return min(sum(self._unsure(i, known) for i in guesses), GUESSES)

    def _unsure(self, i: str, known: Sequence[set[str]]) -> bool:
        """Whether a row may not exist where it is needed; `known` are the ids that each party is known to hold."""
        if not self.panel.any_subset:
            return any(i not in has for has in known)
        return not (self._own is not None and i in self._own) and all(i not in has for has in known)

    def health(self) -> dict[str, Any]:
        """Return which parties are connected, how many rows are cached, and whether warming up is complete."""
        return {
            "parties": {name: self._connected(name) for name in self.widths},
            "cached": {name: len(cache) for name, cache in self.caches.items()},
            "warm": self.prefetch.done,
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
                self.requests.idle(lambda: not self._queue.empty() or bool(self._to_prefetch()))
                if batch := self._take():
                    try:
                        self._answer(batch)
                    finally:
                        decline_all(batch)  # those that an error left without an answer
                else:
                    self._prefetch()
        except Interrupted:
            pass
        except Exception as error:  # raised again where the thread was started
            self.error = error
        self._ended.set()
        self._decline_all()

    def _take(self) -> list[BatchRequest]:
        """Return the requests that have gathered, up to about one question."""
        batch: list[BatchRequest] = []
        with contextlib.suppress(queue.Empty):
            while sum(len(request.ids) for request in batch) < CHUNK:
                request = self._queue.get_nowait()
                if request.future.set_running_or_notify_cancel():
                    batch.append(request)
        return batch

    def _decline_all(self) -> None:
        while batch := self._take():
            decline_all(batch)

    def _connected(self, name: str) -> bool:
        return name in self.requests.connections or name not in self.requests.names

    def _watch(self, then: Callable[[str, str, Frame], None]) -> Callable[[str, str, Frame], None]:
        """Note who refuses to answer, as a party does at a limit of its own: it is not asked again for a time."""

        def on_frame(name: str, direction: str, frame: Frame) -> None:
            if direction == "in" and frame.kind == FrameKind.REFUSE:
                self._refused[name] = time.monotonic()
                log.warning("%s refuses to answer, and is not asked again for %d seconds", name, REST)
            then(name, direction, frame)

        return on_frame

    def _refuses(self, name: str) -> bool:
        return time.monotonic() - self._refused.get(name, -REST) < REST

    def _fallbacks(self) -> Mapping[str, Rows]:
        return self.means.by_party if self.settings.fallback == "mean" else {}

    def _replaceable(self, name: str) -> bool:
        """Whether a party is missing and a mean can replace it."""
        return (not self._connected(name) or self._refuses(name)) and name in self._fallbacks()

    def _askable(self, name: str) -> bool:
        """Whether there is a point in asking a party, or in waiting for it."""
        return not self._replaceable(name) and not self._refuses(name) and not self.requests.presence.gone([name])

    def _gone(self, known: KnownRows) -> set[str]:
        return known.gone([name for name in self.widths if self._askable(name)])

    def _answer(self, batch: list[BatchRequest]) -> None:
        ids = list(dict.fromkeys(i for request in batch for i in request.ids))
        known = KnownRows(self.panel, self.widths)
        for name, remembered in self._unknown.items():
            known.lacking[name] = remembered.among(ids, self.requests.connections.get(name))
            if self._own is not None and name in self.process.local:
                known.lacking[name] |= set(ids) - self._own
        for name, cache in self.caches.items():
            held, rows = cache.get(ids)
            known.found[name] = dict(zip(held, rows, strict=True))

        def done() -> bool:
            for request in batch:
                if time.monotonic() > request.deadline or self._hopeless(request, known):
                    self._resolve(request, known)
            return all(request.future.done() for request in batch)

        while not done() and (asked := self._to_ask(batch, known)):
            self._fetch(asked, known, done)
        for request in batch:
            self._resolve(request, known)

    def _hopeless(self, request: BatchRequest, known: KnownRows) -> bool:
        """Whether a party refuses to answer without which there is no prediction at all."""
        if self.panel.any_subset:
            return False
        needed = (name for name in self.widths if self._refuses(name) and not self._replaceable(name))
        wanted = request.wanted(self._gone(known))
        return any(i not in known.found[name] for name in needed for i in wanted)

    def _to_ask(self, batch: list[BatchRequest], known: KnownRows) -> dict[str, list[str]]:
        """Return the ids to ask every party for: those that may not exist come before all others."""
        held = {name: rows for name, rows in known.found.items() if self._askable(name)}
        gone = self._gone(known)
        in_vain = gone & known.in_vain(self.process.local)
        live = [request for request in batch if not request.future.done()]
        guesses: list[str] = []
        wanted = {i for request in live for i in request.wanted(gone)}
        sure = [
            self._held[name].among(wanted, self.requests.connections.get(name)).union(rows)
            for name, rows in held.items()
        ]
        for request in live:
            may_not_exist = (i for i in request.wanted(gone) if i not in self._trained)
            guesses += request.take_guesses([i for i in may_not_exist if self._unsure(i, sure)], in_vain)
        ids = list(dict.fromkeys(guesses or (i for request in live for i in request.wanted(gone))))
        asked = {
            name: first_part([i for i in ids if i not in rows and i not in known.lacking[name]])
            for name, rows in held.items()
        }
        return {name: part for name, part in asked.items() if part}

    def _fetch(self, asked: dict[str, list[str]], known: KnownRows, done: Callable[[], bool]) -> None:
        """Ask for rows by id, until all have answered or it is too late; rows are cached."""
        answered: set[str] = set()

        def check(name: str, answer: bytes) -> None:
            places, rows = read_held(name, answer, len(asked[name]), self.widths[name])
            lacks = {asked[name][place] for place in places}
            held, found = [i for i in asked[name] if i not in lacks], rows.numpy()
            known.lacking[name] |= lacks
            self._unknown[name].add(lacks)
            known.found[name] |= dict(zip(held, found, strict=True))
            if self.settings.source == "cached":
                self.caches[name].put(held, found)
            self._held[name].add(i for i in held if i not in self._trained)
            answered.add(name)

        questions = {name: question({"ids": ids}) for name, ids in asked.items()}
        self.requests.ask(questions, check, lambda: done() or all(n in answered or not self._askable(n) for n in asked))

    def _resolve(self, request: BatchRequest, known: KnownRows) -> None:
        """Complete a request with a prediction, or with the reason why there is none."""
        if request.future.done():
            return
        gone, means = self._gone(known), self._fallbacks()
        outcomes = [
            RowOutcome("not asked") if i in request.not_asked and i not in gone else known.outcome(i, means)
            for i in request.ids
        ]
        words = {outcome.word for outcome in outcomes}
        if "away" in words and (not self.panel.any_subset or not words & {"ok", "untrained"}):
            request.decline(self._away({name for outcome in outcomes for name in outcome.away}))
        elif not words & {"ok", "untrained"}:
            unheld = {i: outcome.lacking for i, outcome in zip(request.ids, outcomes, strict=True) if outcome.lacking}
            names = [name for name in self.widths if any(name in lacking for lacking in unheld.values())]
            text = f"{len(unheld):,} ids are not held by {', '.join(names)}: no row can be predicted."
            request.decline(Declined(404, text, unknown=list(unheld)))
        else:
            request.future.set_result(self._predict(request.ids, outcomes, known))

    def _away(self, names: set[str]) -> Declined:
        """Return why nothing can be predicted without these."""
        missing = [name for name in self.widths if name in names]
        if refusing := [name for name in missing if self._refuses(name)]:
            text = (
                f"{', '.join(refusing)} refused to answer: a limit of its own may be reached. Its operator knows why."
            )
            return Declined(503, text, retry=REST, missing=missing)
        text = f"{', '.join(missing)} did not answer in time. Try again when all parties are here."
        return Declined(503, text, missing=missing)

    def _predict(self, ids: list[str], outcomes: list[RowOutcome], known: KnownRows) -> Prediction:
        rows = [(i, outcome) for i, outcome in zip(ids, outcomes, strict=True) if outcome.ok]
        if not rows:
            return Prediction(ids, outcomes, {})
        parts = [torch.from_numpy(part) for part in known.parts(rows, self._fallbacks())]
        output = predict_alone(self.fusion, parts, self.panel.mask([outcome for _, outcome in rows]))
        columns = prediction_columns(output, self.process.plan.loss.name, self.process.data.class_names)
        return Prediction(ids, outcomes, columns)

    def _to_prefetch(self) -> dict[str, Span]:
        return self.prefetch.next([name for name in self.widths if self._connected(name) and not self._refuses(name)])

    def _prefetch(self) -> None:
        deadline = time.monotonic() + self.settings.timeout
        spans, answered = self._to_prefetch(), set[str]()

        def check(name: str, answer: bytes) -> None:
            self.prefetch.take(name, spans[name], answer)
            answered.add(name)

        self.requests.ask(
            {name: self.prefetch.question(span) for name, span in spans.items()},
            check,
            lambda: time.monotonic() > deadline or not all(n in answered or self._connected(n) for n in spans),
        )

"""What the prediction service fetches before anybody asks: all rows, or those that a mean needs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from efvfl.errors import DataError
from efvfl.network.predict.cache import MeanRepresentations, RepresentationCache, Rows
from efvfl.network.training.questions import CHUNK, MAX_QUESTION, question, read_held

log = logging.getLogger("efvfl")

Span: TypeAlias = tuple[str, int, int]  # a split, and a range of its rows


def first_part(ids: list[str]) -> list[str]:
    """Return as many of the ids as fit in one question, even if every character is escaped."""
    part, room = [], MAX_QUESTION - 64
    for i in ids[:CHUNK]:
        room -= 12 * len(i) + 4
        if room < 0:
            break
        part.append(i)
    return part


class Prefetch:
    """The rows that are still to be fetched from every party, and what is made of them."""

    def __init__(
        self,
        ids: Mapping[str, list[str]],
        caches: Mapping[str, RepresentationCache],
        means: MeanRepresentations,
        warm: bool,
        mean_of: Collection[str],
    ) -> None:
        """Fetch the rows of all splits where `warm`, and those of the training for the means of some parties."""
        self.ids = ids
        self.caches = caches
        self.means = means
        self.warm = warm
        self.mean_of = mean_of
        self._spans = {name: deque(self._spans_of(name)) for name in caches}
        self._sums = {name: np.zeros(cache.width) for name, cache in caches.items()}
        self._counts = dict.fromkeys(caches, 0)  # of rows in the sums

    @property
    def done(self) -> bool:
        """Whether nothing is left to fetch."""
        return not any(self._spans.values())

    def next(self, names: Collection[str]) -> dict[str, Span]:
        """Return what to ask these parties next."""
        return {name: spans[0] for name, spans in self._spans.items() if spans and name in names}

    def question(self, span: Span) -> bytes:
        """Return the question for some rows; by id, as clients ask, because that decides the last bits of an answer."""
        split, start, stop = span
        return question({"ids": self.ids[split][start:stop]})

    def take(self, name: str, span: Span, answer: bytes) -> None:
        """Take a party's answer; where it refuses rows of a split, the service goes on without them."""
        split, start, stop = span
        try:
            lacking, rows = read_held(name, answer, stop - start, self.caches[name].width)
        except DataError as error:
            log.warning("%s gives no %s rows in advance: %r", name, split, str(error))
            self._spans[name] = deque(span for span in self._spans[name] if span[0] != split)
            return
        self._add(name, span, set(lacking), rows.numpy())
        self._spans[name].popleft()

    def _spans_of(self, name: str) -> Iterator[Span]:
        for split, ids in self.ids.items():
            if self.warm or (split == "train" and self._lacks_mean(name)):
                start = 0
                while start < len(ids):
                    stop = start + len(first_part(ids[start : start + CHUNK]))
                    yield split, start, stop
                    start = stop

    def _lacks_mean(self, name: str) -> bool:
        return name in self.mean_of and name not in self.means.by_party

    def _add(self, name: str, span: Span, lacking: Collection[int], rows: Rows) -> None:
        split, start, stop = span
        ids: list[str] = self.ids[split]
        if self.warm:
            self.caches[name].put([ids[n] for n in range(start, stop) if n - start not in lacking], rows)
        if split == "train":
            self._sums[name] += rows.sum(axis=0, dtype=np.float64)
            self._counts[name] += len(rows)
            if stop == len(ids) and self._lacks_mean(name) and self._counts[name]:
                self.means.add(name, (self._sums[name] / self._counts[name]).astype(np.float32))

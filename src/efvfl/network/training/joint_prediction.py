"""Predictions by the parties together: the server asks for representations, and runs the fusion model on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from efvfl.core.fusion import Fusion, predict_alone
from efvfl.core.local_model import evaluating
from efvfl.core.presence import RowPresence
from efvfl.errors import AbsentError, DataError, ProtocolError
from efvfl.network.links.requests import Requests
from efvfl.network.training.panel import PartyPanel, RowOutcome
from efvfl.network.training.questions import CHUNK, question, read_answer, read_held


class PredictedRows(NamedTuple):
    """The network's output on rows that could be predicted, and what became of every row that was asked for."""

    output: Tensor  # of the rows that are ok, in order
    outcomes: list[RowOutcome]


class JointPrediction:
    """Asks the parties behind `requests`, which have representations of these widths, by name."""

    def __init__(
        self,
        fusion: Fusion,
        requests: Requests,
        widths: dict[str, int],
        presence: Mapping[str, RowPresence],
        keeps: bool = False,
    ) -> None:
        """Predict with this fusion model; `presence` says by split who has which rows, where some lack some.

        It may keep the representations of the splits that were last asked for.
        """
        self.keeps = keeps
        self.parts: dict[str, dict[str, Tensor]] = {}  # by split and party, zeros where a party lacks a row
        self.fusion = fusion
        self.requests = requests
        self.widths = widths
        self.presence = presence

    def of_split(self, split: str, rows: int) -> Tensor:
        """Return the network's output on all rows of a split, in batches."""
        self.parts.pop(split, None)
        found = self._chunks(split, rows)
        if self.keeps:
            self.parts[split] = self._whole(found)
        with torch.no_grad(), evaluating([self.fusion]):
            return torch.cat([self.fusion(parts, mask) for parts, mask in found])

    def represent(self, split: str, rows: int) -> dict[str, Tensor]:
        """Return the representations of all rows of a split by party, zeros where one lacks a row."""
        return self._whole(self._chunks(split, rows))

    def _chunks(self, split: str, rows: int) -> list[tuple[list[Tensor], Tensor | None]]:
        spans = [(start, min(start + CHUNK, rows)) for start in range(0, rows, CHUNK)]
        return [self._represented(split, a, b) for a, b in spans]

    def _whole(self, chunks: list[tuple[list[Tensor], Tensor | None]]) -> dict[str, Tensor]:
        every = zip(*(parts for parts, _ in chunks), strict=True)
        return dict(zip(self.widths, (torch.cat(parts) for parts in every), strict=True))

    def of_ids(self, ids: list[str], panel: PartyPanel) -> PredictedRows:
        """Predict the rows of these ids, in their order; each is computed alone."""
        parts = [self._predict_part(ids[start : start + CHUNK], panel) for start in range(0, len(ids), CHUNK)]
        output = torch.cat([part.output for part in parts if len(part.output)] or [torch.empty(0)])
        return PredictedRows(output, [outcome for part in parts for outcome in part.outcomes])

    def _predict_part(self, ids: list[str], panel: PartyPanel) -> PredictedRows:
        """Predict at most as many rows as one question has."""
        unique = list(dict.fromkeys(ids))

        def check(name: str, answer: bytes) -> None:
            read_held(name, answer, len(unique), self.widths[name])

        asked = dict.fromkeys(self.widths, question({"ids": unique}))
        answers = self.requests.ask(asked, check) if panel.any_subset else self.ask_all(asked, check)
        rows: dict[str, dict[str, Tensor]] = {}  # by party and id
        lacking: dict[str, set[str]] = {}
        for name, answer in answers.items():
            places, found = read_held(name, answer, len(unique), self.widths[name])
            lacking[name] = {unique[place] for place in places}
            rows[name] = dict(zip((i for i in unique if i not in lacking[name]), found, strict=True))
        outcomes = [
            panel.outcome([n for n in rows if i in rows[n]], [n for n in lacking if i in lacking[n]]) for i in ids
        ]
        predicted = [(i, outcome) for i, outcome in zip(ids, outcomes, strict=True) if outcome.ok]
        if not predicted:
            return PredictedRows(torch.empty(0), outcomes)
        parts = [
            torch.stack([rows[name][i] if name in outcome.parties else torch.zeros(width) for i, outcome in predicted])
            for name, width in self.widths.items()
        ]
        mask = panel.mask([outcome for _, outcome in predicted])
        return PredictedRows(predict_alone(self.fusion, parts, mask), outcomes)

    def _represented(self, split: str, start: int, stop: int) -> tuple[list[Tensor], Tensor | None]:
        """Return rows by their places, and who has them; every party is asked for those that it has, by its own places.

        Without a mask all have all. Rows that a party lacks are zeros.
        """
        known = self.presence.get(split)
        spans = {name: (start, stop) if known is None else known.own_span(name, start, stop) for name in self.widths}

        def part(name: str, answer: bytes) -> Tensor:
            first, end = spans[name]
            try:
                return read_answer(name, answer, end - first, self.widths[name])
            except DataError as error:
                raise ProtocolError(f"{name} does not represent rows that it holds: {error}") from error

        def check(name: str, answer: bytes) -> None:
            part(name, answer)

        asked = {
            name: question({"split": split, "start": first, "stop": end})
            for name, (first, end) in spans.items()
            if first < end
        }
        answers = self.ask_all(asked, check)
        parts = [part(name, answers[name]) if name in answers else torch.zeros(0, w) for name, w in self.widths.items()]
        mask = None
        if known is not None:
            rows = known.part(slice(start, stop))
            parts = [rows.spread(name, found) for name, found in zip(self.widths, parts, strict=True)]
            mask = rows.table.to(parts[0].dtype)
        return parts, mask

    def ask_all(self, questions: dict[str, bytes], check: Callable[[str, bytes], None]) -> dict[str, bytes]:
        """Return the answers of all these parties; `check` refuses one by raising."""
        answers = self.requests.ask(questions, check)
        if absent := sorted(set(questions) - set(answers)):
            raise AbsentError(f"{', '.join(absent)} cannot be asked now: this needs all parties.")
        return dict(answers)

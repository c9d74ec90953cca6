"""Predictions by all parties together: the server asks for representations, and runs the fusion model on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from efvfl.core.fusion import Fusion, predict_alone
from efvfl.core.local_model import evaluating
from efvfl.errors import AbsentError, DataError, ProtocolError
from efvfl.network.links.requests import Requests
from efvfl.network.training.questions import CHUNK, lacking, question, read_answer


class HeldRows(NamedTuple):
    """The network's output on the rows that all parties hold."""

    output: Tensor  # of these rows, in order
    lacking: dict[str, list[str]]  # the other ids, and the parties that do not hold them


class JointPrediction:
    """Asks the parties behind `requests`, which have representations of these widths, by name."""

    def __init__(self, fusion: Fusion, requests: Requests, widths: dict[str, int]) -> None:
        """Predict with this fusion model."""
        self.fusion = fusion
        self.requests = requests
        self.widths = widths

    def of_split(self, split: str, rows: int) -> Tensor:
        """Return the network's output on all rows of a split, in batches."""
        spans = [(start, min(start + CHUNK, rows)) for start in range(0, rows, CHUNK)]
        return torch.cat([self._output(split, a, b) for a, b in spans])

    def of_ids(self, ids: list[str]) -> HeldRows:
        """Predict the rows of these ids that all parties hold, in their order; each is computed alone."""
        parts = [self._predict_part(ids[start : start + CHUNK]) for start in range(0, len(ids), CHUNK)]
        lacking = {i: names for part in parts for i, names in part.lacking.items()}
        return HeldRows(torch.cat([part.output for part in parts if len(part.output)] or [torch.empty(0)]), lacking)

    def _predict_part(self, ids: list[str]) -> HeldRows:
        """Predict at most as many rows as one question has; who lacks some is asked for the others again."""
        answers = self._ask(dict.fromkeys(self.widths, ids))
        # In the parties' order, not in that of their answers: errors name them.
        lacks = {name: {ids[place] for place in lacking(name, answers[name], len(ids))} for name in self.widths}
        gone = {i: [name for name, those in lacks.items() if i in those] for i in set().union(*lacks.values())}
        held = [i for i in ids if i not in gone]
        if not held:
            return HeldRows(torch.empty(0), gone)
        again = self._ask({name: held for name, those in lacks.items() if those}) if gone else {}
        places = [place for place, i in enumerate(ids) if i not in gone]
        parts = []
        for name, width in self.widths.items():
            if name in again:
                parts.append(read_answer(name, again[name], len(held), width))
            else:
                parts.append(read_answer(name, answers[name], len(ids), width)[places])
        return HeldRows(predict_alone(self.fusion, parts), gone)

    def _ask(self, ids: dict[str, list[str]]) -> dict[str, bytes]:
        """Return the answers of parties to questions about ids: rows, or which they lack."""

        def check(name: str, answer: bytes) -> None:
            if not lacking(name, answer, len(ids[name])):
                read_answer(name, answer, len(ids[name]), self.widths[name])

        return self._answers({name: question({"ids": of}) for name, of in ids.items()}, check)

    def _output(self, split: str, start: int, stop: int) -> Tensor:
        """Return the output on rows by their places, which all parties hold."""

        def check(name: str, answer: bytes) -> None:
            try:
                read_answer(name, answer, stop - start, self.widths[name])
            except DataError as error:
                raise ProtocolError(f"{name} does not represent rows that it holds: {error}") from error

        asked = question({"split": split, "start": start, "stop": stop})
        answers = self._answers(dict.fromkeys(self.widths, asked), check)
        parts = [read_answer(name, answers[name], stop - start, width) for name, width in self.widths.items()]
        with torch.no_grad(), evaluating([self.fusion]):
            output: Tensor = self.fusion(parts)
        return output

    def _answers(self, questions: dict[str, bytes], check: Callable[[str, bytes], None]) -> dict[str, bytes]:
        answers = self.requests.ask(questions, check)
        if absent := sorted(set(questions) - set(answers)):
            raise AbsentError(f"{', '.join(absent)} cannot be asked now: prediction needs all parties.")
        return dict(answers)

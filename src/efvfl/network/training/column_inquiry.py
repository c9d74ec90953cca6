"""Which columns matter, asked by the label holder of every party that agreed to it, column by column.

The label holder has the representations of held-out rows anyway. For every column it is sent those of the same rows
with the column's values in another order, scores them, and tells the party what it found.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from efvfl.core.server import Server
from efvfl.errors import ConfigError, DataError, ProtocolError, printable
from efvfl.network.training.joint_prediction import JointPrediction
from efvfl.network.training.questions import question, read_answer, refuse_refusal
from efvfl.network.training.server_process import ServerProcess
from efvfl.runs.column_worth import ColumnWorth, numbers_of, told
from efvfl.runs.party_worth import main_metric, split_of, step_of
from efvfl.training.column_values import ColumnScorer
from efvfl.training.values import ValueEstimate, scored_rows

MOST_COLUMNS = 100_000
MOST_ANSWER = 4 << 20  # bytes of a list of names
LONGEST = 200  # characters of a name


@dataclass(frozen=True)
class ColumnList:
    """What a party says of its columns."""

    count: int
    names: list[str]  # empty: it keeps them to itself

    @classmethod
    def read(cls, name: str, answer: bytes) -> ColumnList:
        """Return what an answer says, or raise a DataError if the party has not agreed."""
        refuse_refusal(answer)
        try:
            table = json.loads(answer[1:]) if answer[:1] == b"\x00" and len(answer) <= MOST_ANSWER else None
        except (ValueError, RecursionError):
            table = None
        match table:
            case {"count": int(count), "names": None} if 0 < count <= MOST_COLUMNS:
                return cls(count, [])
            case {"count": int(count), "names": list(names)} if 0 < count <= MOST_COLUMNS and len(names) == count:
                shown = [printable(text)[:LONGEST] if isinstance(text, str) else "" for text in names]
                if all(shown) and len(set(shown)) == count:
                    return cls(count, shown)
        raise ProtocolError(f"expected {name} to say how many columns it has, got {answer[:80]!r}.")


@dataclass(frozen=True)
class ColumnFindings:
    """What the label holder found: of parties that told their names what each column is worth."""

    worth: ColumnWorth
    unnamed: dict[str, int] = field(default_factory=dict)  # how many columns those have that keep names to themselves
    refused: dict[str, str] = field(default_factory=dict)  # who does not take part, and why


def inquire(process: ServerProcess) -> ColumnFindings:
    """Ask all parties of a trained run that agreed, tell them, and leave what the label holder may know in its folder.

    What is told of labels is in no account, so where labels are protected nothing is.
    """
    if process.config.protect.on:
        raise ConfigError(
            "labels are protected ([protect]), and what columns are worth follows from labels without any noise: leave "
            "out --columns."
        )
    found = ColumnInquiry(process.server, process.prediction, process.data.labels).ask()
    found.worth.save(process.folder)
    return found


class ColumnInquiry:
    """Asks about columns, on validation rows, else on test rows."""

    def __init__(self, server: Server, prediction: JointPrediction, labels: Mapping[str, Tensor]) -> None:
        """Ask the parties behind `prediction`; the labels of held-out rows are given by split."""
        self.names = server.plan.names
        self.prediction = prediction
        self.split = split_of(labels, labels)
        if not self.split:
            raise ConfigError("there are no validation or test rows to see on which columns matter.")
        rows = len(labels[self.split])
        self.chosen = torch.arange(0, rows, step_of(rows))
        self.presence = server.plan.held_out_presence.get(self.split)
        parts = prediction.represent(self.split, rows)
        scored = scored_rows(server.fusion, parts, self.presence, labels[self.split]).every(step_of(rows))
        self.metric, function = main_metric(server.loss, scored)
        self.scorer = ColumnScorer(scored, function)

    def ask(self) -> ColumnFindings:
        """Return what was found, after all who took part were told."""
        known, refused = self._lists()
        values: dict[str, list[ValueEstimate]] = {name: [] for name in known}
        for number in range(max((of.count for of in known.values()), default=0)):
            for name, estimate in self._scored({n: of for n, of in known.items() if number < of.count}, number).items():
                values[name].append(estimate)
        numbers = {name: [numbers_of(e) for e in found] for name, found in values.items()}
        about = {"split": self.split, "rows": len(self.chosen), "metric": self.metric}
        self._tell({name: question({"columns": about | {"values": found}}) for name, found in numbers.items()})
        lists = {
            n: dict(zip(known[n].names, numbers[n], strict=True)) for n in self.names if n in known and known[n].names
        }
        named = {name: told(columns) for name, columns in lists.items()}
        unnamed = {name: of.count for name, of in known.items() if not of.names}
        return ColumnFindings(ColumnWorth(self.split, len(self.chosen), self.metric, named), unnamed, refused)

    def _lists(self) -> tuple[dict[str, ColumnList], dict[str, str]]:
        """Return the columns of those who agreed, and why the others do not take part."""

        def check(name: str, answer: bytes) -> None:
            with contextlib.suppress(DataError):
                ColumnList.read(name, answer)

        known, refused = {}, {}
        for name, answer in self.prediction.ask_all(
            dict.fromkeys(self.names, question({"columns": "list"})), check
        ).items():
            if not self._own_rows(name):
                refused[name] = f"{name} has none of the {len(self.chosen):,} {self.split} rows"
                continue
            try:
                known[name] = ColumnList.read(name, answer)
            except DataError as error:
                refused[name] = str(error)
        return known, refused

    def _own_rows(self, name: str) -> list[int]:
        """Return, by a party's own numbers, which of the rows that are looked at it has."""
        if self.presence is None:
            found: list[int] = self.chosen.tolist()
            return found
        mask = self.presence.masks[name]
        return (mask.cumsum(0) - 1)[self.chosen][mask[self.chosen]].tolist()

    def _scored(self, known: Mapping[str, ColumnList], number: int) -> dict[str, ValueEstimate]:
        rows = {name: self._own_rows(name) for name in known}

        def read(name: str, answer: bytes) -> Tensor:
            try:
                return read_answer(name, answer, len(rows[name]), self.prediction.widths[name])
            except DataError as error:
                raise ProtocolError(f"{name} does not represent rows that it holds: {error}") from error

        def check(name: str, answer: bytes) -> None:
            read(name, answer)

        asked = {n: question({"columns": number, "split": self.split, "rows": places}) for n, places in rows.items()}
        answers = self.prediction.ask_all(asked, check)
        return {name: self.scorer.score(self.names.index(name), read(name, answers[name])) for name in known}

    def _tell(self, questions: dict[str, bytes]) -> None:
        def check(name: str, answer: bytes) -> None:
            if answer != b"\x00":
                raise ProtocolError(f"expected {name} to take what its columns are worth, got {answer[:80]!r}.")

        self.prediction.ask_all(questions, check)

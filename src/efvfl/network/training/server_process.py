"""The label holder's process: train with whoever joins, save, and go on after any crash as if nothing had happened."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from efvfl.config.run_file import RunConfig
from efvfl.core.local_model import evaluating
from efvfl.data.tables.ids import normalise_texts
from efvfl.errors import AbsentError, DataError, Interrupted, ProtocolError
from efvfl.network import handshake
from efvfl.network.links.connections import ServerTimeouts
from efvfl.network.links.frame import Frame, unpack
from efvfl.network.links.message_log import MessageLog
from efvfl.network.links.requests import Requests
from efvfl.network.training.autosave import CHECKPOINT, CheckpointPolicy, load_own
from efvfl.network.training.participant import (
    CHUNK,
    QuestionHandler,
    build_party,
    build_server,
    make_plan,
    question,
    read_answer,
)
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.workers.worker_group import WorkerGroup, workers_of
from efvfl.runs.build import has_tables
from efvfl.runs.run_folder import Outputs, save_outputs, save_settings
from efvfl.training import measure
from efvfl.training.record import Record
from efvfl.training.schedule import Schedule
from efvfl.util import checkpoint
from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Kind, Message


class ServerProcess:
    """The server, its log and its links."""

    def __init__(
        self,
        config: RunConfig,
        holding: ParticipantData,
        folder: Path,
        patience: ServerTimeouts | None = None,
        wrote: Callable[[str, str, Frame], None] | None = None,
    ) -> None:
        """Go on from what the folder holds, or start."""
        self.config = config
        self.holding = holding
        self.folder = folder
        self.plan = make_plan(config, holding, folder)
        self.server = build_server(config, self.plan, holding)
        here = config.label_holder
        self.party = build_party(config, self.plan, holding, here) if here else None  # the label holder's own columns
        self.answerer = QuestionHandler(self.party, holding) if self.party else None
        self.about = handshake.about(config, "", holding.names, holding.trained_ids)
        self.saving = CheckpointPolicy(config.network)
        self.ledger = Ledger()
        self.message_log = MessageLog(folder / "log")
        self.requests = Requests(
            [name for name in holding.names if name != here],
            self.message_log,
            self.ledger,
            self._greet,
            self._check,
            patience,
            config.network.on_missing,
            wrote,
        )
        self.records: list[Record] = []
        self.finished = False
        self.seconds = 0.0  # of computing, the label holder's own party included
        self._losses: list[float] = []  # of the epoch under way
        self._absences: dict[str, list[list[int]]] = {}  # since the last record
        self._pending: list[dict[str, Message]] = []  # the requests that are out, oldest first
        self._observing = False  # all are answered, and parties hold
        if self.path.exists():
            self._load()

    @property
    def path(self) -> Path:
        """Where the server saves itself."""
        return self.folder / CHECKPOINT

    @property
    def workers(self) -> WorkerGroup | None:
        """Those who share the label holder's own computing, if there are any."""
        return workers_of(self.party) if self.party else None

    @property
    def pace(self) -> Schedule:
        """When parties hold, and how much is under way until then."""
        config = self.config
        return Schedule(self.plan.batches.per_epoch, config.epochs, config.observe_every, self.plan.agreement.window)

    @property
    def steps(self) -> int:
        """How many steps the run has."""
        return self.pace.steps

    def _greet(self, name: str, table: dict[str, Any], position: int) -> None:
        """Refuse a party that does not fit."""
        handshake.compare(self.about, table)
        if position != self.requests.number or self._has_left(name):
            return
        if table.get("memory") != self.server.channels[name].digest():
            raise ProtocolError(
                f"the server and {name} have both handled {position} requests but do not remember the same of what was "
                "sent: one of the folders belongs to another run. Start all anew in empty folders, or restore them."
            )

    def _has_left(self, name: str) -> bool:
        """Whether a step went without a party, whose memory SYNC has yet to mend."""
        synced = bool(self._pending) and name in self._pending[0] and self._pending[0][name].kind == Kind.SYNC
        return synced or name in self.server.attendance.away

    def _check(self, name: str, reply: Message) -> None:
        self.server.check(name, reply, self._pending[0][name])

    def _load(self) -> None:
        state = load_own(self.path, self.about)
        self.server.load_state_dict(state["server"])
        if self.party:
            self.party.load_state_dict(state["party"])
        self.ledger.load_state_dict(state["ledger"])
        self.records = [Record.from_json(line) for line in state["records"]]
        self._losses = [float(loss) for loss in state["losses"]]
        self.requests.number = self.requests.durable = int(state["number"])
        self.seconds = float(state["seconds"])
        self.finished, self._observing = bool(state["finished"]), bool(state["observing"])
        self.requests.saved = set(state["informed"]) if self.finished else set()
        self.requests.left, self.requests.known = {n: int(at) for n, at in state["left"].items()}, set(state["known"])
        self._absences = {name: [list(span) for span in spans] for name, spans in state["absences"].items()}
        if self.finished and self.server.step_number < self.steps:  # the file asks for more epochs than before
            self.finished, self.requests.saved = False, set()
            self._begin()
        elif not self.finished and not self._observing:
            out = range(self.requests.number, self.requests.number + int(state["out"]))
            self._pending = [unpack(self.message_log.read(number)) for number in out]

    def save(self) -> None:
        """Leave everything on disk that is needed to go on."""
        self._learn()
        self.message_log.settle()
        state = {
            "about": self.about,
            "server": self.server.state_dict(),
            "party": self.party.state_dict() if self.party else {},
            "ledger": self.ledger.state_dict(),
            "records": [record.to_json() for record in self.records],
            "losses": self._losses,
            "number": self.requests.number,
            "out": len(self._pending),
            "seconds": self.seconds,
            "finished": self.finished,
            "observing": self._observing,
            "informed": sorted(self.requests.saved),
            "left": dict(self.requests.left),
            "known": sorted(self.requests.known),
            "absences": self._absences,
        }
        checkpoint.save(self.path, state)
        self.requests.durable = self.requests.number
        self.saving.done()

    def _begin(self) -> None:
        """Make requests for as many steps as begin now."""
        for ahead in range(self.pace.begins(self.server.step_number)):
            self._stage(self.server.begin(ahead), hold=False)

    def _stage(self, messages: dict[str, Message], hold: bool) -> None:
        """Make these the next request, to which those are added who are back after having been away."""
        messages |= {
            name: self.server.rejoin(name, hold) for name in self.requests.back() if name in self.server.attendance.away
        }
        self.requests.stage(messages, len(self._pending))
        self._pending.append(messages)

    def train(self) -> Iterator[Record]:
        """Train to the end, or on to it; yield a record of every observed epoch."""
        try:
            while not self.finished:
                if self.requests.stopping.is_set():
                    raise Interrupted
                record = self.advance()
                if record:
                    yield record
                self.requests.on_tick()
        finally:
            if sys.exc_info()[0] in (None, Interrupted, AbsentError):
                self.save()

    def advance(self) -> Record | None:
        """Have the oldest request that is out answered, and make the next one; return a record if one was due."""
        if not self._observing:
            self._advance()
        if not self._observing:
            return None
        record = self._observe()
        self._observing = False
        self.finished = self.server.step_number >= self.steps
        if not self.finished:
            self._begin()
            self.save()  # before the parties train on: what was observed could not be observed again
        return record

    def _advance(self) -> None:
        if not self._pending:
            self._begin()
        replies = self._exchange()
        asked = self._pending.pop(0)
        for name in set(asked) - set(replies):
            self.server.leave(name)
        if not any(message.hold for message in asked.values()):
            hold = self.pace.hold(self.server.step_number)
            self._stage(self._step(replies, hold), hold)
        self._observing = not self._pending

    def _note_absence(self) -> None:
        for name in self.server.attendance.away:
            spans = self._absences.setdefault(name, [])
            step = self.server.step_number
            if spans and spans[-1][1] >= step - 1:
                spans[-1][1] = step
            else:
                spans.append([step, step])

    def _exchange(self) -> dict[str, Message]:
        """Let the parties answer; while they are at it the server learns and saves, and the label holder's own does."""
        for messages in self._pending[self.requests.under_way :]:
            self.requests.send({name: message for name, message in messages.items() if name in self.requests.names})
        self._learn()
        if self.saving.due(self.requests.number - self.requests.durable):
            self.save()
        own: dict[str, Message] = {}
        if self.party:
            started = time.perf_counter()
            own = {self.party.name: self.party.handle(self._pending[0][self.party.name])}
            self.seconds += time.perf_counter() - started
        return self.requests.collect() | own

    def _step(self, replies: Mapping[str, Message], hold: bool) -> dict[str, Message]:
        self._note_absence()
        step, pace = self.server.step_number, self.pace
        started = time.perf_counter()
        messages = self.server.respond(replies, hold)
        self.seconds += time.perf_counter() - started
        if self.server.took_part:
            self._losses.append(self.server.surrogate_loss)
        if self.server.step_number % pace.per_epoch == 0 and not pace.observed(step):
            self._losses = []
        return messages

    def _learn(self) -> None:
        started = time.perf_counter()
        self.server.learn()
        self.seconds += time.perf_counter() - started

    def _observe(self) -> Record:
        """Measure where training stands, as far as one can without seeing the parties' rows."""
        loss, scores = self.server.loss, {}
        outputs: dict[str, Outputs] = {}
        for split in ("validation", "test"):
            if split in self.holding.labels and not self.server.attendance.away:
                labels = self.holding.labels[split]
                with contextlib.suppress(AbsentError):  # without all parties there is nothing to score
                    outputs[split] = Outputs(self.holding.ids[split], labels, self.predict_split(split))
                    scores[split] = measure.scores(outputs[split].output, labels, loss)
        if self.server.step_number >= self.steps:
            self._leave_for_report(outputs)
        record = Record(
            epoch=self.server.step_number // self.plan.batches.per_epoch,
            step=self.server.step_number,
            surrogate_loss=sum(self._losses) / len(self._losses) if self._losses else float("nan"),
            validation=scores.get("validation", {}),
            test=scores.get("test", {}),
            bytes_up=self.ledger.total("up"),
            bytes_down=self.ledger.total("down"),
            ledger=self.ledger.table(),
            absent=self._absences,
            seconds=self.seconds + self.requests.waited,
        )
        self._absences = {}
        self.records.append(record)
        self._losses = []
        return record

    def _leave_for_report(self, outputs: dict[str, Outputs]) -> None:
        """Write what a report of the whole run is made from."""
        if outputs:
            save_outputs(self.folder, outputs)
        widths = dict(zip(self.holding.names, self.plan.widths, strict=True))
        rows = {split: len(ids) for split, ids in self.holding.trained_ids.items()}
        save_settings(self.folder, self.config, widths, rows, self.server.block.size())

    def finish(self) -> set[str]:
        """Tell the parties that all is done; return those that could not be told. They may join later."""
        absent = self.requests.finish()
        self.save()
        return absent

    def in_one_form(self, ids: list[str]) -> list[str]:
        """Return ids as alignment compares them; the rows of arrays have theirs as they are."""
        return normalise_texts(ids, self.config.data.id_format) if has_tables(self.config) else ids

    def predict_split(self, split: str) -> Tensor:
        """Return the network's output on the rows of a split."""
        rows = len(self.holding.ids[split])
        spans = [(start, min(start + CHUNK, rows)) for start in range(0, rows, CHUNK)]
        return torch.cat([self._output({"split": split, "start": a, "stop": b}, b - a) for a, b in spans])

    def predict(self, ids: list[str]) -> Tensor:
        """Return the network's output on the rows of these ids, in their order."""
        parts = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
        return torch.cat([self._output({"ids": part}, len(part)) for part in parts])

    def _output(self, table: dict[str, Any], rows: int) -> Tensor:
        asked, widths = question(table), dict(zip(self.holding.names, self.plan.widths, strict=True))

        def check(name: str, answer: bytes) -> None:
            try:
                read_answer(name, answer, rows, widths[name])
            except DataError as error:
                if "ids" not in table:  # rows that all hold, or they would not be here
                    raise ProtocolError(f"{name} does not represent rows that it holds: {error}") from error

        answers = self.requests.ask(dict.fromkeys(self.requests.names, asked), check)
        if absent := sorted(set(self.requests.names) - set(answers)):
            raise AbsentError(f"{', '.join(absent)} cannot be asked now: prediction needs all parties.")
        if self.party and self.answerer:
            answers[self.party.name] = self.answerer(asked)[1]
        fusion = self.server.fusion
        parts = [read_answer(name, answers[name], rows, width) for name, width in widths.items()]
        with torch.no_grad(), evaluating([fusion]):
            output: Tensor = fusion(parts)
        return output

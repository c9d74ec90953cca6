"""The training loop: one driver, whatever the transport. It runs steps and makes records of them.

A step over a transport: collect the reports, absorb and answer them, post the answers, and let the server learn while
they travel. With a pipeline, the reports on the next steps are under way meanwhile. A party that is back after it was
away takes part again when no step is under way: with a pipeline, no further step begins until then. Where held-out rows
are evaluated by messages, examination.py has further requests before a record is made. With asynchronous parties a step
is taken when arrivals.py says that enough have reported; before a record it waits for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from efvfl.core import label_account
from efvfl.core.label_account import Spent
from efvfl.core.server import Server
from efvfl.errors import ConfigError
from efvfl.training.arrivals import Arrivals
from efvfl.training.callbacks import Callback, TrainingStep
from efvfl.training.examination import Examination
from efvfl.training.record import NAN, Observation, Record
from efvfl.training.schedule import Schedule
from efvfl.training.step_notes import StepNotes
from efvfl.training.stopping import Stopping
from efvfl.training.transport import Transport
from efvfl.wire.ledger import copies
from efvfl.wire.message import Message

Observer = Callable[[], Observation]


def _examination(server: Server, stopping: Stopping) -> Examination | None:
    """Return what evaluates held-out rows by messages, if something does."""
    if (stopping.patience or stopping.plateau) and "validation" not in server.plan.held_out:
        raise ConfigError(
            "expected validation rows, by which patience and ReduceLROnPlateau decide, got none: set data.validation "
            "above 0 in a run file, give `validation` to federate, or leave both out."
        )
    return Examination(server, server.evaluation, stopping) if server.evaluation else None


class Driver:
    """Trains a server with the parties behind a transport."""

    def __init__(
        self,
        server: Server,
        transport: Transport,
        pause: Callable[[], None] = lambda: None,
        patience: int = 0,
    ) -> None:
        """Drive this server; `pause` is called while messages travel, such as to save everything.

        Where held-out rows are evaluated by messages, training stops after `patience` epochs without a better loss, and
        the best model is kept; 0: it does not, and the last one is.
        """
        self.server = server
        self.examination = _examination(server, Stopping(patience, server.plan.optimizer))
        self.transport = transport
        self.pause = pause
        self.callbacks: Sequence[Callback] = ()
        self.notes = StepNotes()  # of every n-th step, for records
        self.spent: Callable[[], Spent] = lambda: label_account.spent(server)  # on what is protected
        self.simulated: Callable[[], float] = lambda: NAN  # seconds of a simulated clock
        self.asked: Callable[[], bool] = lambda: False  # whether `run` is to end at the next step
        self.seconds = 0.0  # wall time of the steps
        self.computing = 0.0  # seconds of it that the server itself computed, in this process
        self.paper_bits = 0
        self.copies: float = 0  # bytes of what several parties were sent, beyond the first copy; NaN: not known
        self.arrivals = Arrivals(server.plan.names)  # whose reports each step took, where parties are asynchronous
        self._losses: list[float] = []  # of the epoch under way
        self._absent: dict[str, list[list[int]]] = {}  # since the last record
        self._due = False  # a record is, as soon as those who hold have said so
        self._end = (0, 0)  # somebody asked to end after so many steps, when a run had so many epochs
        self._draining = False  # no step begins until none is under way, because somebody is back

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.server.step_number // self.server.batches.per_epoch

    @property
    def _begun(self) -> int:
        """Epochs begun: those done, but where training is ended within one."""
        return -(-self.server.step_number // self.server.batches.per_epoch)

    @property
    def reports(self) -> int:
        """How many steps are under way: those that parties were asked to report on."""
        return sum(not request.hold for request in self.transport.under_way)

    @property
    def between_steps(self) -> bool:
        """Whether all that is under way are reports, which parties save: a state taken now can be gone on from."""
        waiting = self.examination is not None and self.examination.waiting
        return not (self._due or waiting or any(request.hold for request in self.transport.under_way))

    def end_here(self, epochs: int) -> None:
        """End a run of so many epochs at the next step, or, with a pipeline, after those that have begun.

        Messages follow from it: over a network it must be saved before the next one is sent.
        """
        self._end = (self.server.step_number + max(1, self.reports), epochs)

    def within(self, schedule: Schedule) -> Schedule:
        """Return the schedule as far as it is to be followed: to where somebody ended it, unless it has more epochs."""
        step, epochs = self._end
        return replace(schedule, end=step) if step and schedule.epochs <= epochs else schedule

    def finished(self, schedule: Schedule) -> bool:
        """Whether all steps of a schedule are done, or enough of them, and the last record is made."""
        schedule = self.within(schedule)
        over = self.examination is not None and self.examination.stopping.over
        return (over or self.server.step_number >= schedule.steps) and not self._due

    def run(self, schedule: Schedule, observe: Observer) -> Iterator[Record]:
        """Train to the end of a schedule, and yield a record of every epoch that is observed."""
        while not self.finished(schedule):
            if not self.within(schedule).end and self.asked():
                self.end_here(schedule.epochs)
            if record := self.advance(schedule, observe):
                yield record

    def advance(self, schedule: Schedule, observe: Observer) -> Record | None:
        """Take the replies to the oldest request, and do what they allow; return the record if one is due."""
        schedule = self.within(schedule)
        if not self._due or self._holding():
            step = self.server.step_number
            hold = schedule.hold(step) or self.reports > schedule.window  # it may have shrunk
            self._exchange(hold, schedule.begins(step), schedule.observed(step))
        if not self._due or self._holding():
            return None
        if self.examination and (asked := self.examination.next(self._begun, self._is_last(schedule))):
            self._post(asked, hold=True)
            return None
        record = replace(self.record(observe, schedule.window), steps=self.notes.take())
        if schedule.end and self._is_last(schedule):
            record = replace(record, asked=True)
        self._due, self._absent = False, {}
        for callback in self.callbacks:
            callback.on_epoch(record)
        return record

    def _is_last(self, schedule: Schedule) -> bool:
        return self.server.step_number >= schedule.steps

    def step(self, hold: bool, begins: int) -> float:
        """Run one step and return the loss on surrogates; `hold` and `begins` as a schedule gives them."""
        while self._holding():
            self._exchange(hold, begins)
        self._exchange(hold, begins)
        while self._holding():
            self._exchange(hold, begins)
        return self.server.surrogate_loss

    def record(self, observe: Observer, window: int) -> Record:
        """Return where training stands, with so many steps under way at a time."""
        ledger, seen = self.transport.ledger, vars(observe())
        return Record(
            epoch=self._begun if self._due else self.epoch,
            step=self.server.step_number,
            surrogate_loss=sum(self._losses) / len(self._losses) if self._losses else float("nan"),
            **seen | (self.examination.close() if self.examination else {}),
            bytes_up=ledger.total("up"),
            bytes_down=ledger.total("down"),
            ledger=ledger.table(),
            paper_bits=self.paper_bits,
            bytes_down_once=ledger.total("down") - self.copies,
            absent=self._absent,
            seconds=self.seconds,
            window=window,
            kept=self.examination.stopping.kept if self.examination else NAN,
            spent=self.spent(),
            simulated_seconds=self.simulated(),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what the driver itself must save; the server, the parties and the transport have their own."""
        return {
            "losses": list(self._losses),
            "seconds": self.seconds,
            "paper_bits": self.paper_bits,
            "copies": self.copies,
            "absent": self._absent,
            "due": self._due,
            "end": list(self._end),
            "draining": self._draining,
            "examination": self.examination.state_dict() if self.examination else {},
            "arrivals": self.arrivals.state_dict(),
            "notes": self.notes.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._losses = [float(loss) for loss in state["losses"]]
        self.seconds, self.paper_bits = float(state["seconds"]), int(state["paper_bits"])
        self.copies = state.get("copies", NAN)  # earlier states have none
        self._absent = {name: [list(span) for span in spans] for name, spans in state["absent"].items()}
        self._due, self._draining = bool(state["due"]), bool(state["draining"])
        step, epochs = state.get("end", (0, 0))
        self._end = (int(step), int(epochs))
        self.arrivals.load_state_dict(state.get("arrivals", []))
        if "notes" in state:  # earlier states have none
            self.notes.load_state_dict(state["notes"])
        if self.examination:
            self.examination.load_state_dict(state["examination"])

    def _holding(self) -> bool:
        """Whether the oldest request under way tells parties to hold: no step follows from its replies."""
        under_way = self.transport.under_way
        return bool(under_way) and under_way[0].hold

    def _exchange(self, hold: bool, begins: int, observed: bool = False) -> None:
        """Take the replies to the oldest request; if they are reports, answer them."""
        started = time.perf_counter()
        self._draining = self._draining and bool(self.transport.under_way)
        if not self._holding() and not self._draining:
            # With nobody here, the step that somebody is waited for is enough.
            for ahead in range(self.reports, begins if self.server.attendance.here else 1):
                self._post(self.server.begin(ahead), hold=False)
        request = self.transport.under_way[0]
        enough = None
        if self.server.attendance.asynchronous and not request.hold:
            enough = self.arrivals.enough(self.server, hold, self.transport.here)
        replies = self.transport.collect(enough)
        for name in request.names.difference(replies):
            self.server.leave(name)
        if self.examination and self.examination.waiting:
            self.examination.take(replies)
            return
        if not request.hold:
            if not hold and self.reports and (not replies or self.transport.returning()):
                self._draining = True
            self._respond(replies, hold or self._draining)
            self._due = observed
        self.seconds += time.perf_counter() - started
        if (self.callbacks or self.notes.every) and not request.hold:
            self._tell_of_step()
        if self.transport.under_way:
            self.pause()

    def _respond(self, replies: Mapping[str, Message], hold: bool) -> None:
        """Take a step: absorb the reports, post the answers, and learn while they travel."""
        server, step = self.server, self.server.step_number
        if step % server.batches.per_epoch == 0:
            self._losses = []  # not before: a record may be taken after the last step of an epoch
        self._note_absences(step)
        if server.attendance.asynchronous:
            self.arrivals.note(step, replies)
        started = time.perf_counter()
        messages = server.respond(replies, hold)
        self.computing += time.perf_counter() - started
        self._count(replies)
        if server.took_part:
            self._losses.append(server.surrogate_loss)
        self._post(messages, hold)
        started = time.perf_counter()
        server.learn()
        self.computing += time.perf_counter() - started

    def _tell_of_step(self) -> None:
        server, ledger = self.server, self.transport.ledger
        totals = ledger.total("up"), ledger.total("down")
        rows = server.batches.rows(server.step_number - 1)
        step = TrainingStep(server.step_number, self.epoch, server.surrogate_loss, *totals, self.seconds, rows)
        for callback in (self.notes, *self.callbacks):
            callback.on_step(step)

    def _post(self, messages: dict[str, Message], hold: bool) -> None:
        """Post a request, to which those are added that are back after having been away, if no step is under way."""
        back = (
            [name for name in self.transport.back() if name in self.server.attendance.away] if not self.reports else []
        )
        messages = messages | {name: self.server.rejoin(name, hold) for name in back} if back else messages
        self.copies += copies(messages, self.transport.here)
        if messages or not hold:  # with nobody here there is nobody to hold
            self.transport.post(messages)

    def _note_absences(self, step: int) -> None:
        for name in self.server.attendance.away:
            spans = self._absent.setdefault(name, [])
            if spans and spans[-1][1] >= step - 1:
                spans[-1][1] = step
            else:
                spans.append([step, step])

    def _count(self, replies: Mapping[str, Message]) -> None:
        """Add the paper's count of the reports."""
        sent = [name for name in replies if name not in self.transport.here]
        for name in sent:
            packets = replies[name].packets.get(self.server.plan.number(name), ())
            if packets:
                self.paper_bits += self.server.channels[name].paper_bits_received(packets, replies[name].step)

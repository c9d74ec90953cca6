"""A party's side of the protocol, without any wire: a frame comes in, a frame goes out.

The party decides: what it computes with, and how much it is ready to send, are in its own file. A request is handled
once; if it comes again, the reply is the same bytes again, from the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from efvfl.config.run_file import LimitConfig
from efvfl.core.party import Party
from efvfl.errors import LimitError, ProtocolError, WireError
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.message_log import MessageLog
from efvfl.network.training.autosave import CHECKPOINT, CheckpointPolicy, load_own, save_own
from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Kind, Message


class PartyProcess:
    """Answers the server's frames."""

    def __init__(
        self,
        party: Party,
        folder: Path,
        about: dict[str, Any],
        represent: Callable[[bytes], tuple[int, bytes]],
        limits: LimitConfig | None = None,
        saving: CheckpointPolicy | None = None,
    ) -> None:
        """Go on from what the folder holds, or start.

        `about` is what HELLO says of this party; `represent` turns a question into the number of rows and an answer.
        """
        self.party = party
        self.folder = folder
        self.about = about
        self.represent = represent
        self.limits = limits or LimitConfig()
        self.saving = saving or CheckpointPolicy()
        self.message_log = MessageLog(folder / "log")
        self.ledger = Ledger()
        self.handled = 0
        self.durable = 0  # the checkpoint covers all requests below this one
        self.rows_given = 0
        self.finished = False
        self._asked: tuple[int, bytes] = (-1, b"")  # the last question, and how many requests were handled then
        self._settled = 0  # this link's server has saved all requests below this one
        self._given = b""
        self.seconds = 0.0  # of computing
        if self.path.exists():
            self._load()

    @property
    def name(self) -> str:
        """The party's."""
        return self.party.name

    @property
    def path(self) -> Path:
        """Where this party saves itself."""
        return self.folder / CHECKPOINT

    def _load(self) -> None:
        state = load_own(self.path, self.about)
        self.party.load_state_dict(state["party"])
        self.ledger.load_state_dict(state["ledger"])
        self.handled = self.durable = int(state["handled"])
        self.rows_given = int(state["rows_given"])
        self.finished = bool(state["finished"])

    def save(self) -> None:
        """Leave everything on disk that is needed to go on."""
        self.message_log.settle()
        state = {
            "party": self.party.state_dict(),
            "ledger": self.ledger.state_dict(),
            "handled": self.handled,
            "rows_given": self.rows_given,
            "finished": self.finished,
        }
        save_own(self.path, self.about, state)
        self.durable = self.handled
        self.saving.done()

    def save_if_due(self) -> None:
        """Save after so many steps or seconds; called when the answer is on its way, while the server computes."""
        steps = self.handled - self.durable
        if steps and self.saving.due(steps):
            self.save()

    def hello(self) -> Frame:
        """Return the first frame of a connection."""
        self._settled = 0
        table = self.about | {"memory": self.party.up.digest(), "step": self.party.step}
        return json_frame(FrameKind.HELLO, table, self.handled, self.durable)

    def respond(self, frame: Frame) -> Frame | None:
        """Answer a REQUEST, an ASK or STOP; None for a late copy of what was settled long ago."""
        if frame.kind == FrameKind.REQUEST:
            self._settled = max(self._settled, frame.durable)
            if frame.number < min(self.handled, self._settled) and frame.number not in self.message_log:
                return None
            if self.handled < frame.number < self.handled + self.party.open.window:
                return None  # it has overtaken another one, and both will be sent again
            body = self._handle(frame)
            self.message_log.forget(min(frame.durable, self.durable))  # what is computed again is compared with it
            return Frame(FrameKind.REPLY, frame.number, self.durable, body)
        if frame.kind == FrameKind.ASK:
            return Frame(FrameKind.ANSWER, frame.number, self.durable, self._answer(frame))
        if frame.kind == FrameKind.STOP:
            if frame.number != self.handled:
                raise ProtocolError(
                    f"expected STOP after request {self.handled}, got one after request {frame.number}."
                )
            self.finished = True
            self.save()
            return Frame(FrameKind.BYE, self.handled, self.durable)
        raise ProtocolError(f"a server does not send {frame.kind.name} here.")

    def _handle(self, frame: Frame) -> bytes:
        if frame.number < self.handled:
            return self.message_log.read(frame.number)
        try:
            message = Message.from_bytes(frame.body)
        except WireError as error:
            raise ProtocolError(f"request {frame.number} is not a message: {error}") from error
        if frame.number > self.handled and message.kind != Kind.SYNC:  # others were asked things while it was away
            raise ProtocolError(f"expected request {self.handled}, got request {frame.number}.")
        reported = message.step + (0 if message.kind in (Kind.BEGIN, Kind.SYNC) else self.party.open.window)
        if self.limits.steps and not message.hold and reported >= self.limits.steps:
            raise LimitError(f"{self.party.name} takes part in {self.limits.steps:,} steps, as its own file says.")
        started = time.perf_counter()
        try:
            reply = self.party.handle(message)
        except WireError as error:  # not the link's fault: to dial again would bring the same
            raise ProtocolError(f"request {frame.number} cannot be read: {error}") from error
        body = reply.to_bytes()
        self.seconds += time.perf_counter() - started
        if self.limits.bytes and (sent := self.ledger.total("up") + len(body)) > self.limits.bytes:
            raise LimitError(
                f"the answer to request {frame.number} would bring what {self.party.name} sent to {sent:,} bytes, and "
                f"its own file allows {self.limits.bytes:,}."
            )
        self.message_log.append(frame.number, body, gap=message.kind == Kind.SYNC)
        self.ledger.record("down", self.party.name, message, len(frame.body))
        self.ledger.record("up", self.party.name, reply, len(body))
        self.handled = frame.number + 1
        return body

    def _answer(self, frame: Frame) -> bytes:
        """Answer a question; one that comes twice gets the same answer, and counts once."""
        if self._asked != (self.handled, frame.body):
            self._given = self._represent(frame.body)
            self._asked = (self.handled, frame.body)
        return self._given

    def _represent(self, question: bytes) -> bytes:
        rows, answer = self.represent(question)
        given = self.rows_given + rows
        if self.limits.rows and given > self.limits.rows:
            raise LimitError(
                f"exact representations of {given:,} rows are asked for in all, and the file of "
                f"{self.party.name} allows {self.limits.rows:,}."
            )
        self.rows_given = given
        if self.limits.rows:
            self.save()  # before they leave: a crash must not make it forget how many it gave
        return answer

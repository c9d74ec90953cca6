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
from efvfl.network import handshake
from efvfl.network.links.frame import DIGEST, Frame, FrameKind, digest_of, json_frame
from efvfl.network.links.message_log import MessageLog
from efvfl.network.training.autosave import CHECKPOINT, CheckpointPolicy, load_own, save_own
from efvfl.network.training.questions import QuestionHandler
from efvfl.runs import spent_file
from efvfl.util import checkpoint
from efvfl.util.durable_count import DurableCount
from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Kind, Message

# What limits.rows is if the file leaves it out: enough for predictions now and then, not for copying every state.
ROWS_FOR_EACH = 10
LEAST_ROWS = 100_000


class PartyProcess:
    """Answers the server's frames."""

    def __init__(
        self,
        party: Party,
        folder: Path,
        about: dict[str, Any],
        represent: QuestionHandler,
        limits: LimitConfig | None = None,
        saving: CheckpointPolicy | None = None,
        own: dict[str, Any] | None = None,
    ) -> None:
        """Go on from what the folder holds, or start.

        `about` is what HELLO says of this party; `represent` turns a question into the number of rows and an answer.
        `own` are settings that stay here, and must be those of the checkpoint.
        """
        self.party = party
        self.folder = folder
        self.about = about
        self.own = own or {}
        self.represent: Callable[[bytes], tuple[int, bytes]] = represent
        self.rows_held = len(represent.places)
        self.limits = limits or LimitConfig()
        self.saving = saving or CheckpointPolicy()
        self.message_log = MessageLog(folder / "log")
        self.ledger = Ledger()
        self.handled = 0
        self.saved = 0  # the last checkpoint covers all requests below this one
        self.durable = 0  # so does the one before it, which is kept too
        self.rows_given = DurableCount(folder / "rows.json")
        self.finished = False
        self.diverged = False  # the server does not remember the same at the end
        self.memory = ""  # a digest of what both remember, once all is done
        self._request = ""  # a digest of the last request that was handled
        self._asked: tuple[int, bytes] = (-1, b"")  # the last question, and how many requests were handled then
        self._server_durable = 0  # the server at the other end has saved all requests below this one
        self._given = b""
        self.seconds = 0.0  # of computing
        party.may_report = self._may_report
        if party.noise and self.limits.epsilon:
            party.noise.allow(self.limits.epsilon)
        if checkpoint.exists(self.path):
            self._load()

    @property
    def name(self) -> str:
        """The party's."""
        return self.party.name

    @property
    def rows_allowed(self) -> int:
        """How many rows it gives by id in all; 0: no limit."""
        return max(ROWS_FOR_EACH * self.rows_held, LEAST_ROWS) if self.limits.rows is None else self.limits.rows

    @property
    def path(self) -> Path:
        """Where this party saves itself."""
        return self.folder / CHECKPOINT

    def _load(self) -> None:
        state = load_own(self.path, self.about | {"own": self.own})
        self.party.load_state_dict(state["party"])
        self.ledger.load_state_dict(state["ledger"])
        self.handled = self.saved = int(state["handled"])
        self.durable, self._request = int(state["before"]), str(state["request"])
        self.finished, self.memory = bool(state["finished"]), str(state["memory"])

    def save(self) -> None:
        """Leave everything on disk that is needed to go on."""
        self.message_log.flush()
        state = {
            "party": self.party.state_dict(),
            "ledger": self.ledger.state_dict(),
            "handled": self.handled,
            "finished": self.finished,
            "before": self.saved,
            "request": self._request,
            "memory": self.memory,
        }
        save_own(self.path, self.about | {"own": self.own}, state)
        spent_file.save(self.folder, self.party.noise.spent() if self.party.noise else {})
        self.saved, self.durable = self.handled, self.saved
        self.saving.done()

    def save_if_due(self) -> None:
        """Save after so many steps or seconds; called when the answer is on its way, while the server computes."""
        steps = self.handled - self.saved
        if steps and self.saving.due(steps):
            self.save()

    def hello(self) -> Frame:
        """Return the first frame of a connection."""
        self._server_durable = 0
        table = self.about | {"memory": self.party.digests(), "step": self.party.step, "asked": self._request}
        return json_frame(FrameKind.HELLO, table, self.handled, self.durable)

    def respond(self, frame: Frame) -> Frame | None:
        """Answer a REQUEST, an ASK or STOP; None for a late copy of what both ends have saved."""
        if frame.kind == FrameKind.REQUEST:
            self._server_durable = max(self._server_durable, frame.durable)
            if frame.number < min(self.handled, self._server_durable) and frame.number not in self.message_log:
                return None
            if self._has_overtaken(frame):
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
            digest = handshake.memory_digest(self.party.digests())
            self.diverged = bool(frame.body) and frame.body != digest
            self.finished, self.memory = not self.diverged, "" if self.diverged else digest.hex()
            self.save()
            return Frame(FrameKind.BYE, self.handled, self.durable, digest)
        raise ProtocolError(f"a server does not send {frame.kind.name} here.")

    def _has_overtaken(self, frame: Frame) -> bool:
        """Whether a request of a pipeline is here before another one; SYNC may leave a gap."""
        if not self.handled < frame.number < self.handled + self.party.open.window:
            return False
        try:
            return Message.from_bytes(frame.body).kind != Kind.SYNC
        except WireError:
            return True

    def _handle(self, frame: Frame) -> bytes:
        asked = digest_of(frame.body)
        if frame.number < self.handled or frame.number in self.message_log:
            entry = self.message_log.read(frame.number)
            if entry[:DIGEST] != asked:
                raise ProtocolError(
                    f"request {frame.number} differs from the one that was answered before: the server's folder was "
                    "restored from an old copy, its disk lost what it had confirmed, or its settings or labels have "
                    "changed. Put its newest folder back, or start all anew in empty folders."
                )
            if frame.number < self.handled:
                return entry[DIGEST:]
        try:
            message = Message.from_bytes(frame.body)
        except WireError as error:
            raise ProtocolError(f"request {frame.number} is not a message: {error}") from error
        # Others were asked things while it was away, or while its report was late.
        skips = message.kind == Kind.SYNC or self.party.plan.agreement.asynchronous.on
        if frame.number > self.handled and not skips:
            raise ProtocolError(f"expected request {self.handled}, got request {frame.number}.")
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
        # Numbers were checked above. There may be a gap: after SYNC, and where a damaged end of the log was dropped.
        self.message_log.append(frame.number, asked + body, gap=True)
        self.ledger.record("down", self.party.name, message, len(frame.body))
        self.ledger.record("up", self.party.name, reply, len(body))
        self.handled, self._request = frame.number + 1, asked.hex()
        return body

    def _answer(self, frame: Frame) -> bytes:
        """Answer a question; one that comes twice gets the same answer, and counts once."""
        if self._asked != (self.handled, frame.body):
            self._given = self._represent(frame.body)
            self._asked = (self.handled, frame.body)
        return self._given

    def _may_report(self, step: int) -> None:
        """Refuse to report on a step that this party's own file does not allow."""
        if self.limits.steps and step >= self.limits.steps:
            raise LimitError(f"{self.party.name} takes part in {self.limits.steps:,} steps, as its own file says.")

    def _represent(self, question: bytes) -> bytes:
        if noise := self.party.noise:
            if not self.finished:
                raise LimitError(f"{self.party.name} protects its rows, and gives none by id before training is over.")
            if noise.begin_predictions(self.party.step):
                self.save()  # before they leave
        rows, answer = self.represent(question)
        given, allowed = self.rows_given.value + rows, self.rows_allowed
        if allowed and given > allowed:
            raise LimitError(
                f"exact representations of {given:,} rows are asked for in all, and the file of "
                f"{self.party.name} allows {allowed:,}: to give more, raise limits.rows there."
            )
        if rows:
            self.rows_given.add(rows)  # before they leave: a crash must not make it forget how many it gave
        return answer

"""Questions to parties that change nothing: each is asked once a connection is idle, and none is logged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from efvfl.errors import ProtocolError
from efvfl.network.links.connections import Connection, Connections, Hooks, ServerTimeouts
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.links.posted import LocalParty
from efvfl.network.links.presence import Presence


class Asking(Connections):
    """Connections over which questions are asked, one at a time, beside whatever else they carry."""

    def __init__(
        self,
        presence: Presence,
        timeouts: ServerTimeouts | None = None,
        hooks: Hooks | None = None,
        local: Mapping[str, LocalParty] | None = None,
    ) -> None:
        """Serve the parties that are expected, and those in this process."""
        super().__init__(presence, timeouts, hooks)
        self.local = local or {}
        self._question: dict[str, bytes] = {}
        self._asked = 0
        self._answers: dict[str, bytes] = {}
        self._check_answer: Callable[[str, bytes], None] = lambda name, answer: None

    def ask(
        self,
        questions: Mapping[str, bytes],
        check: Callable[[str, bytes], None] = lambda name, answer: None,
        over: Callable[[], bool] = lambda: False,
    ) -> dict[str, bytes]:
        """Ask parties something that changes nothing; return their answers, without those of parties that are away.

        `check` refuses an answer by raising. Once `over`, answers that are still to come are not waited for.
        """
        self._question = {name: asked for name, asked in questions.items() if name not in self.local}
        self._answers, self._check_answer = {}, check
        self._asked += 1
        self._advance()
        own = {name: party.answer(questions[name]) for name, party in self.local.items() if name in questions}
        for name, answer in own.items():
            check(name, answer)
        self._wait(lambda: self._given_up(set(self._question) - set(self._answers)) or over())
        self._question = {}
        return self._answers | own

    def _answer(self, connection: Connection, frame: Frame) -> None:
        asked = connection.asked(FrameKind.ASK, frame.number)
        if asked is None:
            if frame.number <= self._asked:
                return  # repeated on its way
            raise ProtocolError(f"{connection.name} sent answer {frame.number}, which nobody asked for.")
        connection.waiting.remove(asked)
        if frame.number == self._asked and connection.name in self._question:
            self._check_answer(connection.name, frame.body)
            self._answers[connection.name] = frame.body
        self.presence.answered(connection.name)
        self._next(connection)

    def _given_up(self, names: Iterable[str]) -> bool:
        """Whether nobody of these is waited for: the step, question or end goes without them."""
        return self.presence.gone(names) or self.presence.given_up(names, self.timeouts.stale)

    def _advance(self) -> None:
        for connection in list(self.connections.values()):
            self._next(connection)

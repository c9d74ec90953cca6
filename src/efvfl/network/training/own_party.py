"""The label holder's own party: it sits in the server's process, and nothing of it is sent."""

from __future__ import annotations

import time

from efvfl.core.party import Party
from efvfl.network.training.questions import QuestionHandler
from efvfl.wire.message import Message


class OwnParty:
    """Answers messages and questions as a party over the network would."""

    def __init__(self, party: Party, represent: QuestionHandler) -> None:
        """Reply as this party does, and answer questions with its representations."""
        self.party = party
        self.represent = represent
        self.seconds = 0.0  # of computing

    def handle(self, message: Message) -> Message:
        """Return the reply to a message."""
        started = time.perf_counter()
        reply = self.party.handle(message)
        self.seconds += time.perf_counter() - started
        return reply

    def answer(self, question: bytes) -> bytes:
        """Return the answer to a question."""
        return self.represent(question)[1]

"""What lies between the last step of an epoch and its record, where held-out rows are evaluated by messages.

Up to three requests, one after another: the validation rows, through their memory; what is decided by their loss; and
at the end of training all held-out rows finely, by the model that is kept. They are requests like those of the steps,
so they are logged, sent once and counted alike, and a participant that restarts comes to the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

from torch import Tensor

from efvfl.core.decision import Decision
from efvfl.core.evaluation import ServerEvaluation
from efvfl.core.server import Server
from efvfl.training import measure
from efvfl.training.stopping import Stopping
from efvfl.wire.message import Kind, Message


class Examination:
    """Asks for the held-out rows of a server's parties, and decides what follows."""

    def __init__(self, server: Server, evaluation: ServerEvaluation, stopping: Stopping) -> None:
        """Decide by this policy."""
        self.server = server
        self.evaluation = evaluation
        self.stopping = stopping
        self.outputs: dict[str, Tensor] = {}  # of the network on held-out rows, as they were sent at the end
        self.scores: dict[str, dict[str, float]] = {}  # by split, of this record
        self.loss = 0.0  # of validation rows, by which is decided: of their randomised labels, where these are
        self._asked: list[Kind] = []  # since the last record
        self.waiting = False  # for the replies to the last of them

    def next(self, epoch: int, last: bool) -> dict[str, Message]:
        """Return the next request before the record of an epoch, perhaps the last one; none: the record can be made."""
        step, evaluation = self.server.step_number, self.evaluation
        if not self._asked:
            self.outputs = {}  # of an end after which training went on
        if not self._asked and "validation" in evaluation.plan.held_out:
            return self._ask(Kind.EVALUATE, evaluation.ask(Kind.EVALUATE, step))
        if self._asked == [Kind.EVALUATE] and (decision := self._decision(epoch, last)):
            return self._ask(Kind.DECIDE, evaluation.decide(decision, step))
        if (last or self.stopping.over) and Kind.FINAL not in self._asked:
            return self._ask(Kind.FINAL, evaluation.ask(Kind.FINAL, step))
        return {}

    def _ask(self, kind: Kind, messages: dict[str, Message]) -> dict[str, Message]:
        self._asked.append(kind)
        self.waiting = True
        return messages

    def _decision(self, epoch: int, last: bool) -> Decision:
        loss = self.loss
        better, rate = self.stopping.look(epoch, loss), self.stopping.rate(loss)
        use = (last or self.stopping.over) and not better and not isnan(self.stopping.kept)
        return Decision(better, use, rate)

    def take(self, replies: Mapping[str, Message]) -> None:
        """Take the replies to the last request."""
        self.waiting = False
        if self._asked[-1] == Kind.DECIDE:
            return
        outputs = self.evaluation.outputs(self._asked[-1], replies)
        targets, loss, release = self.evaluation.targets, self.server.loss, self.server.release
        if self._asked[-1] == Kind.EVALUATE:
            self.loss = measure.scores(outputs["validation"], targets["validation"], loss)["loss"]
        if release:  # records are the label holder's own
            targets = {split: release.true_targets(split, of.weights) for split, of in targets.items()}
        self.scores |= {s: measure.scores(output, targets[s], loss.on_truth) for s, output in outputs.items()}
        if self._asked[-1] == Kind.FINAL:
            self.outputs = outputs

    def close(self) -> dict[str, dict[str, float]]:
        """Return the scores for the record, and begin anew."""
        scores, self.scores, self._asked = self.scores, {}, []
        return scores

    def state_dict(self) -> dict[str, Any]:
        """Return where it stands."""
        return {
            "scores": self.scores,
            "loss": self.loss,
            "outputs": dict(self.outputs),
            "asked": [int(kind) for kind in self._asked],
            "waiting": self.waiting,
            "stopping": self.stopping.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.outputs = dict(state["outputs"])
        self.scores = {split: dict(scores) for split, scores in state["scores"].items()}
        self.loss = float(state.get("loss", self.scores.get("validation", {}).get("loss", 0.0)))  # 0.2 saved none
        self._asked, self.waiting = [Kind(kind) for kind in state["asked"]], bool(state["waiting"])
        self.stopping.load_state_dict(state["stopping"])

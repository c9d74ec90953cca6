"""The training loop, and what it yields: one record an epoch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from efvfl.core.fusion import Fusion
from efvfl.core.party import Party
from efvfl.core.server import Server
from efvfl.errors import CheckpointError, EfvflError, whole
from efvfl.training import inputs, measure
from efvfl.training.inputs import Columns
from efvfl.training.measure import Split
from efvfl.training.schedule import Schedule
from efvfl.training.transport import Transport
from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Message


@dataclass(frozen=True)
class Record:
    """One epoch. What is measured on uncompressed representations is NaN or empty where nobody could measure it."""

    epoch: int  # epochs done, from 1
    step: int  # steps done
    surrogate_loss: float  # mean over the epoch's steps of the loss the server sees
    train: dict[str, float] = field(default_factory=dict)  # loss and metric on the training rows
    gradient: float = float("nan")  # squared norm of the full gradient
    distortion: float = float("nan")  # D: how far the surrogates are from the representations
    validation: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0  # really encoded since the start of the run
    bytes_down: int = 0
    ledger: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)  # by direction, party and kind
    paper_bits: int = 0  # the paper's formula: uplink only, no indices, no headers
    absent: dict[str, list[list[int]]] = field(default_factory=dict)  # steps, first to last, that went without a party
    seconds: float = 0.0  # of wall time spent in training steps, observation not counted

    def to_json(self) -> str:
        """Return one line of JSON; what is not a finite number becomes null."""
        return json.dumps(finite_or_null(asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Read what `to_json` wrote."""
        table = json.loads(line)
        return cls(**{key: _nan_for_null(value) for key, value in table.items()})


def finite_or_null(value: Any) -> Any:
    """Replace what JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite_or_null(item) for key, item in value.items()}
    return [finite_or_null(item) for item in value] if isinstance(value, list) else value


def _nan_for_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nan_for_null(item) for key, item in value.items()}
    return float("nan") if value is None else value


class Federation:
    """A server and its parties in one process, and the loop that trains them."""

    def __init__(
        self,
        server: Server,
        parties: Mapping[str, Party],
        transport: Transport,
        ledger: Ledger,
        splits: Mapping[str, Split],
        here: Collection[str] = (),
        window: int = 1,
    ) -> None:
        """Train what these parts make; `splits` has 'train' and perhaps 'validation' and 'test'.

        Parties in `here` sit next to the server: what they report is not sent. `window` steps are under way at a time.
        """
        self.server = server
        self.parties = parties
        self.transport = transport
        self.ledger = ledger
        self.splits = splits
        self.here = frozenset(here)
        self.window = window
        self.seconds = 0.0
        self._losses: list[float] = []  # of the epoch under way
        self._replies: list[dict[str, Message]] = []  # reports under way, oldest step first; none: parties are holding

    @property
    def models(self) -> list[nn.Module]:
        """The local models, in the parties' order."""
        return [party.block.module for party in self.parties.values()]

    @property
    def fusion(self) -> Fusion:
        """The fusion model."""
        return self.server.fusion

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.server.step_number // self.server.batches.per_epoch

    def step(self, hold: bool = False, begins: int = 0) -> float:
        """Run one step of all blocks; return the loss on surrogates.

        Parties go on to report on a further step, unless told to hold: then nothing is under way, or, with a pipeline,
        one step less. Before it, steps begin until `begins` are under way; 0: as many as the pipeline takes.
        """
        started = time.perf_counter()
        if self.server.step_number % self.server.batches.per_epoch == 0:
            self._losses = []  # not before: a record may be taken after the last step of an epoch
        for ahead in range(len(self._replies), begins or (1 if hold else self.window)):
            self._replies.append(self.transport.exchange(self.server.begin(ahead)))
        replies = self.transport.exchange(self.server.step(self._replies[0], hold))
        self._replies = [*self._replies[1:], *([] if hold else [replies])]
        self._losses.append(self.server.surrogate_loss)
        self.seconds += time.perf_counter() - started
        return self.server.surrogate_loss

    def train(self, epochs: int, observe_every: int = 1, gradient: bool = True) -> Iterator[Record]:
        """Train until `epochs` epochs are done, and yield a record after each that is observed (and the last).

        Nothing is trained before records are asked for: loop over them, or call `fit`. The full gradient and the
        distortion cost about as much as an epoch: `gradient=False` leaves them out.
        """
        epochs, observe_every = whole("epochs", epochs, 0), whole("observe_every", observe_every, 1)
        return self._train(Schedule(self.server.batches.per_epoch, epochs, observe_every, self.window), gradient)

    def fit(self, epochs: int, observe_every: int = 1, gradient: bool = True) -> list[Record]:
        """Train until `epochs` epochs are done, and return the records of all that `train` yields."""
        return list(self.train(epochs, observe_every, gradient))

    def _train(self, pace: Schedule, gradient: bool) -> Iterator[Record]:
        while self.server.step_number < pace.steps:
            step = self.server.step_number
            self.step(pace.hold(step), pace.begins(step))
            if pace.observed(step):
                yield self.record(gradient)

    def record(self, gradient: bool = True) -> Record:
        """Measure where training stands."""
        models, fusion, loss = self.models, self.fusion, self.server.loss
        train = self.splits["train"]
        slope = measure.gradient(models, fusion, train, loss) if gradient else None
        output = slope.output if slope else measure.predict(models, fusion, train.features)
        held = {n: measure.evaluate(models, fusion, s, loss) for n, s in self.splits.items() if n != "train"}
        return Record(
            epoch=self.epoch,
            step=self.server.step_number,
            surrogate_loss=sum(self._losses) / len(self._losses) if self._losses else float("nan"),
            train=measure.scores(output, train.labels, loss),
            gradient=measure.squared_norm(slope.gradient) if slope else float("nan"),
            distortion=self.distortion(slope.representations) if slope else float("nan"),
            validation=held.get("validation", {}),
            test=held.get("test", {}),
            bytes_up=self.ledger.total("up"),
            bytes_down=self.ledger.total("down"),
            ledger=self.ledger.table(),
            paper_bits=sum(party.up.paper_bits for name, party in self.parties.items() if name not in self.here),
            seconds=self.seconds,
        )

    def distortion(self, representations: Sequence[Tensor] | None = None) -> float:
        """Return D at the parties' current parameters, after their report on the current step.

        The exact representations of all training rows may be given.
        """
        features, total = self.splits["train"].features, 0.0
        for place, party in enumerate(self.parties.values()):
            rows = None if party.reporting else party.plan.report_rows.rows(party.step)
            h = representations[place] if representations else measure.represent(party.block.module, features[place])
            total += measure.distortion(party.up, h, rows, party.step)
        return total

    def predict(self, features: Columns) -> Tensor:
        """Return the trained network's output for new rows, a table of columns for each party, as in `federate`."""
        like = self.splits["train"].features if "train" in self.splits else []
        return measure.predict(self.models, self.fusion, inputs.new_rows(features, list(self.parties), like))

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on bit for bit, between any two steps."""
        return {
            "server": self.server.state_dict(),
            "parties": {name: party.state_dict() for name, party in self.parties.items()},
            "ledger": self.ledger.state_dict(),
            "batches": self._batches(),
            "losses": list(self._losses),
            "seconds": self.seconds,
        }

    def _batches(self) -> dict[str, Any]:
        batches = self.server.batches
        return {"rows": batches.samples, "size": batches.size, "order": batches.order, "seed": batches.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state of a federation that was built alike. One that is refused changes nothing."""
        self._check_state(state)
        before = self.state_dict()
        try:
            self._load(state)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, EfvflError) as error:
            self._load(before)
            raise CheckpointError(
                f"the saved state does not fit this federation: {str(error).rstrip('.')}. Was it built alike?"
            ) from error

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse what can be told apart without loading it."""
        needed = {"server", "parties", "ledger", "losses", "seconds"}
        if not isinstance(state, Mapping) or needed - set(state):
            came = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise CheckpointError(
                f"{came} came as a saved state, {sorted(needed)} are expected: give what state_dict() returned."
            )
        if set(state["parties"]) != set(self.parties):
            raise CheckpointError(
                f"the saved run has parties {sorted(state['parties'])}, this one has {sorted(self.parties)}."
            )

    def _load(self, state: dict[str, Any]) -> None:
        self.server.load_state_dict(state["server"])
        for name, party in self.parties.items():
            party.load_state_dict(state["parties"][name])
        self.ledger.load_state_dict(state["ledger"])
        self._losses = [float(loss) for loss in state["losses"]]
        self.seconds = float(state["seconds"])
        steps = zip(*(party.open.unanswered(party.step) for party in self.parties.values()), strict=True)
        self._replies = [dict(zip(self.parties, reports, strict=True)) for reports in steps]
        saved, own = state.get("batches"), self._batches()
        if saved not in (None, own):  # states of earlier versions do not have it
            raise CheckpointError(f"it has batches of {saved}, this run of {own}")

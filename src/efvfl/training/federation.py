"""A federation in one process: the server, its parties and the driver that trains them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from efvfl.core import label_account
from efvfl.core.fusion import Fusion
from efvfl.core.label_account import Spent
from efvfl.core.party import Party
from efvfl.core.server import Server
from efvfl.errors import CheckpointError, ConfigError, EfvflError, whole_number
from efvfl.training import inputs, measure, sendings, values
from efvfl.training.callbacks import Callback
from efvfl.training.column_values import ColumnPlaces, ColumnScorer, HeldColumns, every_number
from efvfl.training.distortions import by_block
from efvfl.training.driver import Driver
from efvfl.training.inputs import Columns
from efvfl.training.measure import Split
from efvfl.training.missing_rows import Masks
from efvfl.training.record import NAN, Observation, Record
from efvfl.training.schedule import Schedule
from efvfl.training.transport import LocalTransport
from efvfl.training.values import Metric, PartyValues, ScoredRows, ValueEstimate
from efvfl.wire.ledger import Ledger


class Federation:
    """A server and its parties in one process; `federate` makes one.

    >>> import torch
    >>> from efvfl import federate
    >>> x, y = [torch.ones(4, 3), torch.ones(4, 2)], torch.tensor([0, 1, 0, 1])
    >>> models = {"bank": torch.nn.Linear(3, 4), "telco": torch.nn.Linear(2, 4)}
    >>> federation = federate(dict(zip(models, x)), y, models, torch.nn.Linear(4, 2))
    >>> [record.epoch for record in federation.train(epochs=2)]
    [1, 2]
    >>> federation.predict({"bank": x[0][:1], "telco": x[1][:1]}).shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        server: Server,
        transport: LocalTransport,
        splits: Mapping[str, Split],
        window: int = 1,
        patience: int = 0,
    ) -> None:
        """Train this server with the parties of a transport.

        `splits` has 'train', and perhaps 'validation' and 'test'; `window` steps are under way at a time. `patience` is
        as `Training` has it.
        """
        self.server = server
        self.transport = transport
        self.splits = splits
        self.window = window
        self.driver = Driver(server, transport, patience=patience)
        self.driver.spent = self.spent
        if transport.times:
            self.driver.simulated = lambda: transport.times.now if transport.times else NAN

    @property
    def parties(self) -> Mapping[str, Party]:
        """The parties by name."""
        return cast(Mapping[str, Party], self.transport.parties)

    @property
    def ledger(self) -> Ledger:
        """The bytes of everything sent."""
        return self.transport.ledger

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
        return self.driver.epoch

    @property
    def seconds(self) -> float:
        """Wall time spent in steps."""
        return self.driver.seconds

    @property
    def arrivals(self) -> list[tuple[str, ...]]:
        """Whose reports every step took, where parties are asynchronous: `Setup(arrivals=...)` replays it."""
        return list(self.driver.arrivals.taken)

    def step(self, hold: bool = False, begins: int = 0) -> float:
        """Run one step of all blocks; return the loss on surrogates.

        Parties go on to report on a further step, unless told to hold: then nothing is under way, or, with a pipeline,
        one step less. Before it, steps begin until `begins` are under way; 0: as many as the pipeline takes.
        """
        return self.driver.step(hold, begins or (1 if hold else self.window))

    def train(
        self,
        epochs: int,
        observe_every: int = 1,
        gradient: bool = True,
        callbacks: Sequence[Callback] = (),
        note_every: int = 0,
    ) -> Iterator[Record]:
        """Train until `epochs` epochs are done, and yield a record after each that is observed (and the last).

        Nothing is trained before records are asked for: loop over them, or call `fit`. The full gradient and the
        distortion cost about as much as an epoch: `gradient=False` leaves them out. With `patience` it may stop
        earlier, and the best model is in place with the last record; more epochs later go on from the last model.
        `callbacks` are told of every step, and of every record before it is yielded. `record.steps` has every
        `note_every`-th step: loss, bytes, and of each block what was to be sent and what was lost of it; 0: none.

        >>> from efvfl import federate
        >>> x, y = [torch.ones(4, 3), torch.ones(4, 2)], torch.tensor([0, 1, 0, 1])
        >>> run = federate(x, y, [torch.nn.Linear(3, 4), torch.nn.Linear(2, 4)], torch.nn.Linear(4, 2))
        >>> for record in run.train(epochs=2):
        ...     print(record.epoch, sorted(record.train), record.bytes_up)
        1 ['accuracy', 'loss'] 164
        2 ['accuracy', 'loss'] 328
        """
        epochs, observe_every = whole_number("epochs", epochs, 0), whole_number("observe_every", observe_every, 1)
        recorded = len(self.driver.arrivals.planned)  # a run that is replayed may have been ended early
        schedule = Schedule(self.server.batches.per_epoch, epochs, observe_every, self.window, recorded)
        held_out = self.server.evaluation is None  # else they are evaluated by messages
        self.driver.callbacks = callbacks
        self.driver.notes.every = whole_number("note_every", note_every, 0)
        sendings.watch(self.server, self.parties, [*callbacks, self.driver.notes] if note_every else callbacks)
        return self.driver.run(schedule, lambda: self._observe(gradient, held_out))

    def fit(
        self,
        epochs: int,
        observe_every: int = 1,
        gradient: bool = True,
        callbacks: Sequence[Callback] = (),
        note_every: int = 0,
    ) -> list[Record]:
        """Return the records of all that `train` yields: `fit(10)` and then `fit(15)` trains 15 epochs in all."""
        return list(self.train(epochs, observe_every, gradient, callbacks, note_every))

    def record(self, gradient: bool = True) -> Record:
        """Measure where training stands."""
        return self.driver.record(lambda: self._observe(gradient), self.window)

    def _observe(self, gradient: bool, held_out: bool = True) -> Observation:
        """Measure what can be measured where all rows and all models are in one place; perhaps no `held_out` rows."""
        models, fusion, loss = self.models, self.fusion, self.server.loss
        train = self.splits["train"]  # with true labels: metrics are the label holder's own, and the gradient is f's
        learnt = replace(train, labels=self.server.labels)
        slope = measure.gradient(models, fusion, learnt, loss) if gradient else None
        output = slope.output if slope else measure.predict(models, fusion, train.features, train.present)
        splits = {name: split for name, split in self.splits.items() if held_out and name != "train"}
        seen = {name: measure.evaluate(models, fusion, split, loss.on_truth) for name, split in splits.items()}
        distortions = self.distortions(slope.representations) if slope else {}
        return Observation(
            train=measure.scores(output, train.targets, loss.on_truth),
            gradient=measure.squared_norm(slope.gradient) if slope else float("nan"),
            distortion=sum(distortions.values()) if slope else float("nan"),
            distortions=distortions,
            validation=seen.get("validation", {}),
            test=seen.get("test", {}),
        )

    def distortion(self, representations: Sequence[Tensor] | None = None) -> float:
        """Return D at the current parameters, after the reports on the current step: the sum of `distortions`."""
        return sum(self.distortions(representations).values())

    def distortions(self, representations: Sequence[Tensor] | None = None) -> dict[str, float]:
        """Return D_k of every party, and of 'block 0' where the fusion model is compressed.

        The exact representations of all training rows may be given.
        """
        return by_block(self.server, self.parties, self.splits["train"].features, representations)

    def predict(self, features: Columns, present: Masks | None = None) -> Tensor:
        """Return the trained network's output for new rows, a table of columns for each party, as in `federate`.

        Parties may lack rows: those of nothing but NaN, all if they are left out, or what `present` says, which is a
        mask for each party, or the names of those that have all rows.
        """
        names = list(self.parties)
        tables, mask = inputs.new_rows(features, names, self.splits.get("train"), present)
        if mask is not None or self.server.plan.presence is not None:
            self._check_subsets(torch.ones(len(tables[0]), len(names), dtype=torch.bool) if mask is None else mask)
        return measure.predict(self.models, self.fusion, tables, mask)

    def party_values(
        self, split: str = "validation", metric: Metric | None = None, resamples: int = values.RESAMPLES
    ) -> PartyValues:
        """Return how well every subset of parties predicts held-out rows, and what each party is worth by that.

        `metric` is a function of output and labels, larger is better; None: that of the loss.
        """
        self._check_subsets()
        name = getattr(metric, "__name__", "metric") if metric else self.server.loss.metric_name
        rows, names = self.scored_rows(split), list(self.parties)
        return values.party_values(rows, names, metric or self.server.loss.metric, name, resamples)

    def column_values(
        self,
        columns: Mapping[str, ColumnPlaces] | None = None,
        split: str = "validation",
        metric: Metric | None = None,
        resamples: int = values.RESAMPLES,
        *,
        every: int = 1,
        seeds: Mapping[str, int] | None = None,
    ) -> dict[str, dict[str, ValueEstimate]]:
        """Return by how much the metric falls when a column's values stand at other rows, by party and column.

        `columns` has, by party and column, the places of the numbers that a column became; left out, every number is a
        column. `every` looks at each so many-th row alone; `seeds` decide the orders, by party.
        """
        if any(self.splits["train"].layouts):
            raise ConfigError("column_values: expected one table of columns for each party, got several inputs of one.")
        rows, features = self.scored_rows(split).every(every), self.splits[split].features
        scorer = ColumnScorer(rows, metric or self.server.loss.metric, resamples)
        places = columns or {n: every_number(x) for n, x in zip(self.parties, features, strict=True)}
        found: dict[str, dict[str, ValueEstimate]] = {}
        for name, own in places.items():
            if name not in self.parties:
                raise ConfigError(f"columns: expected names of the parties {list(self.parties)}, got {name!r}.")
            place = list(self.parties).index(name)
            table = HeldColumns(features[place][::every], own, (seeds or {}).get(name, 0))
            here, model = scorer.held(place), self.models[place]
            permuted = {c: table.permuted(c, split, here) for c in own if len(here)}
            found[name] = {c: scorer.score(place, measure.represent(model, x)) for c, x in permuted.items()}
        return found

    def scored_rows(self, split: str) -> ScoredRows:
        """Return held-out rows to score: exact representations, who has which, and labels."""
        if split not in self.splits:
            raise ConfigError(f"split: expected one of {list(self.splits)}, got {split!r}: give it to federate.")
        held = self.splits[split]
        everybody = torch.ones(len(held.labels), len(self.parties), dtype=torch.bool)
        present = everybody if held.present is None else held.present
        return ScoredRows(self.fusion, list(self.represent(split).values()), present, held.labels)

    def represent(self, split: str) -> dict[str, Tensor]:
        """Return the exact representations of the rows of a split, by party."""
        models = zip(self.parties, self.models, self.splits[split].features, strict=True)
        return {name: measure.represent(model, x) for name, model, x in models}

    def _check_subsets(self, mask: Tensor | None = None) -> None:
        """Refuse to predict from subsets that nothing was trained for."""
        if self.server.plan.presence is None:
            raise ConfigError(
                "this model was trained for all parties together, and rows that some lack were asked for: train with "
                "rows missing or with Agreement(subsets='sampled'). Rows of nothing but NaN are missing ones."
            )
        if mask is not None and not bool(mask.any(dim=1).all()):
            raise ConfigError("expected every row at one party at least, got rows at none: leave them out.")
        if mask is not None and not bool((trained := self.server.plan.trained_for(mask)).all()):
            alone = [name for name, has in zip(self.parties, mask[~trained][0].tolist(), strict=True) if has]
            raise ConfigError(
                f"expected rows of parties that were trained to predict together, got {int((~trained).sum()):,} rows "
                f"that it was not trained for, such as one of {', '.join(alone)} alone: leave these out, or train with "
                "Agreement(subsets='sampled')."
            )

    def held_out_output(self, split: str) -> Tensor:
        """Return the output on validation or test rows: at the end of training as the server saw them, else exactly."""
        sent = self.driver.examination.outputs if self.driver.examination else {}
        held = self.splits[split]
        return sent[split] if split in sent else measure.predict(self.models, self.fusion, held.features, held.present)

    def promises(self, epochs: int) -> list[str]:
        """Return a sentence for each thing that is protected: what so many epochs will spend on it."""
        account, steps = label_account.of(self.server), epochs * self.server.batches.per_epoch
        noises = [party.noise for party in self.parties.values() if party.noise]
        return ([account.promise(steps)] if account else []) + [noise.promise(steps) for noise in noises]

    def spent(self) -> Spent:
        """Return what was spent so far on what is protected, as records have it."""
        found = label_account.spent(self.server)
        for party in self.parties.values():
            found |= party.noise.spent() if party.noise else {}
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on bit for bit, between any two steps."""
        return {
            "server": self.server.state_dict(),
            "parties": {name: party.state_dict() for name, party in self.parties.items()},
            "ledger": self.ledger.state_dict(),
            "batches": self._batches(),
            "driver": self.driver.state_dict(),
            "transport": self.transport.state_dict(),
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
        needed = {"server", "parties", "ledger", "batches", "driver"}
        if isinstance(state, Mapping) and {"server", "parties", "losses", "seconds"} <= set(state):
            raise CheckpointError(
                "this state was saved by efvfl 0.1, which saved other things: go on with that version, or start anew."
            )
        if not isinstance(state, Mapping) or needed - set(state):
            given = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise CheckpointError(
                f"expected a saved state with {sorted(needed)}, got {given}: give what state_dict() returned."
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
        self.driver.load_state_dict(state["driver"])
        self.transport.load_state_dict(state.get("transport", {}))
        here = {name: party for name, party in self.parties.items() if name not in self.transport.away}
        steps = zip(*(party.open.unanswered(party.step) for party in here.values()), strict=True)
        self.transport.reopen([dict(zip(here, reports, strict=True)) for reports in steps])
        if state["batches"] != self._batches():
            raise CheckpointError(f"it has batches of {state['batches']}, this run of {self._batches()}")

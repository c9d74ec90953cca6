"""The label holder's process: train with whoever joins, save, and go on after any crash as if nothing had happened."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from efvfl.config.run_file import RunConfig
from efvfl.core import label_account
from efvfl.data.tables.ids import normalise_texts
from efvfl.errors import AbsentError, Interrupted, ProtocolError
from efvfl.network import handshake
from efvfl.network.links.checks import Checks
from efvfl.network.links.connections import Hooks, ServerTimeouts
from efvfl.network.links.frame import digest_of, unpack
from efvfl.network.links.message_log import MessageLog
from efvfl.network.links.presence import Presence
from efvfl.network.links.requests import Requests
from efvfl.network.training.autosave import CHECKPOINT, CheckpointPolicy, load_own, save_own
from efvfl.network.training.build import build_party, build_server, make_plan
from efvfl.network.training.column_answers import ColumnAnswers
from efvfl.network.training.joint_prediction import JointPrediction, PredictedRows
from efvfl.network.training.own_party import OwnParty
from efvfl.network.training.panel import PartyPanel
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.training.questions import QuestionHandler
from efvfl.network.workers.group_model import workers_of
from efvfl.network.workers.worker_group import WorkerGroup
from efvfl.runs import spent_file
from efvfl.runs.build import column_seed, has_tables, patience, watching
from efvfl.runs.party_worth import leave_values
from efvfl.runs.run_folder import Outputs, Sizes, save_outputs, save_records, save_settings
from efvfl.runs.true_settings import true_settings
from efvfl.training import measure
from efvfl.training.driver import Driver
from efvfl.training.record import Observation, Record
from efvfl.training.schedule import Schedule
from efvfl.training.window_trial import WindowTrial
from efvfl.util import checkpoint
from efvfl.util.finish_request import FinishRequest
from efvfl.wire.ledger import Ledger

log = logging.getLogger("efvfl")


class ServerProcess:
    """The server, its driver, its log and its connections."""

    def __init__(
        self,
        config: RunConfig,
        data: ParticipantData,
        folder: Path,
        timeouts: ServerTimeouts | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Go on from what the folder holds, or start."""
        self.config = config
        self.data = data
        self.folder = folder
        self.plan = make_plan(config, data, folder)
        self.server = build_server(config, self.plan, data)
        here = config.label_holder
        self.party = build_party(config, self.plan, data, here) if here else None  # the label holder's own columns
        own_columns = ColumnAnswers(self.party, data, column_seed(config, here), True) if self.party else None
        self.answerer = QuestionHandler(self.party, data, True, own_columns) if self.party else None
        self.local = {here: OwnParty(self.party, self.answerer)} if self.party and self.answerer else {}
        self.about = data.about(config, "")
        weights = data.targets("train").weights
        self.own = handshake.own_part(config, self.plan.loss.name, self.about["digest"], weights)
        self.saving = CheckpointPolicy(config.network)
        self.ledger = Ledger()
        self.message_log = MessageLog(folder / "log")
        self.requests = Requests(
            Presence(
                [name for name in data.names if name != here],
                config.network.on_missing,
                self.plan.agreement.asynchronous.on,
            ),
            self.message_log,
            self.ledger,
            Checks(self._check_hello, self.server.check, self._check_bye, self._memory),
            timeouts,
            hooks,
            self.local,
        )
        self.prediction = JointPrediction(
            self.server.fusion, self.requests, self.widths, self.plan.held_out_presence, self.plan.presence is not None
        )
        self.every = watching(config).every  # epochs between two records
        self.driver = Driver(
            self.server, self.requests, lambda: self._save_if_due(), patience(config, "validation" in data.ids)
        )
        self.driver.notes.every = config.note_every
        self.trial = WindowTrial() if self.plan.agreement.measures_window else None
        self.request = FinishRequest(folder, fresh=not checkpoint.exists(self.path))
        self.records: list[Record] = []
        self.saved = 0  # the last checkpoint covers all requests below this one; `requests.durable`: the one before it
        self._saved_at = 0  # how many requests there had been then
        self.diverged: set[str] = set()  # parties that do not remember the same at the end
        self.memory: dict[str, str] = {}  # digests of what is remembered of the parties, once all is done
        if checkpoint.exists(self.path):
            self._load()

    @property
    def path(self) -> Path:
        """Where the server saves itself."""
        return self.folder / CHECKPOINT

    @property
    def widths(self) -> dict[str, int]:
        """The widths of the parties' representations."""
        return dict(zip(self.data.names, self.plan.widths, strict=True))

    @property
    def workers(self) -> WorkerGroup | None:
        """Those who share the label holder's own computing, if there are any."""
        return workers_of(self.party) if self.party else None

    @property
    def schedule(self) -> Schedule:
        """When parties hold, and how much is under way until then."""
        window = self.trial.window(self.server.step_number) if self.trial else self.plan.agreement.window
        return self.driver.within(Schedule(self.plan.batches.per_epoch, self.config.epochs, self.every, window))

    @property
    def steps(self) -> int:
        """How many steps the run has."""
        return self.schedule.steps

    @property
    def finished(self) -> bool:
        """Whether all steps are done and observed; the parties may not know yet."""
        return self.driver.finished(self.schedule) and not self.requests.under_way

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Of held-out rows, by split, at the last evaluation."""
        last = self.records[-1] if self.records else None
        return {} if last is None else {"validation": last.validation, "test": last.test}

    @property
    def computing(self) -> float:
        """Seconds that this process has computed, the label holder's own party included."""
        return self.driver.computing + sum(party.seconds for party in self.local.values())

    def _check_hello(self, name: str, table: dict[str, Any], position: int) -> None:
        """Refuse a party that does not fit."""
        handshake.compare(self.about, table)
        self._check_history(name, table, position)
        # Of one that steps went without, the memory differs until SYNC has mended it.
        if name in self.server.attendance.away or self.requests.out.syncing(name):
            return
        theirs, out = table.get("memory"), self.requests.out
        differs = not isinstance(theirs, list)
        if isinstance(theirs, list) and position == out.first(name):  # all that it has sent is absorbed here
            differs = theirs[:1] != self.server.digests(name)[:1]
        if isinstance(theirs, list) and position == out.after(name):  # so is there what was sent
            differs |= theirs[1:] != self.server.digests(name)[1:]
        if differs:
            raise ProtocolError(
                f"the server and {name} have both handled {position} requests but do not remember the same of what was "
                "sent: one of the folders belongs to another run. Start all anew in empty folders, or restore them."
            )

    def _check_history(self, name: str, table: dict[str, Any], position: int) -> None:
        """Refuse a party whose last request is not the one that was sent to it, as far as the log here knows."""
        end, last = max(self.message_log.end, self.requests.number), position - 1
        # Then every request is on the disk before it is sent, so there is no other explanation.
        differs = self.requests.presence.time_decides and position > end
        if last in self.message_log:
            sent = unpack(self.message_log.read(last)).get(name)
            differs = sent is None or table.get("asked") != digest_of(sent.to_bytes()).hex()
        if differs:
            raise ProtocolError(
                f"{name} has handled {position} requests, and the last of them is not in the log here, which ends at "
                f"{end}: the server's folder was restored from an old copy, or its disk lost what it had confirmed. "
                "Put the newest folder back, or start all anew in empty folders."
            )

    def _memory(self, name: str) -> bytes:
        """Return what STOP says: a digest of all that is remembered of a party, but of one that was away to the end."""
        return b"" if name in self.requests.presence.left else handshake.memory_digest(self.server.digests(name))

    def _check_bye(self, name: str, digest: bytes) -> None:
        if (own := self._memory(name)) and digest != own:
            self.diverged.add(name)
            raise ProtocolError(handshake.diverged([name]))

    def _load(self) -> None:
        state = load_own(self.path, self.about | {"own": self.own})
        self.server.load_state_dict(state["server"])
        if self.party:
            self.party.load_state_dict(state["party"])
        self.ledger.load_state_dict(state["ledger"])
        self.driver.load_state_dict(state["driver"])
        if self.trial:
            self.trial.load_state_dict(state["trial"])
        self.requests.load_state_dict(state["requests"])
        self.saved, self.requests.durable = self.requests.number, int(state["before"])
        self._saved_at = self.requests.out.posted
        self.records = [Record.from_json(line) for line in state["records"]]
        self.memory = dict(state["memory"])
        if not self.finished:  # the file may ask for more epochs than before
            self.requests.told.clear()

    def save(self) -> None:
        """Leave everything on disk that is needed to go on."""
        self.message_log.flush()
        state = {
            "server": self.server.state_dict(),
            "party": self.party.state_dict() if self.party else {},
            "ledger": self.ledger.state_dict(),
            "driver": self.driver.state_dict(),
            "trial": self.trial.state_dict() if self.trial else {},
            "requests": self.requests.state_dict(),
            "records": [record.to_json() for record in self.records],
            "before": self.saved,
            "memory": self.memory,
        }
        save_own(self.path, self.about | {"own": self.own}, state)
        spent_file.save(self.folder, self.driver.spent())
        if self.requests.presence.asynchronous:
            self.driver.arrivals.save(self.folder)
        # The one before is kept too: only what neither needs may be deleted.
        self.saved, self.requests.durable = self.requests.number, self.saved
        self._saved_at = self.requests.out.posted
        self.saving.done()

    def _save_if_due(self) -> None:
        if self.saving.due(self.requests.out.posted - self._saved_at):
            self.save()

    @property
    def promise(self) -> str:
        """What the run will spend on labels that are protected, as a sentence; empty: nothing protects them."""
        account = label_account.of(self.server)
        return account.promise(self.steps) if account else ""

    def train(self) -> Iterator[Record]:
        """Train to the end, or on to it; yield a record of every observed epoch."""
        if not self.driver.finished(self.schedule):
            self._save_settings(complete=False)  # for who watches it
        try:
            while not self.finished:
                if self.requests.stopping.is_set():
                    raise Interrupted
                if self.request:
                    self._end_here()
                if record := self.advance():
                    save_records(self.folder, self.records)
                    yield record
                self.requests.hooks.on_tick()
        finally:
            if sys.exc_info()[0] in (None, Interrupted, AbsentError):
                self.save()

    def _end_here(self) -> None:
        """End training at the next step; before a message follows from it, both checkpoints have it."""
        if not self.schedule.end:
            self.driver.end_here(self.config.epochs)
            log.info("finishing after step %s, as asked", f"{self.steps:,}")
            for _ in range(2):
                self.save()
        self.request.take()

    def advance(self) -> Record | None:
        """Have the oldest request under way answered, and post the next one; return a record if one was due."""
        step = self.server.step_number
        if self.trial and self.trial.due(step):
            log.info("%s", self.trial.choose())
            for _ in range(2):  # before a message follows from the choice, also the checkpoint that is kept has it
                self.save()
        record = self.driver.advance(self.schedule, self._observe)
        if self.trial and self.server.step_number > step:
            self.trial.answered(step, self.driver.reports)
        if record:
            self.records.append(record)
            if not self.finished:
                self.save()  # before the parties train on: what was observed could not be observed again
        return record

    def _observe(self) -> Observation:
        """Measure as much as one can without seeing the parties' rows."""
        if self.driver.examination:
            sent, data = self.driver.examination.outputs, self.data
            if sent:
                self._leave_for_report({s: Outputs(data.ids[s], data.labels[s], sent[s]) for s in sent})
            return Observation()
        loss, scores = self.server.loss, {}
        outputs: dict[str, Outputs] = {}
        for split in ("validation", "test"):
            if split in self.data.labels and not self.server.attendance.away:
                targets = self.data.true_targets(split)
                with contextlib.suppress(AbsentError):  # without all parties there is nothing to score
                    outputs[split] = Outputs(self.data.ids[split], targets.labels, self.predict_split(split))
                    scores[split] = measure.scores(outputs[split].output, targets, loss.on_truth)
        if self.server.step_number >= self.steps:
            self._leave_for_report(outputs)
        return Observation(validation=scores.get("validation", {}), test=scores.get("test", {}))

    def _leave_for_report(self, outputs: dict[str, Outputs]) -> None:
        """Write what a report of the whole run is made from."""
        if outputs:
            save_outputs(self.folder, outputs)
        leave_values(self.folder, self.server, self.prediction.parts, self.data.labels)
        self._save_settings(complete=True)

    def _save_settings(self, complete: bool) -> None:
        rows = {split: len(labels) for split, labels in self.data.labels.items()}
        settings = true_settings(replace(self.config, loss=self.plan.loss.name), rows, network=True)
        sizes = Sizes(self.widths, self.server.block.size(), self.data.labels, self.data.class_names)
        save_settings(self.folder, settings, sizes, self.data.participation, complete)

    def finish(self) -> set[str]:
        """Tell the parties that all is done; return those that could not be told. They may join later."""
        self.request.take()  # one that came too late
        absent = self.requests.finish()
        if self.diverged:  # nothing is saved: the next start compares again
            raise ProtocolError(handshake.diverged(sorted(self.diverged)))
        self.memory = {name: self._memory(name).hex() for name in self.requests.names}
        self.save()
        return absent

    def in_one_form(self, ids: list[str]) -> list[str]:
        """Return ids as alignment compares them; the rows of arrays have theirs as they are."""
        return normalise_texts(ids, self.config.data.id_format) if has_tables(self.config) else ids

    def predict_split(self, split: str) -> Tensor:
        """Return the network's output on the rows of a split, computed in batches as evaluation in one process does."""
        return self.prediction.of_split(split, len(self.data.ids[split]))

    def predict(self, ids: list[str], panel: PartyPanel | None = None) -> PredictedRows:
        """Predict the rows of these ids, in their order; each is computed alone."""
        return self.prediction.of_ids(ids, panel or PartyPanel.of(self.plan))

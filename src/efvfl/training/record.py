"""What training yields: one record an epoch, and its line of JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

NAN = float("nan")


@dataclass(frozen=True)
class Observation:
    """What an observer measures between two steps. NaN or empty: nobody could measure it."""

    train: dict[str, float] = field(default_factory=dict)  # loss and metric on the training rows
    gradient: float = NAN  # squared norm of the full gradient
    distortion: float = NAN  # D: how far what was received is from what the senders have, over all blocks
    distortions: dict[str, float] = field(default_factory=dict)  # the same by party, and of a compressed 'block 0'
    validation: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """One epoch, in one process or over a network. What a record cannot know is NaN or empty, never 0.

    >>> record = Record(epoch=1, step=8, surrogate_loss=0.5, bytes_up=1024)
    >>> Record.from_json(record.to_json()).bytes_up
    1024
    """

    epoch: int  # epochs done, from 1
    step: int  # steps done
    surrogate_loss: float  # mean, over the epoch's steps in which rows took part, of the loss the server sees
    train: dict[str, float] = field(default_factory=dict)  # these six are an Observation's
    gradient: float = NAN
    distortion: float = NAN
    distortions: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    bytes_up: float = NAN  # really encoded since the start of the run; a whole number
    bytes_down: float = NAN
    ledger: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)  # by direction, party and kind
    paper_bits: float = NAN  # the paper's formula for the reports of these steps: no indices, no headers, no downlink
    bytes_down_once: float = NAN  # bytes_down if what several parties get alike were sent once, as Table 1 counts
    absent: dict[str, list[list[int]]] = field(default_factory=dict)  # steps, first to last, that went without a party
    seconds: float = NAN  # wall time of the steps, waiting for parties included; observation and checkpoints are not
    kept: float = (
        NAN  # the epoch whose model is kept so far, where the best is; held-out scores of the last record are its
    )
    asked: bool = False  # training has ended here because somebody asked for it; the epoch may be done in part
    window: float = NAN  # steps under way at a time; with `pipeline = "auto"`, as it was tried or chosen by then

    spent: dict[str, dict[str, float | str]] = field(
        default_factory=dict
    )  # what was protected, and what it cost so far
    simulated_seconds: float = NAN  # in one process with `report_seconds`: virtual time of the steps
    steps: dict[str, list[float]] = field(default_factory=dict)  # every n-th step since the last record (StepNotes)

    def to_json(self) -> str:
        """Return one line of JSON; what is not a finite number becomes null."""
        table = asdict(self)
        for name in ("spent", "steps"):
            if not table[name]:
                del table[name]  # a run without protection, or without notes, says nothing of it
        if math.isnan(self.simulated_seconds):
            del table["simulated_seconds"]
        return json.dumps(finite_or_null(table), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Read what `to_json` wrote."""
        table = json.loads(line)
        return cls(**{key: nan_for_null(value) for key, value in table.items()})


def finite_or_null(value: Any) -> Any:
    """Replace the numbers that JSON cannot express by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite_or_null(item) for key, item in value.items()}
    return [finite_or_null(item) for item in value] if isinstance(value, list) else value


def nan_for_null(value: Any) -> Any:
    """Replace None by NaN."""
    if isinstance(value, dict):
        return {key: nan_for_null(item) for key, item in value.items()}
    if isinstance(value, list):
        return [nan_for_null(item) for item in value]
    return NAN if value is None else value

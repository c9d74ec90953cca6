"""What a run will send, how long that takes and what it writes, from a few steps with random rows of the same shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch

from efvfl.config.run_file import DataConfig, FusionConfig, ModelConfig, PartyConfig, RunConfig
from efvfl.core.protection import Protection
from efvfl.data import Dataset
from efvfl.runs.build import head_outputs, make_federation, model_config, watching
from efvfl.runs.line import Line, PartyRound, Round, run_seconds
from efvfl.training.measure import Split

ROUNDS = 6  # that are played
COLUMNS = 4  # of a party in them: what is sent does not depend on it
NUMBER = 4  # bytes of a float32
FINE_NUMBER = 1.0  # bytes of a number of a held-out row at the end, rounded to 255 levels (core/evaluation.py)
SAVED = 3  # checkpoints on the disk at a time: the last, the one before it, and the one that is being written


@dataclass(frozen=True)
class RunCost:
    """What a run costs by the numbers. Computing is not in it."""

    rounds: int  # at most: it may stop earlier
    bytes_up: Mapping[str, float]  # of the whole run, by party
    bytes_down: Mapping[str, float]
    disk: float  # bytes in a participant's folder
    cost: Round
    window: int

    def seconds(self, line: Line) -> float:
        """Return the time on lines of this kind, without computing."""
        return run_seconds(line, self.cost, self.window, self.rounds)


def estimate(config: RunConfig, names: Sequence[str], rows: Mapping[str, int], who: str) -> RunCost:
    """Return what a run of these parties costs; `rows` are those of the splits, `who` is a party or '' the server."""
    per_epoch = ceil(rows["train"] / (config.batch_size or rows["train"]))
    rounds = config.epochs * per_epoch
    parties, window = _rehearse(config, names, rows["train"])
    widths = {name: model_config(config, name).width for name in names}
    up = {name: rounds * party.bytes_up for name, party in parties.items()}
    for name in up:
        up[name] += _evaluation(config, rows, widths[name], parties[name].bytes_up / _batch(config, rows["train"]))
    down = {name: rounds * party.bytes_down for name, party in parties.items()}
    here = widths if not who else {who: widths[who]}
    remembered = sum(2 * NUMBER * rows["train"] * width for width in here.values())  # a row's state, and its cotangent
    step = sum(p.bytes_up + p.bytes_down for name, p in parties.items() if name in here)
    disk = SAVED * remembered + 2 * min(rounds, config.network.save_steps) * step
    return RunCost(rounds, up, down, disk, Round(list(parties.values()), 0.0), window)


def _batch(config: RunConfig, rows: int) -> int:
    return min(config.batch_size or rows, rows)


def _evaluation(config: RunConfig, rows: Mapping[str, int], width: int, by_row: float) -> float:
    """Return the bytes of held-out rows: at every record, and finely at the end if they are compressed."""
    watched = watching(config)
    records = ceil(config.epochs / watched.every)
    held_out = rows.get("validation", 0) + rows.get("test", 0)
    if not watched.by_messages:
        return float(records * held_out * NUMBER * width)
    at_the_end = NUMBER if config.method.lossless else FINE_NUMBER
    return records * rows.get("validation", 0) * by_row + at_the_end * width * held_out


def _rehearse(config: RunConfig, names: Sequence[str], rows: int) -> tuple[dict[str, PartyRound], int]:
    """Play a few rounds with the method and the widths of a file; return what each costs a party, and the window."""
    count = 2 * _batch(config, rows)
    generator = torch.Generator().manual_seed(0)
    split = Split([torch.randn(count, COLUMNS, generator=generator) for _ in names], torch.arange(count) % 2, None)
    labels = split.labels.float() if head_outputs(config.loss, 2) == 1 else split.labels
    data = Dataset(list(names), replace(split, labels=labels), None, None, 2)
    federation = make_federation(_simplified(config, names), data)
    for _ in range(ROUNDS):
        federation.step()
    ledger, reports = federation.ledger, ROUNDS + federation.driver.reports
    parties = {
        name: PartyRound(ledger.total("up", name) / reports, ledger.total("down", name) / ROUNDS, 0.0)
        for name in names
        if name != config.label_holder
    }
    return parties, federation.window


def _simplified(config: RunConfig, names: Sequence[str]) -> RunConfig:
    """Return the settings with models of the same widths that need no columns, code or labels of anybody."""
    models = [PartyConfig(name, ModelConfig(width=model_config(config, name).width)) for name in names]
    fusion = config.fusion if ":" not in config.fusion.name else FusionConfig(config.fusion.combine)
    return replace(
        config,
        party=tuple(models),
        fusion=fusion,
        data=DataConfig(validation=0.0, test=0.0),
        optimizer={"name": "SGD", "lr": 1e-3},
        protect=Protection(),
        loss=config.loss or "cross_entropy",
        class_weights=(),
        patience=0,
        evaluation="exact",
        memory="ram",
    )

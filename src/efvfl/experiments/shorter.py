"""Another number of epochs: what the learning rate follows is stretched with it, so that it ends where it ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from efvfl.config.party_training import PartyTrainingConfig
from efvfl.config.run_file import RunConfig

# What counts epochs, or steps, among the options of torch's schedulers.
_LENGTHS = ("T_max", "T_0", "total_iters", "total_steps", "epochs", "step_size", "step_size_up", "step_size_down")


def with_epochs(config: RunConfig, epochs: int) -> RunConfig:
    """Return a run of so many epochs; lengths of schedulers, of all and of parties, keep their share of the run.

    >>> table = {"scheduler": {"name": "CosineAnnealingLR", "T_max": 100}}
    >>> with_epochs(RunConfig(epochs=100, optimizer=table), 5).optimizer["scheduler"]["T_max"]
    5
    """
    factor = epochs / config.epochs if config.epochs else 1.0
    parties = tuple(replace(p, training=_of_party(p.training, factor)) for p in config.party)
    return replace(config, epochs=epochs, optimizer=_stretched(config.optimizer, factor), party=parties)


def _of_party(training: PartyTrainingConfig, factor: float) -> PartyTrainingConfig:
    return replace(training, optimizer=_stretched(training.optimizer, factor))


def _stretched(optimizer: dict[str, Any], factor: float) -> dict[str, Any]:
    scheduler = optimizer.get("scheduler")
    if factor == 1 or not isinstance(scheduler, dict):
        return optimizer
    return optimizer | {"scheduler": _scheduler(scheduler, factor)}


def _scheduler(table: dict[str, Any], factor: float) -> dict[str, Any]:
    found = dict(table)
    for key in _LENGTHS:
        if isinstance(found.get(key), int) and not isinstance(found[key], bool):
            found[key] = max(1, round(found[key] * factor))
    if isinstance(parts := found.get("schedulers"), list):
        found["schedulers"] = [_scheduler(part, factor) if isinstance(part, dict) else part for part in parts]
    if isinstance(milestones := found.get("milestones"), list):
        found["milestones"] = _increasing(milestones, factor)
    return found


def _increasing(milestones: list[Any], factor: float) -> list[Any]:
    """Return milestones at the same shares of a run, none twice: one that a short run has no epoch for is later."""
    found: list[Any] = []
    for at in milestones:
        if not isinstance(at, int) or isinstance(at, bool):
            return milestones
        found.append(max(round(at * factor), found[-1] + 1 if found else 1))
    return found

"""An optimiser of torch and the schedule of its learning rate, by name: every block makes its own of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.optim import Optimizer as TorchOptimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, SequentialLR

from efvfl.core import ranges
from efvfl.errors import ConfigError, describe, nearest

Every = Literal["epoch", "step"]

# What torch has and a party cannot use, and why.
_UNFIT = {
    "LBFGS": "it evaluates the loss many times a step, and a party cannot",
    "SparseAdam": "it takes sparse gradients only, and these are dense",
    "ChainedScheduler": "it needs schedulers that are made already, and each participant makes its own",
}
# What torch raises for options that it cannot use.
_REFUSALS = (TypeError, ValueError, RuntimeError, ArithmeticError, AssertionError, AttributeError, LookupError)


@dataclass(frozen=True)
class Optimizer:
    """An optimiser of `torch.optim` by name, and a learning-rate scheduler, stepped once an epoch or once a step.

    All are there but LBFGS, SparseAdam and ChainedScheduler. ReduceLROnPlateau is stepped once a record: the server
    decides by the loss of validation rows, and tells the parties the rate. SequentialLR takes its `schedulers` as
    tables with a name, so that a warm-up is written like this:

    >>> warm = {"name": "LinearLR", "start_factor": 0.1, "total_iters": 100}
    >>> then = {"name": "CosineAnnealingLR", "T_max": 900}
    >>> both = {"schedulers": [warm, then], "milestones": [100]}
    >>> Optimizer("SGD", {"lr": 0.1, "momentum": 0.9}, "SequentialLR", both, scheduler_every="step").name
    'SGD'
    """

    name: str = "SGD"
    options: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.1})
    scheduler: str = ""  # a name in torch.optim.lr_scheduler; empty: constant
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)
    scheduler_every: Every = "epoch"  # or "step": what its lengths count

    def __post_init__(self) -> None:
        """Refuse names torch does not have, and those that need more than a gradient."""
        _check_name(self.name, torch.optim, TorchOptimizer, "optimiser")
        for name, options in (("options", self.options), ("scheduler_options", self.scheduler_options)):
            if not isinstance(options, Mapping):
                raise ConfigError(
                    f"{name}: expected a dict, got {describe(options)}: write Optimizer('SGD', {{'lr': 0.1}})."
                )
            ranges.check_numbers("optimizer.*", dict(options), "optimizer" if name == "options" else "scheduler")
        if self.scheduler:
            _check_scheduler(self.scheduler, self.scheduler_options)
        if self.scheduler_every not in get_args(Every):
            raise ConfigError(f"scheduler.every: got {describe(self.scheduler_every)}. Known: epoch, step")
        if self.on_plateau and self.scheduler_every != "epoch":
            raise ConfigError("scheduler.every: ReduceLROnPlateau is stepped at every record: leave `every` out.")
        if self.on_plateau and (mode := self.scheduler_options.get("mode", "min")) != "min":
            raise ConfigError(
                f"scheduler.mode: expected 'min', as it watches a loss, got {describe(mode)}: leave it out."
            )

    @property
    def on_plateau(self) -> bool:
        """Whether the rate follows the loss of validation rows."""
        return self.scheduler == ReduceLROnPlateau.__name__

    def build(self, parameters: Iterable[nn.Parameter]) -> TorchOptimizer:
        """Return the optimiser for these parameters."""
        parameters = list(parameters)
        maker = getattr(torch.optim, self.name)
        try:
            self._try_out(parameters[0].dtype)
            made: TorchOptimizer = maker(parameters, **self.options)
        except _REFUSALS as error:
            options = describe(dict(self.options))
            raise ConfigError(f"optimizer: torch.optim.{self.name} does not take {options}: {error}") from error
        return made

    def build_scheduler(self, optimizer: TorchOptimizer) -> LRScheduler | None:
        """Return the scheduler, or None for a learning rate that is constant but for what the server says."""
        if not self.scheduler or self.on_plateau:
            return None
        maker = partial(_make_scheduler, self.scheduler)
        try:
            self._try_out(torch.float32, maker)
            made: LRScheduler = maker(optimizer, **self.scheduler_options)
        except _REFUSALS as error:
            raise self._refused(error) from error
        # An epoch may pass without an update, where a party is away; torch would take that for a mistake, and warn.
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return made

    def build_plateau(self) -> ReduceLROnPlateau:
        """Return what decides on the rate by a loss; its optimiser has one number to learn, and the rate."""
        try:
            optimizer = self.build([nn.Parameter(torch.zeros(1, 1))])
            return ReduceLROnPlateau(optimizer, **self.scheduler_options)
        except _REFUSALS as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> ConfigError:
        options = describe(dict(self.scheduler_options))
        return ConfigError(f"scheduler {self.scheduler} does not take {options}: {error}")

    def _try_out(self, dtype: torch.dtype, scheduler: Callable[..., LRScheduler] | None = None) -> None:
        """Take one step with one number: some options are refused by the first step only."""
        number = nn.Parameter(torch.zeros(1, 1, dtype=dtype))
        number.grad = torch.zeros(1, 1, dtype=dtype)
        optimizer: TorchOptimizer = getattr(torch.optim, self.name)([number], **self.options)
        after = scheduler(optimizer, **self.scheduler_options) if scheduler else None
        optimizer.step()
        if after:
            after.step()


def _check_scheduler(name: object, options: Mapping[str, Any]) -> None:
    """Refuse names torch does not have, also those of schedulers that follow each other."""
    _check_name(name, torch.optim.lr_scheduler, LRScheduler, "scheduler")
    if name != SequentialLR.__name__:
        return
    parts = options.get("schedulers")
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(p, Mapping) and "name" in p for p in parts):
        raise ConfigError(
            "scheduler.schedulers: expected tables with a name, in their order, such as [{ name = 'LinearLR', "
            f"total_iters = 5 }}, {{ name = 'CosineAnnealingLR', T_max = 95 }}], got {describe(parts)}."
        )
    for part in parts:
        if part["name"] == ReduceLROnPlateau.__name__:
            raise ConfigError(
                "scheduler.schedulers: ReduceLROnPlateau follows a loss, and the others count: use it alone."
            )
        _check_scheduler(part["name"], {key: value for key, value in part.items() if key != "name"})


def _make_scheduler(name: str, optimizer: TorchOptimizer, **options: Any) -> LRScheduler:
    """Return a scheduler, and those within it."""
    if name == SequentialLR.__name__:
        parts = [dict(part) for part in options.pop("schedulers")]
        options["schedulers"] = [_make_scheduler(part.pop("name"), optimizer, **part) for part in parts]
    made: LRScheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **options)
    return made


def _check_name(name: object, module: Any, base: type, what: str) -> None:
    if not isinstance(name, str):
        raise ConfigError(
            f"expected the name of an {what}, got {describe(name)}: write Optimizer('SGD', {{'lr': 0.1}})."
        )
    found = {n for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, base) and c is not base}
    known = {n for n in found if n not in _UNFIT and not n.startswith("_")}
    if name in found and name in _UNFIT:
        raise ConfigError(f"{name} does not work here: {_UNFIT[name]}: choose another {what}. {nearest('', known)}")
    if name not in known:
        raise ConfigError(f"torch has no {what} {name!r}. {nearest(name, known)}")

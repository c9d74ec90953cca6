"""Noise at every visit of a label, accounted for: on the derivative of the loss by the fusion model's output.

At a step the labels of a batch enter in one place, the derivative of the loss by the output. Noise is added there once,
and all that follows (the cotangents of all parties, x0's own gradient, and so every later step) is computed from the
noisy derivative alone. So what others are ever sent is post-processing of one Gaussian mechanism for each visit of a
row, and nothing has to be clipped: the derivative of a row's own loss differs by at most `slope_bound` between two
labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from efvfl.core import ranges
from efvfl.core.accountant import Accountant
from efvfl.core.agreement import CachedSteps
from efvfl.core.batches import Rows
from efvfl.core.cached_steps import WorkSet
from efvfl.core.losses import Loss, slope_bound
from efvfl.core.noise import digest_of, normal
from efvfl.core.plan import Plan
from efvfl.core.targets import Targets
from efvfl.errors import CheckpointError, ConfigError, LimitError
from efvfl.util.rng import derive


@dataclass(frozen=True)
class VisitNoise:
    """How much noise a label gets at every visit: its size, or what the whole run may spend. 0 is off.

    >>> VisitNoise(noise=4.0).on, VisitNoise().on
    (True, False)
    """

    noise: float = 0.0  # standard deviation in every entry of the derivative of a row's own loss by the output
    epsilon: float = 0.0  # what may be spent: without `noise` its size follows from it; training stops when it is spent
    delta: float = 1e-5  # at which epsilon is meant
    epochs: int = 0  # that an epsilon without `noise` is for; 0: those of the run file

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        ranges.check_fields(self, "visits")

    @property
    def on(self) -> bool:
        """Whether there is any."""
        return self.noise > 0 or self.epsilon > 0

    def for_epochs(self, epochs: int) -> VisitNoise:
        """Return the same for a run of so many epochs."""
        return self if self.epochs or not self.on else replace(self, epochs=epochs)


class OutputNoise:
    """Adds the noise, counts the visits of every row, and refuses those that would spend more than is allowed."""

    def __init__(self, plan: Plan, targets: Targets, chosen: VisitNoise, key: int) -> None:
        """Protect these labels; the key is the label holder's secret."""
        self.key = key
        self.visits = torch.zeros(len(targets), dtype=torch.int32)
        made = Accountant(
            "the label of each training row",
            "all other participants together",
            "noise at every visit",
            _sensitivity(plan.loss, targets),
            chosen.noise,
            delta=chosen.delta,
        )
        if not chosen.noise:
            if not chosen.epochs:
                raise ConfigError(
                    "visits.epsilon without visits.noise needs the number of epochs that it is for: set visits.epochs."
                )
            steps = chosen.epochs * plan.batches.per_epoch
            made = made.with_noise_for(chosen.epsilon, most_visits(plan, steps))
        self.accountant = replace(made, mechanism=f"Gaussian noise of {made.noise:.4g} at every visit")
        self.allowed = made.visits_within(chosen.epsilon) if chosen.epsilon else float("inf")
        planned = most_visits(plan, chosen.epochs * plan.batches.per_epoch) if chosen.epsilon else 0
        if planned > self.allowed:
            raise ConfigError(
                f"{chosen.epochs:,} epochs visit a label {planned:,} times and would spend epsilon = "
                f"{made.epsilon(planned):.4g}, and protect.visits.epsilon allows {chosen.epsilon:g}: set more noise, "
                "fewer epochs or a larger epsilon."
            )

    def loss(self, loss: Loss, rows: Rows, mask: Tensor | None, *names: str | int) -> Loss:
        """Return the loss for one visit of these rows: what flows back from it has noise. `names` are of this visit.

        `mask` says which of the rows take part; None: all do.
        """
        self._count(rows, mask)
        key, noise, each = derive(self.key, *names), self.accountant.noise, loss.each

        def noisy(output: Tensor) -> Tensor:
            made: Tensor = _NoisyDerivative.apply(output, key, noise)  # type: ignore[no-untyped-call]
            return made

        return replace(
            loss,
            function=lambda output, target: loss.function(noisy(output), target),
            each=None if each is None else lambda output, target: each(noisy(output), target),
        )

    def _count(self, rows: Rows, mask: Tensor | None) -> None:
        chosen = torch.arange(len(self.visits))[rows] if isinstance(rows, slice) else rows
        chosen = chosen if mask is None else chosen[mask]
        if not len(chosen):
            return
        found = self.visits[chosen] + 1
        if int(found.max()) > self.allowed:
            raise LimitError(
                f"a row's label would be visited {int(found.max()):,} times, and protect.visits.epsilon allows "
                f"{self.allowed:,.0f}: training ends here. More needs more noise or a larger epsilon from the start."
            )
        self.visits[chosen] = found

    @property
    def most(self) -> int:
        """How often the label was visited that was visited most."""
        return int(self.visits.max())

    def state_dict(self) -> dict[str, Any]:
        """Return the visits so far, and the noise that they had."""
        return {"visits": self.visits.clone(), "noise": self.accountant.noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting; with other noise than before the count would mean nothing."""
        if float(state["noise"]) != self.accountant.noise:
            raise CheckpointError(
                f"labels had noise of {state['noise']:g} at every visit so far, and would have "
                f"{self.accountant.noise:g} now: restore protect.visits, or set visits.epochs to the epochs of before."
            )
        self.visits = state["visits"].clone()


class _NoisyDerivative(torch.autograd.Function):
    """The identity, whose derivative gets noise on its way back."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, key: int, noise: float) -> Tensor:
        ctx.key, ctx.noise = key, noise
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, exact: Tensor) -> tuple[Tensor, None, None]:
        # The loss is a mean over rows, and the noise is about a row's own loss. Its key depends on the exact value too:
        # the same visit has the same noise after a restart, and no other value ever has it.
        draws = normal(derive(ctx.key, digest_of(exact)), tuple(exact.shape))
        return exact + (draws * (ctx.noise / max(1, len(exact)))).to(exact.dtype), None, None


def _sensitivity(loss: Loss, targets: Targets) -> float:
    """Return how far the derivative of a row's own loss by the output can differ between two labels."""
    bound = slope_bound(loss)
    if bound is None or targets.labels.dim() != 1:
        raise ConfigError(
            f"protect.visits: expected one label for each row and a loss whose derivative has a known bound "
            f"('cross_entropy', 'binary_cross_entropy' or 'huber'), got {loss.name!r} and labels of shape "
            f"{tuple(targets.labels.shape)}."
        )
    return bound * (1.0 if targets.weights is None else float(targets.weights.max()))


@dataclass(frozen=True)
class _Visited:
    """What a work set remembers of a batch, as far as it is needed to count."""

    step: int

    def tensors(self) -> dict[str, Tensor]:
        return {}


def most_visits(plan: Plan, steps: int, cached: bool = True) -> int:
    """Return how often the row that is visited most will be visited in so many steps, cached ones included or not."""
    batches, past_steps = plan.batches, plan.agreement.cached if cached else CachedSteps()
    if not past_steps.steps and (batches.full or batches.order == "shuffle"):
        return -(-steps // batches.per_epoch)
    counts = torch.zeros(batches.samples, dtype=torch.int32)
    remembered: WorkSet[_Visited] = WorkSet(past_steps, batches.per_epoch)
    for step in range(steps):
        counts[batches.rows(step)] += 1
        remembered.add(_Visited(step))
        for _, past in remembered.due(step):
            counts[batches.rows(past.step)] += 1
    return int(counts.max())

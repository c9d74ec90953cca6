"""A party's rows, towards all others: representations are clipped, and leave with noise, which is accounted for.

Noise comes before the difference to the memory is taken and compressed, so that all that is sent is post-processing of
clip(h) + noise, one Gaussian mechanism for each visit of a row. The guarantee is about a row's representation *given*
the local model: how the model itself depends on the row's columns, through training, is not part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from efvfl.core import ranges
from efvfl.core.accountant import Accountant
from efvfl.core.batches import Rows
from efvfl.core.noise import digest_of, normal
from efvfl.core.plan import Plan
from efvfl.core.visit_noise import most_visits
from efvfl.errors import CheckpointError, ConfigError, LimitError
from efvfl.util.rng import derive


@dataclass(frozen=True)
class RowProtection:
    """How a party protects its rows; 0 is off.

    >>> RowProtection(clip=1.0, noise=4.0).on, RowProtection().on
    (True, False)
    """

    clip: float = 0.0  # largest L2 norm of a row's representation; longer ones are made as short
    noise: float = 0.0  # standard deviation in every entry that leaves, in units of clip
    delta: float = 1e-5  # at which epsilon is told
    gradient_clip: float = 0.0  # of the local model: largest L2 norm of the gradient of a row's own loss
    gradient_noise: float = 0.0  # standard deviation in every entry of their sum, in units of gradient_clip

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        ranges.check_fields(self, "protect")
        if self.noise and not self.clip:
            raise ConfigError(
                f"protect.noise = {self.noise} of a party needs protect.clip: noise is in units of it, and hides "
                "nothing of a row that may be of any size. Set clip, such as 1.0."
            )

        if (self.gradient_clip > 0) != (self.gradient_noise > 0) or (self.gradient_noise and not self.noise):
            raise ConfigError(
                "protect.gradient_clip and gradient_noise of a party need each other, and clip and noise: without "
                "noise on what leaves, that of the model guarantees nothing."
            )

    @property
    def on(self) -> bool:
        """Whether anything is done."""
        return self.clip > 0

    @property
    def of_columns(self) -> bool:
        """Whether the columns of a row are protected, not its representation alone."""
        return self.gradient_noise > 0

    def accountant(self, name: str) -> Accountant:
        """Return what accounts for it, at a party of this name."""
        if self.of_columns:
            # A visit tells the representation, and then the next model: two Gaussian mechanisms, whose mu^2 add up.
            both = 1 / math.hypot(1 / self.noise, 1 / self.gradient_noise)
            return Accountant(
                f"the columns of each row at {name}, given how they were encoded",
                "all other participants together",
                f"representations clipped at {self.clip:g} with noise of {self.noise:g} times that, and DP-SGD: "
                f"gradients clipped at {self.gradient_clip:g} with noise of {self.gradient_noise:g} times that",
                2.0,
                both,
                delta=self.delta,
            )
        return Accountant(
            f"each row's representation at {name}, given its local model",
            "all other participants together",
            f"clipped at {self.clip:g}, Gaussian noise of {self.noise:g} times that at every visit",
            2.0,  # two rows that are clipped differ by at most twice the clip
            self.noise,
            delta=self.delta,
        )


@dataclass(frozen=True)
class RowClip:
    """A hook of a module that clips the rows of its output; gradients flow back through it."""

    clip: float

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """Return the output with no row longer than the clip."""
        norms: Tensor = torch.linalg.vector_norm(output, dim=1, keepdim=True, dtype=torch.float64)
        return output * (self.clip / norms.clamp(min=self.clip)).to(output.dtype)

    def put_on(self, module: nn.Module, name: str) -> None:
        """Clip what this module gives from now on; refuse one whose output for a row depends on other rows."""
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                raise ConfigError(
                    f"protect of {name!r}: expected a local model that works on each row alone, got one with "
                    f"{type(part).__name__}, whose output depends on the whole batch: use LayerNorm or none."
                )
        if self not in module._forward_hooks.values():
            module.register_forward_hook(self)


class RowNoise:
    """Adds the noise, and counts how often each of a party's rows has left it."""

    def __init__(self, plan: Plan, name: str, chosen: RowProtection, key: int) -> None:
        """Protect the rows of a party; the key is its secret."""
        self.plan = plan
        self.chosen = chosen
        self.key = key
        self.accountant = chosen.accountant(name)
        self.name = name
        self.visits = torch.zeros(plan.batches_of(name).samples, dtype=torch.int32)
        self.held_out = dict.fromkeys(plan.held_out, 0)  # visits by split: all its rows are sent together
        self.predicted, self.predicted_at = 0, -1  # how many states of the model predicted, and the last one's step
        self.allowed = math.inf  # visits of a row

    def allow(self, epsilon: float) -> None:
        """Refuse, from now on, to spend more than this."""
        self.allowed = self.accountant.visits_within(epsilon)

    def report(self, h: Tensor, rows: Rows, step: int) -> Tensor:
        """Return what leaves of training rows, and count their visit."""
        self.check(rows)
        self.visits[rows] += 1
        return self._noisy(h, "report", step)

    def evaluate(self, h: Tensor, split: str, *names: str | int) -> Tensor:
        """Return what leaves of all rows of a held-out split, and count their visit; `names` are of this visit."""
        self._refuse(self.held_out[split] + 1)
        self.held_out[split] += 1
        return self._noisy(h, split, *names)

    def predict(self, h: Tensor, ids: list[str]) -> Tensor:
        """Return what leaves of rows that are asked for by id when training is over.

        The noise of a row follows from its id and its representation, so that whoever asks again is told the same: as
        long as the model is the same, it is one visit, however often it is asked for.
        """
        rows = [self._noisy(row[None], "predicted", i) for i, row in zip(ids, h, strict=True)]
        return torch.cat(rows) if rows else h

    def begin_predictions(self, step: int) -> bool:
        """Return whether the model as it is after this step predicts for the first time, which counts as a visit."""
        if step == self.predicted_at:
            return False
        self._refuse(self._sent, self.predicted + 1)
        self.predicted, self.predicted_at = self.predicted + 1, step
        return True

    def check(self, rows: Rows) -> None:
        """Refuse a visit of training rows that would spend more than is allowed."""
        found = self.visits[rows]
        self._refuse(int(found.max()) + 1 if len(found) else 0)

    def _refuse(self, visits: int, predicted: int = 1) -> None:
        total = visits + max(predicted, self.predicted)
        if total > self.allowed:
            raise LimitError(
                f"a row of {self.name} would leave it {total:,} times, predictions included, and its limits.epsilon "
                f"allows {self.allowed:,.0f}."
            )

    def _noisy(self, h: Tensor, *names: str | int) -> Tensor:
        exact = h.detach()
        if not self.chosen.noise or not len(exact):
            return exact
        # As with labels: the same visit has the same noise after a restart, and no other value ever has it.
        draws = normal(derive(self.key, *names, digest_of(exact)), tuple(exact.shape))
        return exact + (draws * (self.chosen.noise * self.chosen.clip)).to(exact.dtype)

    @property
    def _sent(self) -> int:
        return max([int(self.visits.max()) if len(self.visits) else 0, *self.held_out.values()])

    @property
    def most(self) -> int:
        """How often the row has left that has left most; a first prediction by id is counted from the start."""
        return self._sent + max(1, self.predicted)

    def spent(self) -> dict[str, dict[str, float | str]]:
        """Return what a record says of it."""
        return {f"rows of {self.name}": self.accountant.spent(self.most)}

    def promise(self, steps: int) -> str:
        """Return what is said before training of so many steps, an upper bound: a record may be made each epoch."""
        plan, epochs = self.plan, -(-steps // self.plan.batches.per_epoch)
        trained = steps if plan.agreement.reports == "all" else most_visits(plan, steps, cached=False)
        evaluated = epochs + 1 if self.held_out else 0
        return self.accountant.statement(max(trained, evaluated) + 1, "will spend at most")

    def state_dict(self) -> dict[str, Any]:
        """Return the visits so far, and the noise that they had."""
        return {
            "visits": self.visits.clone(),
            "held_out": dict(self.held_out),
            "predicted": [self.predicted, self.predicted_at],
            "noise": self.accountant.noise,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting; with other noise than before the count would mean nothing."""
        if float(state["noise"]) != self.accountant.noise:
            raise CheckpointError(
                f"rows of {self.name} left with noise of {state['noise']:g} so far, and would with "
                f"{self.accountant.noise:g} now: restore protect."
            )
        self.visits = state["visits"].clone()
        self.predicted, self.predicted_at = (int(number) for number in state["predicted"])
        self.held_out = {split: int(count) for split, count in state["held_out"].items()}

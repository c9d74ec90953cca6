"""Losses and what to report beside them, by name: classification (binary, multi-class) and regression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from efvfl.core import ranges
from efvfl.errors import ConfigError, describe, nearest


@dataclass(frozen=True)
class Loss:
    """A loss that is a mean over rows, and the metric that people read.

    >>> from torch.nn.functional import l1_loss
    >>> absolute = Loss("l1", l1_loss, "negative error", lambda output, target: -float(l1_loss(output, target)))
    >>> float(absolute(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 3.0])))
    0.5
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]  # (output, target) -> mean over the rows
    metric_name: str
    metric: Callable[[Tensor, Tensor], float]  # (output, target) of all rows -> a number, larger is better
    labels: str = "any"  # what it takes: "classes" (from 0), "shares" (between 0 and 1), "numbers" (no bool), "any"
    each: Callable[[Tensor, Tensor], Tensor] | None = None  # (output, target) -> (rows, ...): rows can have weights
    truth: Loss | None = None  # what is measured on true labels, where this one is for randomised ones
    # Further metrics that records have, by name.
    more: Mapping[str, Callable[[Tensor, Tensor], float]] = field(default_factory=dict, compare=False)
    # (output, other) -> (rows, ...): the losses of rows if what another output says were their labels. With it, subsets
    # of parties learn in part from what all predict. It goes with `each`: replace both or none.
    like: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def on_truth(self) -> Loss:
        """What is measured on true labels."""
        return self.truth or self

    def measured(self, output: Tensor, target: Tensor) -> dict[str, float]:
        """Return the metric and all further ones, by name."""
        own = {name: float(metric(output, target)) for name, metric in self.more.items()}
        return {self.metric_name: self.metric(output, target)} | own

    def with_metrics(self, more: Mapping[str, Callable[[Tensor, Tensor], float]]) -> Loss:
        """Return the loss with further metrics beside its own."""
        for name, metric in more.items():
            if not isinstance(name, str) or name in ("loss", self.metric_name) or not callable(metric):
                raise ConfigError(
                    f"metrics: expected functions of output and labels, by names other than 'loss' and "
                    f"{self.metric_name!r}, got {describe(metric)} as {describe(name)}."
                )
        truth = None if self.truth is None else self.truth.with_metrics(more)
        return replace(self, more=dict(more), truth=truth) if more else self

    def __call__(self, output: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss; with weights of rows, the mean of weighted losses.

        It is not divided by the weights of these rows: then a batch would weigh as much as any other, whatever is in
        it.
        """
        if weights is None:
            return self.function(output, target)
        assert self.each is not None, "check_weights comes first"
        of_rows = self.each(output, target).reshape(len(output), -1).mean(dim=1)
        return (of_rows * weights.to(output.dtype)).mean()

    def check_weights(self, weights: Tensor | None) -> None:
        """Refuse weights of rows where only the mean of their losses is known."""
        if weights is not None and self.each is None:
            raise ConfigError(
                f"loss {self.name!r}: rows have weights, so expected `each`, its losses of single rows, got none: pass "
                "Loss(..., each=function), or leave the weights out."
            )

    def check(self, labels: Tensor, what: str = "labels") -> None:
        """Refuse labels that this loss would take for something else."""
        if labels.is_floating_point() and not bool(torch.isfinite(labels).all()):
            raise ConfigError(f"the {what} hold NaN or infinity.")
        if (self.labels != "any" and labels.is_complex()) or (self.labels == "numbers" and labels.dtype == torch.bool):
            raise ConfigError(
                f"loss {self.name!r}: expected numbers as {what}, got dtype {labels.dtype}: make them numbers "
                "(labels.float()), or use 'binary_cross_entropy' for yes and no."
            )
        if self.labels == "classes" and (labels.dtype != torch.int64 or labels.dim() != 1 or int(labels.min()) < 0):
            raise ConfigError(
                f"loss {self.name!r}: expected classes 0, 1, ... as int64, one for each row, got {what} of dtype "
                f"{labels.dtype}, shape {tuple(labels.shape)} and smallest {float(labels.min()):g}."
            )
        if self.labels == "shares" and (float(labels.min()) < 0 or float(labels.max()) > 1):
            raise ConfigError(
                f"loss {self.name!r}: expected {what} 0 and 1, got {float(labels.min()):g} to {float(labels.max()):g}."
            )


def _flat(output: Tensor, target: Tensor) -> Tensor:
    """A model with one output gives (batch, 1) where targets are (batch,)."""
    return output.reshape(target.shape) if output.shape != target.shape else output


def _accuracy(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(dim=1) == target).double().mean())


def _binary(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return F.binary_cross_entropy_with_logits(_flat(output, target), target.to(output.dtype), reduction=reduction)


def _binary_accuracy(output: Tensor, target: Tensor) -> float:
    return float(((_flat(output, target) > 0) == (target > 0.5)).double().mean())


def _mse(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return F.mse_loss(_flat(output, target), target.to(output.dtype), reduction=reduction)


def _huber(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return F.huber_loss(_flat(output, target), target.to(output.dtype), reduction=reduction)


def _r2(output: Tensor, target: Tensor) -> float:
    """The mean over outputs of each one's own R2: one mean for all would praise a model for telling them apart.

    Where a target does not vary, it is 1 for no error and 0 for any, as scikit-learn has it.
    """
    missed = (_flat(output, target) - target).double().square().sum(0)
    spread = (target - target.double().mean(0)).square().sum(0)
    each = torch.where(spread > 0, 1 - missed / spread, (missed == 0).double())
    return float(each.mean())


def _of_each(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return partial(function, reduction="none")


def _like_classes(output: Tensor, other: Tensor) -> Tensor:
    return F.cross_entropy(output, other.softmax(dim=1), reduction="none")


def _like_shares(output: Tensor, other: Tensor) -> Tensor:
    return _binary(output, other.sigmoid(), reduction="none")


LOSSES = {
    loss.name: loss
    for loss in (
        Loss(
            "cross_entropy",
            F.cross_entropy,
            "accuracy",
            _accuracy,
            "classes",
            _of_each(F.cross_entropy),
            like=_like_classes,
        ),
        Loss(
            "binary_cross_entropy",  # on logits
            _binary,
            "accuracy",
            _binary_accuracy,
            "shares",
            _of_each(_binary),
            like=_like_shares,
        ),
        Loss("mse", _mse, "r2", _r2, "numbers", _of_each(_mse), like=_of_each(_mse)),
        Loss("huber", _huber, "r2", _r2, "numbers", _of_each(_huber), like=_of_each(_huber)),
    )
}


def weighted(loss: Loss, weights: Tensor) -> Loss:
    """Return a loss of classes in which every row counts with the weight of its class."""
    each = _OfClasses(loss, weights)
    return replace(loss, function=each.mean, each=each, like=None)  # what others predict has no one class


def class_weights_of(loss: Loss) -> tuple[Loss, Tensor | None]:
    """Return the loss without weights of classes, and these."""
    return (loss.each.loss, loss.each.weights) if isinstance(loss.each, _OfClasses) else (loss, None)


@dataclass(frozen=True)
class _OfClasses:
    """The losses of rows, each multiplied by the weight of its class."""

    loss: Loss
    weights: Tensor

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        assert self.loss.each is not None, "only losses of classes are weighted by class"
        return self.loss.each(output, target) * self.weights.to(output.dtype)[target.long()]

    def mean(self, output: Tensor, target: Tensor) -> Tensor:
        return self(output, target).mean()


# How far the derivative of a row's loss by the output can differ between two labels, as an L2 norm. With p = softmax or
# sigmoid it is p minus the label; that of huber lies between -1 and 1.
_SLOPES = {"cross_entropy": 2**0.5, "binary_cross_entropy": 1.0, "huber": 2.0}


def slope_bound(loss: Loss) -> float | None:
    """Return how far the derivative of a row's loss by the output can differ between two labels; None: not known.

    A row that counts with the weight of its class moves by at most the largest weight as much.
    """
    if isinstance(loss.each, _OfClasses):
        bound = slope_bound(loss.each.loss)
        return None if bound is None else bound * float(loss.each.weights.max())
    return _SLOPES.get(loss.name) if loss == LOSSES.get(loss.name) else None  # not of another of the same name


def class_weights(
    wanted: str | Sequence[float], labels: Tensor, classes: int, row_weights: Tensor | None = None
) -> Tensor:
    """Return a weight for each class, with a mean of 1 over the rows so that steps keep their size.

    "balanced" weighs every class by the inverse of its share. Rows that have weights themselves count with these.
    """
    counts = torch.bincount(labels.long(), row_weights, minlength=classes).double()
    inverse = 1 / counts.where(counts > 0, 1.0)  # no row has the weight of a class without rows
    weights = inverse if isinstance(wanted, str) else given_weights(wanted, classes)
    return weights * counts.sum() / (weights * counts).sum()


def given_weights(wanted: Sequence[float], classes: int) -> Tensor:
    """Return weights of classes as they were given, or refuse them."""
    if len(wanted) != classes or not all(weight > 0 for weight in wanted):
        raise ConfigError(f"class_weights: expected {classes} positive numbers, got {describe(list(wanted))}.")
    for i, weight in enumerate(wanted):
        ranges.check("class_weights", weight, f"class_weights[{i}]")
    return torch.tensor(wanted, dtype=torch.float64)


def lookup(loss: str | Loss) -> Loss:
    """Return the loss of that name, or the loss itself."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        raise ConfigError(
            f"expected a loss, got {describe(loss)}. Give a name ({', '.join(map(repr, LOSSES))}), or "
            "Loss(name, function, metric_name, metric) around a function of your own."
        )
    if ":" in loss:
        return _own(loss)
    if loss not in LOSSES:
        raise ConfigError(f"there is no loss {loss!r}. {nearest(loss, LOSSES)}")
    return LOSSES[loss]


_finders: list[Callable[[str], object]] = []


def find_own_with(finder: Callable[[str], object]) -> None:
    """Have losses of your own that run files name found in this way."""
    _finders[:] = [finder]


def _own(path: str) -> Loss:
    """Return the loss that 'package.module:attribute' names: a `Loss`, or what returns one."""
    if not _finders:
        raise ConfigError(f"loss {path!r}: names of code work in run files; in Python, give the Loss itself.")
    try:
        found = _finders[0](path)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import the loss {path!r}: {error}") from error
    made = found() if callable(found) and not isinstance(found, Loss) else found
    if not isinstance(made, Loss):
        raise ConfigError(f"{path!r}: expected an efvfl.Loss, or a function that returns one, got {describe(made)}.")
    return replace(made, name=path)

"""How a label is randomised, in integers: of 64 random bits that a row gets, so many lead to each answer.

Nothing is rounded when a label is drawn, so the epsilon of a mechanism is a property of its integers, and is computed
from them. They are chosen so that it is at most the epsilon that was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.errors import ConfigError

Bits = NDArray[np.uint64]  # 64 random bits for each row

WHOLE = 1 << 64
STEPS = 128  # of a declared range: a number is rounded to one of them before it is randomised
REACH = 20.0  # noise beyond e^-REACH of its largest probability is cut off, for all numbers at the same two ends
MOST_CLASSES = 1 << 20


@dataclass(frozen=True)
class RandomisedResponse:
    """K-ary randomised response: a class is kept, or becomes each of the others with one probability.

    >>> response = RandomisedResponse.within(2.0, classes=2)
    >>> round(response.kept, 4), 2 - 1e-15 < response.epsilon <= 2
    (0.8808, True)
    """

    classes: int
    other: int  # how many of 2^64 lead to each other class

    def __post_init__(self) -> None:
        """Refuse what is no such response."""
        if not 2 <= self.classes <= MOST_CLASSES or not 0 < self.other <= WHOLE // self.classes:
            raise ConfigError(f"expected 2 classes or more and a share of each other one, got {asdict(self)}.")

    @classmethod
    def within(cls, epsilon: float, classes: int) -> RandomisedResponse:
        """Return the response that changes least with at most this epsilon."""
        with localcontext() as context:
            context.prec = 60
            least = Decimal(epsilon).exp() * (1 - Decimal(10) ** -50)  # certainly not above e^epsilon
            other = (WHOLE / (least + classes - 1)).to_integral_value(ROUND_CEILING)
        return cls(classes, int(other))

    @property
    def same(self) -> int:
        """How many of 2^64 keep the class."""
        return WHOLE - (self.classes - 1) * self.other

    @property
    def kept(self) -> float:
        """The probability that a class is kept."""
        return self.same / WHOLE

    @property
    def epsilon(self) -> float:
        """What the integers guarantee, rounded up."""
        return _logarithm(self.same, self.other)

    @property
    def text(self) -> str:
        """What a statement says."""
        return f"each drawn once among {self.classes} classes, kept with probability {self.kept:.4g}"

    def check(self, labels: Tensor) -> None:
        """Refuse labels that are none of the classes."""
        known = labels.dim() == 1 and bool(((labels >= 0) & (labels < self.classes) & (labels == labels.long())).all())
        if not known:
            raise ConfigError(
                f"protect.label_epsilon: expected classes from 0 to {self.classes - 1}, one for each row, got other "
                "labels: shares between 0 and 1, or several for a row, cannot be randomised."
            )

    def randomise(self, labels: Tensor, bits: Bits) -> Tensor:
        """Return the labels as they may be told, in the same dtype."""
        self.check(labels)
        classes, same = labels.long().numpy(), np.uint64(self.same)
        place = ((bits - same) // np.uint64(self.other)).astype(np.int64)  # among the others, where it is not kept
        drawn = np.where(bits < same, classes, place + (place >= classes))
        return torch.from_numpy(drawn).to(labels.dtype)


@dataclass(frozen=True)
class NoisyNumbers:
    """A number is clipped to a declared range, rounded to one of its steps, and gets discrete Laplace noise.

    >>> noisy = NoisyNumbers(0.0, 10.0, 2.0)
    >>> 1.999 < noisy.epsilon <= 2
    True
    """

    low: float
    high: float
    asked: float  # epsilon

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"protect.label_range: expected two numbers, low < high, got {self.low}, {self.high}.")

    @cached_property
    def weights(self) -> NDArray[np.uint64]:
        """How many of 2^64 lead to noise of 0, 1, 2, ... steps, to either side."""
        design = self.asked
        while _epsilon_of(found := _laplace(design)) > self.asked:  # rounding may cost a little
            design *= 1 - 2.0**-16
        return found

    @property
    def epsilon(self) -> float:
        """What the integers guarantee, rounded up."""
        return _epsilon_of(self.weights)

    @property
    def text(self) -> str:
        """What a statement says."""
        scale = (self.high - self.low) / self.asked
        return f"each clipped to {self.low:g} .. {self.high:g} and drawn once with Laplace noise of scale {scale:.4g}"

    def check(self, labels: Tensor) -> None:
        """Refuse labels that are not one number for each row."""
        if labels.dim() != 1:
            raise ConfigError(
                f"protect.label_epsilon: expected one number for each row, got labels of shape {tuple(labels.shape)}: "
                "several would have to share the epsilon."
            )

    def randomise(self, labels: Tensor, bits: Bits) -> Tensor:
        """Return the labels as they may be told, in the same dtype."""
        self.check(labels)
        step, most = (self.high - self.low) / STEPS, len(self.weights) - 1
        place = ((labels.double().clamp(self.low, self.high) - self.low) / step).round().long().numpy()
        both = np.concatenate([self.weights[:0:-1], self.weights])  # of noise from -most to most
        noise = np.searchsorted(np.cumsum(both[:-1], dtype=np.uint64), bits, side="right") - most
        drawn = np.clip(place + noise, STEPS - most, most)  # the same ends whatever the label
        return torch.from_numpy(self.low + drawn * step).to(labels.dtype)


Mechanism = RandomisedResponse | NoisyNumbers
_KINDS: dict[str, type[RandomisedResponse] | type[NoisyNumbers]] = {
    "response": RandomisedResponse,
    "numbers": NoisyNumbers,
}


def as_table(mechanism: Mechanism) -> dict[str, Any]:
    """Return what a file or a list says of it.

    >>> of_table(as_table(NoisyNumbers(0.0, 1.0, 2.0)))
    NoisyNumbers(low=0.0, high=1.0, asked=2.0)
    """
    (kind,) = (name for name, made in _KINDS.items() if isinstance(mechanism, made))
    return {"kind": kind, **asdict(mechanism)}


def of_table(table: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism that a file or somebody else tells of."""
    values = dict(table)
    kind = values.pop("kind", None)
    if kind == "response" and set(values) == {"classes", "other"} and all(type(v) is int for v in values.values()):
        return RandomisedResponse(**values)
    numbers = {"low", "high", "asked"} == set(values) and all(type(v) is float for v in values.values())
    if kind == "numbers" and numbers and 1e-3 <= values["asked"] <= 16:
        return NoisyNumbers(**values)
    raise ConfigError(f"expected how labels were randomised, got {dict(table)!r:.200}.")


def _laplace(epsilon: float) -> NDArray[np.uint64]:
    """Return integers that fall as discrete Laplace noise, which is of this epsilon over a whole range."""
    most, rate = math.ceil(STEPS * max(2.0, REACH / epsilon)), epsilon / STEPS
    shares = np.tanh(rate / 2) * np.exp(-rate * np.arange(most + 1))
    shares[-1] /= -math.expm1(-rate)  # all that is further away is told as one of the two ends
    found: NDArray[np.uint64] = np.maximum(1.0, shares * 2.0**64).astype(np.uint64)
    found[0] = WHOLE - 2 * int(found[1:].sum(dtype=np.uint64))
    return found


def _epsilon_of(weights: NDArray[np.uint64]) -> float:
    """Return what noise of these weights guarantees over a range of `STEPS`, rounded up.

    A number that is told has the largest probability from the label that is nearest, and the smallest from the one that
    is as far as the range allows. At the two ends, where alone the largest noise is told, tails are compared.
    """
    exact = weights.astype(np.float64)
    tails, inner = np.cumsum(exact[::-1])[::-1], exact[:-1]
    ratio = max(float((inner[:-STEPS] / inner[STEPS:]).max()), float(tails[-1 - STEPS] / tails[-1]))
    return math.log(ratio) * (1 + 1e-9)


def _logarithm(above: int, below: int) -> float:
    with localcontext() as context:
        context.prec = 60
        exact = (Decimal(above) / Decimal(below)).ln()
        near = float(exact)
        return near if Decimal(near) >= exact else math.nextafter(near, math.inf)

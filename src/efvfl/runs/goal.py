"""A metric of validation rows, and the value that a trial is to reach."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from efvfl.errors import ConfigError, nearest
from efvfl.runs import metrics
from efvfl.training import measure
from efvfl.training.federation import Federation
from efvfl.training.measure import Split

MARGIN = 0.01  # by which a target may miss the best value of the yardstick, as a share of it
ROWS = 10_000  # of the validation split that are looked at, so that looking stays cheap
_LOWER = frozenset({"loss", "log_loss", "brier", "calibration_error", "rmse", "mae"})


@dataclass(frozen=True)
class Goal:
    """A metric, and the value to reach; None: nearly as good as the yardstick."""

    metric: str
    value: float | None = None

    def better(self, left: float, right: float) -> bool:
        """Whether the left value is better than the right one."""
        return left < right if self.metric in _LOWER else left > right

    def reached(self, value: float) -> bool:
        """Whether a value is as good as the goal; NaN never is."""
        return self.value is not None and (value == self.value or self.better(value, self.value))

    def best(self, values: Collection[float]) -> float:
        """Return the best of some values; NaN only if there is no other."""
        known = [value for value in values if value == value]
        choose = min if self.metric in _LOWER else max
        return choose(known, default=float("nan"))

    def near(self, best: float) -> Goal:
        """Return the goal to be nearly as good as this value."""
        slack = MARGIN * abs(best)
        return Goal(self.metric, best + slack if self.metric in _LOWER else best - slack)


def parse_goal(text: str, main: str, names: Callable[[], Collection[str]]) -> Goal:
    """Read "0.9", "auc" or "auc=0.78"; a number alone is one of the main metric, and `names` are all that there are.

    >>> parse_goal("auc=0.78", "accuracy", lambda: ["accuracy", "auc"])
    Goal(metric='auc', value=0.78)
    """
    if (number := _number(text)) is not None:  # then no other metric is needed, nor the extra that most of them need
        return Goal(main, number)
    name, given, value = text.partition("=")
    if name not in (known := names()):
        raise ConfigError(
            f"target: expected a number, or a metric of this run, got {name!r:.80}. {nearest(name, known)}"
        )
    if not given:
        return Goal(name)
    if (number := _number(value)) is None:
        raise ConfigError(f"target: expected a number for {name}, such as {name}=0.9, got {value!r:.80}.")
    return Goal(name, number)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


class ValidationMetrics:
    """The metrics of a run's validation rows."""

    def __init__(self, validation: Split | None) -> None:
        """Look at these rows, evenly chosen if there are very many."""
        if validation is None or not len(validation.labels):
            raise ConfigError(
                "there are no validation rows, and nothing is chosen on test rows: raise data.validation, such as 0.15."
            )
        every = -(-len(validation.labels) // ROWS)
        self.split = validation.part(slice(None, None, every))

    def names(self, federation: Federation) -> set[str]:
        """Return all metrics that can be a goal."""
        output = self._output(federation)
        return {
            *self._quick(federation, output),
            *metrics.of_loss(federation.server.loss.name, output, self.split.labels),
        }

    def measure(self, federation: Federation, metric: str) -> float:
        """Return one of the metrics of the network as it is now; nothing changes by it."""
        output = self._output(federation)
        quick = self._quick(federation, output)
        return (
            quick[metric]
            if metric in quick
            else metrics.of_loss(federation.server.loss.name, output, self.split.labels)[metric]
        )

    def _output(self, federation: Federation) -> Tensor:
        return measure.predict(federation.models, federation.fusion, self.split.features)

    def _quick(self, federation: Federation, output: Tensor) -> dict[str, float]:
        return measure.scores(output, self.split.targets, federation.server.loss)

"""The response to a client of the prediction service: predictions, or why there are none."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from efvfl.core.local_model import one_by_one
from efvfl.errors import EfvflError
from efvfl.network.training.panel import RowOutcome


class Declined(EfvflError):
    """An error in response to a request: the HTTP status, a text, and further fields of the body."""

    def __init__(self, status: int, text: str, retry: int = 0, **more: Any) -> None:
        """Say after how many seconds to try again; 0: nothing is known of that."""
        super().__init__(text)
        self.status = status
        self.retry = retry
        self.more = more


@dataclass(frozen=True)
class Prediction:
    """The predictions of some rows."""

    ids: list[str]
    outcomes: list[RowOutcome]  # of every row
    columns: dict[str, list[Any]]  # for the rows that are ok, in order

    @property
    def unknown(self) -> int:
        """The number of different ids that were asked for in vain."""
        return len({i for i, outcome in zip(self.ids, self.outcomes, strict=True) if outcome.word == "unknown"})

    def to_json(self) -> bytes:
        """Return the body of a response."""
        rows = [_row(i, outcome) for i, outcome in zip(self.ids, self.outcomes, strict=True)]
        predicted = [row for row in rows if row["status"] == "ok"]
        for name, values in self.columns.items():
            for row, value in zip(predicted, values, strict=True):
                row[name] = value
        return json.dumps({"predictions": rows}, allow_nan=False).encode()


def _row(name: str, outcome: RowOutcome) -> dict[str, Any]:
    """Return what a response says of a row beside its prediction."""
    row: dict[str, Any] = {"id": name, "status": outcome.word}
    for key in ("parties", "lacking", "away", "fallback"):
        if names := getattr(outcome, key):
            row[key] = list(names)
    return row


def prediction_columns(output: Tensor, loss: str, names: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Return the columns of a prediction: classes and probabilities, or values; `names` are those of the classes.

    Each row is computed alone, because torch's sigmoid of a number depends in its last bit on the number's place.
    """
    values = output.detach().double()
    if loss == "cross_entropy":
        shares = one_by_one(lambda row: row.softmax(dim=1), values)
        labels: Sequence[str | int] = names or range(shares.shape[1])
        return {
            "prediction": [labels[c] for c in shares.argmax(dim=1).tolist()],
            "probabilities": shares.tolist(),
        }
    if loss == "binary_cross_entropy":
        probabilities = [_sigmoid(value) for value in values.reshape(-1).tolist()]
        labels = names or (0, 1)
        return {"prediction": [labels[p > 0.5] for p in probabilities], "probability": probabilities}
    return {"prediction": values.reshape(-1).tolist()}


def _sigmoid(value: float) -> float:
    power = math.exp(-abs(value))  # at most 1, so that it cannot overflow
    return 1 / (1 + power) if value >= 0 else power / (1 + power)

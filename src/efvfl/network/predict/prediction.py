"""The response to a client of the prediction service: predictions, or why there are none."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from efvfl.core.local_model import one_by_one
from efvfl.errors import EfvflError


class Declined(EfvflError):
    """An error in response to a request: the HTTP status, a text, and further fields of the body."""

    def __init__(self, status: int, text: str, retry: int = 0, **more: Any) -> None:
        """Say after how many seconds to try again; 0: nothing is known of that."""
        super().__init__(text)
        self.status = status
        self.retry = retry
        self.more = more


@dataclass(frozen=True)
class RowStatus:
    """What became of one row of a request."""

    word: Literal["ok", "unknown", "not asked"] = "ok"
    parties: tuple[str, ...] = ()  # that do not hold the row

    def table(self) -> dict[str, Any]:
        """Return the fields of the row in a response."""
        return {"status": self.word} | ({"parties": list(self.parties)} if self.parties else {})


@dataclass(frozen=True)
class Prediction:
    """The predictions of some rows."""

    ids: list[str]
    statuses: list[RowStatus]  # of every row
    columns: dict[str, list[Any]]  # for the rows that are ok, in order
    fallback: list[list[str]]  # for these rows, the parties whose mean was used

    @property
    def unknown(self) -> int:
        """The number of different ids that some party does not hold."""
        return len({i for i, status in zip(self.ids, self.statuses, strict=True) if status.word == "unknown"})

    def to_json(self) -> bytes:
        """Return the body of a response."""
        rows = [{"id": i, **status.table()} for i, status in zip(self.ids, self.statuses, strict=True)]
        predicted = [row for row in rows if row["status"] == "ok"]
        for name, values in self.columns.items():
            for row, value in zip(predicted, values, strict=True):
                row[name] = value
        for row, names in zip(predicted, self.fallback, strict=True):
            row |= {"fallback": names} if names else {}
        return json.dumps({"predictions": rows}, allow_nan=False).encode()


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

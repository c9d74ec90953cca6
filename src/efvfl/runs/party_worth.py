"""What each party of a run is worth, as a file in its folder: `efvfl value` and the report show it."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from efvfl.core.losses import Loss
from efvfl.core.server import Server
from efvfl.errors import ConfigError, DataError
from efvfl.training.values import (
    EXACT,
    ORDERS,
    Metric,
    PartyValues,
    ScoredRows,
    ValueEstimate,
    party_values,
    scored_rows,
)
from efvfl.util.files import write_atomically

VALUES = "values.json"
NOBODY = "nobody"  # the subset without any party, in words
ROWS = 10_000  # that are looked at, at most


@dataclass(frozen=True)
class Worth:
    """The values of parties on the rows of one split."""

    split: str
    rows: int  # that were looked at
    metric: str
    subsets: list[tuple[list[str], ValueEstimate]]  # by names, from nobody to everybody
    values: dict[str, ValueEstimate]

    @property
    def estimated(self) -> bool:
        """Whether random orders of the parties stand for all of them."""
        return len(self.values) > EXACT

    def shown(self, most: int = 64) -> list[tuple[list[str], ValueEstimate]]:
        """Return the smallest subsets, at most so many, and everybody."""
        return self.subsets if len(self.subsets) <= most else [*self.subsets[: most - 1], self.subsets[-1]]

    def note(self) -> str:
        """Say where the numbers come from."""
        how = f"estimated from {ORDERS} random orders of the parties" if self.estimated else "exact"
        return (
            f"On {self.rows:,} {self.split} rows, with intervals of 95 % from drawing these again. Shapley values, "
            f"{how}: they sum to the difference between everybody and nobody."
        )


def auc(output: Tensor, labels: Tensor) -> float:
    """Return the AUC of two classes from logits; equal outputs count half.

    >>> auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.75
    """
    score = output[:, 1] - output[:, 0] if output.dim() == 2 and output.shape[1] == 2 else output.reshape(-1)
    one = labels.reshape(-1) == 1
    positive, negative = int(one.sum()), int((~one).sum())
    if not positive or not negative:
        return float("nan")
    _, place, counts = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (counts.cumsum(0) - (counts - 1) / 2).double()[place]  # the mean rank of equal ones, from 1
    return (float(rank[one].sum()) - positive * (positive + 1) / 2) / (positive * negative)


def main_metric(loss: Loss, rows: ScoredRows) -> tuple[str, Metric]:
    """Return the metric that people read: AUC of two classes, else that of the loss."""
    two = loss.name == "binary_cross_entropy" or (loss.name == "cross_entropy" and rows.outputs == 2)
    labels = rows.labels.reshape(-1)
    if two and bool(((labels == 0) | (labels == 1)).all()) and bool((labels != labels[0]).any()):
        return "auc", auc
    return loss.metric_name, loss.metric


def split_of(sent: Container[str], labels: Mapping[str, Tensor]) -> str:
    """Return which rows are looked at: validation rows, else test rows; empty: there are none."""
    return next((split for split in ("validation", "test") if split in sent and len(labels[split])), "")


def leave_values(
    folder: Path, server: Server, parts: Mapping[str, Mapping[str, Tensor]], labels: Mapping[str, Tensor]
) -> None:
    """Write what parties are worth on validation rows, else on test rows, if any subset of them may predict.

    `parts` has representations by split and party; where held-out rows were sent by messages these are looked at.
    """
    sent = server.evaluation.parts if server.evaluation else parts
    split = split_of(sent, labels)
    if not split or server.plan.presence is None:
        return
    rows = thinned(scored_rows(server.fusion, sent[split], server.plan.held_out_presence.get(split), labels[split]))
    metric, function = main_metric(server.loss, rows)
    worth = _worth(split, len(rows.labels), party_values(rows, server.plan.names, function, metric))
    write_atomically(folder / VALUES, (json.dumps(asdict(worth), indent=1) + "\n").encode())


def thinned(rows: ScoredRows) -> ScoredRows:
    """Return so many rows that hundreds of resamples stay cheap, evenly chosen."""
    return rows.every(step_of(len(rows.labels)))


def step_of(rows: int) -> int:
    """Return that each so many-th row is looked at."""
    return max(1, -(-rows // ROWS))


def _worth(split: str, rows: int, found: PartyValues) -> Worth:
    subsets = sorted(found.subsets.items(), key=lambda item: len(item[0]))
    return Worth(split, rows, found.metric, [(list(n), e) for n, e in subsets], dict(found.values))


def load_values(folder: Path) -> Worth | None:
    """Return what `leave_values` wrote; None if there is no file."""
    path = folder / VALUES
    if not path.exists():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return Worth(
            str(table["split"]),
            int(table["rows"]),
            str(table["metric"]),
            [([str(name) for name in names], estimate_of(e)) for names, e in table["subsets"]],
            {str(name): estimate_of(e) for name, e in table["values"].items()},
        )
    except (OSError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"expected what parties are worth in {path}: {error}. Delete it.") from error


def estimate_of(table: Mapping[str, Any]) -> ValueEstimate:
    """Return an estimate as a file has it."""
    return ValueEstimate(*(float(table[key]) for key in ("value", "low", "high")))


def read_values(folder: Path) -> Worth:
    """Return what the parties of a run are worth, or say why that is not known."""
    found = load_values(folder)
    if found is None:
        raise ConfigError(
            f"there is no {VALUES} in {folder}: expected the folder of a finished run, or the label holder's, whose "
            "model was trained for subsets of parties and evaluated on validation or test rows. Train with align = "
            "'outer' or agreement.subsets = 'sampled'."
        )
    return found

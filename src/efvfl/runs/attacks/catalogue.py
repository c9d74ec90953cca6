"""Every attack of the bench by name: whom it is by, what it is about, and exactly what the attacker knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from efvfl.errors import ConfigError, nearest

About = Literal["labels", "columns"]


@dataclass(frozen=True)
class AttackKind:
    """One attack."""

    name: str
    about: About  # labels: by a party, AUC, 1 is all; columns: by the server, error that is left, 0 is all
    knows: str  # beside the shared settings and the batches, which everybody knows
    baseline: bool = False  # what is told without the federation


_SENT = "all cotangents that it was sent"
_UPLINK = "all that the party reported of its training rows, added up where error feedback does"

KINDS = (
    AttackKind("shared-labels", "labels", "the labels that were shared with it, randomised or not"),
    AttackKind("norm", "labels", f"{_SENT}; which of two ends is class 1"),
    AttackKind("direction", "labels", f"{_SENT}, and the labels of a few rows of each class"),
    AttackKind("spectral", "labels", "its own trained model and columns, and the labels of a few rows of each class"),
    AttackKind("completion", "labels", "its own trained model and columns, and the labels of a few rows of each class"),
    AttackKind("active-completion", "labels", "as completion, and it trained with longer steps than were agreed on"),
    AttackKind(
        "batch-inversion",
        "labels",
        "no cotangent, but its model's gradient averaged over each batch, as no mode of efvfl sends it, its own model "
        "and columns, and the labels of a few rows of each class",
    ),
    AttackKind("columns-alone", "labels", "its columns, and the labels of a few rows of each class", baseline=True),
    AttackKind("inverse", "columns", f"{_UPLINK}, and the columns of a shadow sample of these rows; no model"),
    AttackKind("generative", "columns", f"{_UPLINK}, the party's trained model, and every column's mean and spread"),
    AttackKind(
        "inverse-held-out",
        "columns",
        "what the party sends of held-out rows when training is over, and the columns of a shadow sample of these",
    ),
    AttackKind(
        "generative-held-out",
        "columns",
        "what the party sends of held-out rows when training is over, its trained model, and every column's mean and "
        "spread",
    ),
    AttackKind(
        "without-uplink",
        "columns",
        "nothing of the party but the columns of a shadow sample; the labels, and the label holder's own columns",
        baseline=True,
    ),
)
NAMES = tuple(kind.name for kind in KINDS)


def chosen(names: Sequence[str]) -> tuple[AttackKind, ...]:
    """Return attacks by name, in the order of this file; without names, all."""
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"there is no attack {name!r}. {nearest(name, NAMES)}")
    return tuple(kind for kind in KINDS if not names or kind.name in names)

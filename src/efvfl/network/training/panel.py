"""Who predicts a row: the parties that are here and hold it, if the model was trained for just these.

A model that was trained for all parties together needs all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from efvfl.core.plan import Plan
from efvfl.errors import ConfigError, nearest
from efvfl.network.links.presence import Presence

WAIT = 5.0  # seconds in which a missing party may come before a prediction does without it

Names = tuple[str, ...]  # of parties, in their order


@dataclass(frozen=True)
class RowOutcome:
    """What became of one row that was to be predicted."""

    word: Literal["ok", "unknown", "away", "untrained", "not asked"]
    parties: Names = ()  # that are here and hold it: a prediction rests on their columns, and on no others
    lacking: Names = ()  # that do not hold it, as far as that is why there is no prediction
    away: Names = ()  # that could not be asked, likewise
    fallback: Names = ()  # whose mean was used instead

    @property
    def ok(self) -> bool:
        """Whether there is a prediction."""
        return self.word == "ok"

    def text(self) -> str:
        """Return it in words.

        >>> RowOutcome("unknown", lacking=("bank", "shop"), away=("telco",)).text()
        'not held by bank, shop; telco is away'
        """
        if self.word == "untrained":
            return f"not trained for {', '.join(self.parties)} alone"
        held = [f"not held by {', '.join(self.lacking)}"] if self.lacking else []
        away = [f"{', '.join(self.away)} {'is' if len(self.away) == 1 else 'are'} away"] if self.away else []
        return "; ".join([*held, *away]) or self.word


@dataclass(frozen=True)
class PartyPanel:
    """The parties of a model, and which of them a prediction needs."""

    plan: Plan
    required: frozenset[str]
    _trained: dict[Names, bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, plan: Plan, required: Collection[str] = ()) -> PartyPanel:
        """Return the panel of a model; a prediction needs those required, or all if nothing else was trained for."""
        for name in required:
            if name not in plan.names:
                raise ConfigError(f"--require: {name!r} is not a party of this model. {nearest(name, plan.names)}")
        return cls(plan, frozenset(required if plan.presence else plan.names))

    @classmethod
    def convene(cls, plan: Plan, presence: Presence, required: Collection[str], wait: float | None) -> PartyPanel:
        """Return the panel, and have parties that it does without waited for so many seconds; None: the usual time."""
        panel = cls.of(plan, required)
        if not panel.any_subset and wait is not None:
            raise ConfigError(
                "--wait says when to predict without a party, and this model was trained for all parties together: "
                "leave it out, or train with agreement.subsets = 'sampled'."
            )
        if panel.any_subset:
            presence.patience = WAIT if wait is None else wait
            presence.on_missing = "wait"  # else one that is missing for long would end it all
            if not presence.patience >= 0:
                raise ConfigError(f"expected --wait of 0 seconds or more, got {wait:g}.")
        return panel

    @property
    def any_subset(self) -> bool:
        """Whether a row may be predicted without some party."""
        return self.plan.presence is not None

    def outcome(self, holding: Collection[str], lacking: Collection[str]) -> RowOutcome:
        """Return what becomes of a row that some hold and some lack; all others could not be asked."""
        has, lost = self._named(holding), self._named(lacking)
        away = tuple(name for name in self.plan.names if name not in has and name not in lost)
        needed_lost, needed_away = self._needed(lost), self._needed(away)
        if needed_lost:
            return RowOutcome("unknown", lacking=needed_lost)
        if needed_away:
            return RowOutcome("away", away=needed_away)
        if not has:
            return RowOutcome("unknown" if lost else "away", lacking=lost, away=away)
        return RowOutcome("ok" if self._trained_for(has) else "untrained", has)

    def _named(self, names: Collection[str]) -> Names:
        return tuple(name for name in self.plan.names if name in names)

    def _needed(self, names: Sequence[str]) -> Names:
        return tuple(name for name in names if name in self.required)

    def _trained_for(self, names: Names) -> bool:
        if names not in self._trained:
            present = torch.tensor([[name in names for name in self.plan.names]])
            self._trained[names] = bool(self.plan.trained_for(present))
        return self._trained[names]

    def mask(self, outcomes: Sequence[RowOutcome]) -> torch.Tensor | None:
        """Return whose columns rows are predicted from, as a fusion model takes it; None: it knows of no absence."""
        if not self.any_subset:
            return None
        rows = [[name in outcome.parties for name in self.plan.names] for outcome in outcomes]
        return torch.tensor(rows, dtype=self.plan.dtype)

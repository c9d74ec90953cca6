"""What is known of some rows while requests for them are answered: what parties have given, and what they lack."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from efvfl.network.predict.cache import Rows
from efvfl.network.training.panel import PartyPanel, RowOutcome


class KnownRows:
    """Representations by party and id, and ids that parties do not hold."""

    def __init__(self, panel: PartyPanel, widths: Mapping[str, int]) -> None:
        """Know nothing yet of the rows of these parties."""
        self.panel = panel
        self.widths = widths
        self.found: dict[str, dict[str, Rows]] = {name: {} for name in widths}
        self.lacking: dict[str, set[str]] = {name: set() for name in widths}

    def gone(self, askable: Collection[str]) -> set[str]:
        """Return the ids that nobody will predict: a party that is needed lacks them, or all do that can be asked."""
        needed = set[str]().union(*(self.lacking[name] for name in self.panel.required))
        open_ = [self.lacking[name] for name in askable]
        nobody = set.intersection(*open_) if open_ else set[str]()
        return needed | {i for i in nobody if not any(i in rows for rows in self.found.values())}

    def in_vain(self, local: Collection[str]) -> set[str]:
        """Return the ids that some party that is not `local` was asked for and lacks."""
        return set[str]().union(*(ids for name, ids in self.lacking.items() if name not in local))

    def outcome(self, i: str, means: Mapping[str, Rows]) -> RowOutcome:
        """Return what becomes of a row; means stand in for parties that are away, but not for all."""
        holding = [name for name, rows in self.found.items() if i in rows]
        outcome = self.panel.outcome(holding, [name for name, ids in self.lacking.items() if i in ids])
        if outcome.word == "away" and holding and all(name in means for name in outcome.away):
            return RowOutcome("ok", tuple(holding), fallback=outcome.away)
        return outcome

    def parts(self, rows: Sequence[tuple[str, RowOutcome]], means: Mapping[str, Rows]) -> list[Rows]:
        """Return the representations of rows that are predicted, for every party; zeros where it is absent."""
        return [
            np.stack([self._part(name, i, outcome, means) for i, outcome in rows]).astype(np.float32, copy=False)
            for name in self.widths
        ]

    def _part(self, name: str, i: str, outcome: RowOutcome, means: Mapping[str, Rows]) -> Rows:
        if name in outcome.parties:
            return self.found[name][i]
        return means[name] if name in outcome.fallback else np.zeros(self.widths[name], dtype=np.float32)

"""Parties that are away for some steps, in one process: as if they could not be reached then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from efvfl.errors import ConfigError, describe

Away = Mapping[str, Sequence[range]]  # by party, the steps that go without it


@dataclass(frozen=True)
class Absences:
    """Which steps go without whom.

    >>> absences = Absences({"telco": [range(10, 20)]})
    >>> absences.has("telco", 19), absences.has("telco", 20), absences.has("bank", 15)
    (True, False, False)
    """

    away: Away = field(default_factory=dict)

    def check(self, names: Sequence[str]) -> None:
        """Refuse what is not about these parties, or leaves no party for some step."""
        if unknown := sorted(set(self.away) - set(names)):
            raise ConfigError(f"away: expected names of the parties {list(names)}, got {unknown[0]!r}.")
        for name, spans in self.away.items():
            for span in spans:
                if not isinstance(span, range) or span.step != 1 or not 0 <= span.start < span.stop:
                    raise ConfigError(
                        f"away: expected ranges of steps such as range(10, 20) for {name!r}, got {describe(span)}."
                    )
        for step in sorted({span.start for spans in self.away.values() for span in spans}):
            if all(self.has(name, step) for name in names):
                raise ConfigError(f"away: expected somebody to take part in step {step}, but all are away.")

    def has(self, name: str, step: int) -> bool:
        """Whether a step goes without a party."""
        return any(step in span for span in self.away.get(name, ()))

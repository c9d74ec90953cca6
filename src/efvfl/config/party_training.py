"""How one party trains its local model, as a file says it: `training` of a [[party]], or [training] in its own file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from efvfl.core import ranges


@dataclass(frozen=True)
class PartyTrainingConfig:
    """What is not as all do it."""

    optimizer: dict[str, Any] = field(default_factory=dict)  # of its local model, in place of [optimizer]
    local_steps: int = 0  # shared labels: updates of its local model in one round; 0: agreement.local_steps

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        ranges.check_fields(self, "training")

"""How one party trains its own block, where that is not as the others do (Flex-VFL): nobody else needs to know."""

from __future__ import annotations

from dataclasses import dataclass

from efvfl.core import ranges
from efvfl.core.optimizer import Optimizer
from efvfl.errors import ConfigError, describe


@dataclass(frozen=True)
class PartyTraining:
    """A party's own optimiser, and its own number Q of local updates in a round.

    >>> PartyTraining(Optimizer("Adam", {"lr": 0.01}), local_steps=4).local_steps
    4
    """

    optimizer: Optimizer | None = None  # of its local model; None: as all
    local_steps: int = 0  # shared labels: updates of its local model in one round; 0: as all

    def __post_init__(self) -> None:
        """Refuse what is no optimiser, and one whose rate the server would have to decide on."""
        ranges.check_fields(self, "training")
        if self.optimizer is None:
            return
        if not isinstance(self.optimizer, Optimizer):
            raise ConfigError(f"optimizer of a party: expected an Optimizer, got {describe(self.optimizer)}.")
        if self.optimizer.on_plateau:
            raise ConfigError(
                "optimizer of a party: expected another scheduler than ReduceLROnPlateau, for which the server tells "
                "all parties one rate: give it to the optimiser of all, or choose another one."
            )

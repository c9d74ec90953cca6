"""What was chosen, as far as choices depend on each other: what the table of rules looks at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from efvfl.core.agreement import Agreement
from efvfl.core.methods import Link, Method


@dataclass(frozen=True)
class Choices:
    """What was chosen, as far as the choices depend on each other."""

    agreement: Agreement = field(default_factory=Agreement)
    memory: bool = True  # whether the uplink has one with surrogates
    down_memory: bool = False
    own: bool = False  # whether a sender alone remembers something, such as an accumulated error
    idle_memory: bool = False  # whether a memory is named that the method does not use
    lossless: bool = False  # nothing is compressed (SVFL)
    down: bool = False  # whether cotangents are compressed
    sent_only: bool = False  # whether only those entries of cotangents go down that a report has changed
    fusion: bool = False  # whether something that compresses the fusion model is given
    fusion_chosen: bool = False  # the same, or the identity
    start: str = "compressed"
    first: bool = False  # whether a row's first report has a compressor of its own
    combine: str = "mean"
    widths: tuple[int, ...] = ()  # of the representations; empty: not known yet
    protect: bool = False  # whether something is done to what leaves at a step
    releases: bool = False  # whether labels are randomised before the first step
    clip: bool = False  # whether cotangents are clipped
    visits: bool = False  # whether labels have noise at every visit
    rows: bool = False  # whether a party protects its rows
    exact: bool = False  # whether held-out rows are evaluated exactly, beside the protocol
    stratify: bool = False  # whether splits follow from labels
    balanced: bool = False  # whether weights of classes follow from labels
    mapped: bool = False
    on_missing: str = "wait"
    away: bool = False  # whether one process plays a party that is away for some steps
    decides: bool = False  # whether patience or a plateau decides by the loss of validation rows
    evaluation: str | None = None  # None: as it is best
    missing: bool = False  # whether some parties lack some rows
    sampled: bool = False  # whether subsets of the parties are sampled
    own_local_steps: bool = False  # whether a party has its own number of local updates
    own_optimizer: bool = False  # whether a party has an optimiser of its own
    plateau: bool = False  # whether the rate of all follows the loss of validation rows

    @classmethod
    def of(cls, method: Method, agreement: Agreement, **others: object) -> Choices:
        """Return the choices that a method and an agreement make, and others by name."""
        return cls(**{**of_method(method, agreement), **others})

    def with_method(self, method: Method) -> Choices:
        """Return these choices with what only the method itself knows, for it and its memories may be yours."""
        return replace(self, **of_method(method, self.agreement))

    @property
    def shared(self) -> bool:
        """Whether labels are shared."""
        return not self.agreement.private

    @property
    def asynchronous(self) -> bool:
        """Whether steps are taken without waiting for all reports."""
        return self.agreement.asynchronous.on

    @property
    def stateless(self) -> bool:
        """Whether labels are shared, and what parties are sent is complete in itself."""
        shared = self.agreement.shared
        return shared is not None and shared.downlink == "aggregate" and shared.fusion == "send"

    def fusion_is(self, how: str) -> bool:
        """Whether the fusion model reaches the parties in this way."""
        return self.agreement.shared is not None and self.agreement.shared.fusion == how


def of_method(method: Method, agreement: Agreement) -> dict[str, Any]:
    """Return what a method chooses, as `Choices` calls it."""
    return {
        "agreement": method.agreed(agreement),
        "memory": method.up.memory.surrogate,
        "down_memory": method.down.memory.surrogate,
        "own": any(link.memory.own for link in (method.up, method.down, method.fusion)),
        "lossless": method.lossless,
        "down": method.down != Link(),
        "sent_only": method.cotangents == "sent",
        "fusion": method.fusion != Link(),
        "fusion_chosen": method.compresses_fusion,
        "start": method.up.start,
        "first": method.up.first is not None,
    }

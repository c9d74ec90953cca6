"""What `federate` takes beside data, models, method and agreement: how to train, and how participants are set up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from efvfl.core import ranges
from efvfl.core.agreement import check_word
from efvfl.core.batches import BatchOrder, Source
from efvfl.core.fusion import Combine
from efvfl.core.label_release import LabelRelease
from efvfl.core.losses import Loss
from efvfl.core.optimizer import Optimizer
from efvfl.core.party_training import PartyTraining
from efvfl.core.protection import Protection
from efvfl.core.row_protection import RowProtection
from efvfl.errors import ConfigError, describe
from efvfl.training.absences import Away
from efvfl.training.placement import Devices
from efvfl.training.simulated_clock import ReportSeconds

# exact: at every record validation and test rows are evaluated exactly, beside the protocol. compressed: by messages,
# validation rows through the compressor of training rows, and test rows, and both finely, once at the end.
Evaluation = Literal["exact", "compressed"]


@dataclass(frozen=True)
class Training:
    """How the network is trained. All randomness comes from `seed`, by name.

    >>> Training(Optimizer("Adam", {"lr": 0.01}), batch_size=128, loss="mse").seed
    0
    """

    optimizer: Optimizer = field(default_factory=Optimizer)  # of every block
    batch_size: int = 0  # rows in a batch; 0: all of them (full batch)
    loss: str | Loss = "cross_entropy"  # a name, or your own
    seed: int = 0
    batch_order: BatchOrder = (
        "shuffle"  # independent: every batch is drawn anew, as the theory of batch reports assumes
    )
    private_seeds: Mapping[str, int] | None = (
        None  # of participants whose seed is not to follow from `seed`; '': server
    )
    present: Any = None  # which training rows each party has, a mask for each; None: all but rows of nothing but NaN
    weights: Any = None  # how much each training row counts in the loss, in any form of labels; None: all alike
    patience: int = 0  # epochs without a better validation loss until it stops, and the best model is kept; 0: never
    evaluation: Evaluation | None = None  # None: compressed where patience or a plateau needs it, else exact
    metrics: Mapping[str, Callable[[Tensor, Tensor], float]] = field(default_factory=dict)  # further ones, by name
    parties: Mapping[str, PartyTraining] = field(default_factory=dict)  # that train their block in their own way

    def __post_init__(self) -> None:
        """Refuse what is no optimiser, and numbers that are not whole."""
        if not isinstance(self.optimizer, Optimizer):
            raise ConfigError(
                f"optimizer: expected an Optimizer, got {describe(self.optimizer)}. Write Optimizer('Adam', "
                "{'lr': 0.01})."
            )
        ranges.check_fields(self)
        for name, own in self.parties.items():
            if not isinstance(own, PartyTraining):
                raise ConfigError(f"parties: expected PartyTraining(...) for {name!r}, got {describe(own)}.")
        if self.evaluation is not None:
            check_word("evaluation", self.evaluation, Evaluation)

    @property
    def decides(self) -> bool:
        """Whether something is decided by the loss of validation rows."""
        return self.patience > 0 or self.optimizer.on_plateau

    @property
    def by_messages(self) -> bool:
        """Whether held-out rows are evaluated by messages."""
        return self.decides if self.evaluation is None else self.evaluation == "compressed"


@dataclass(frozen=True)
class Setup:
    """How representations are combined, who sits where, and how one process plays all participants.

    >>> Setup(combine="concat", label_holder="bank").wire
    False
    """

    combine: Combine = "mean"  # or sum, concat: what the head works on
    label_holder: str = ""  # the party, if any, that sits next to the server
    protect: Protection = field(default_factory=Protection)  # of labels, and of cotangents before they leave
    sources: Sequence[Source] | None = None  # what parties train on in place of `features`, such as augmented images
    device: Devices = "cpu"  # where local models compute, such as 'cuda', or by party; all else stays on the CPU
    wire: bool = False  # send every message through its bytes, which changes nothing but time
    shows_presence: bool = False  # a further input of the head for each party: 1 where it has the row, else 0
    protect_rows: Mapping[str, RowProtection] = field(default_factory=dict)  # of parties, where their rows leave them
    release: LabelRelease | None = None  # with protect.label_epsilon: a draw that was made; None: it follows from seeds
    mapped: Path | str | None = None  # a folder where memories lie in files, for more rows than RAM has room for
    report_seconds: ReportSeconds | None = None  # simulated time of each party's reports: by name, or by name and step
    away: Away = field(default_factory=dict)  # which steps go without a party: {"telco": [range(10, 20)]}
    arrivals: Sequence[Collection[str]] = ()  # asynchronous parties: whose reports each step takes, from an earlier run

    def __post_init__(self) -> None:
        """Refuse what is no protection."""
        if not isinstance(self.protect, Protection):
            raise ConfigError(
                f"protect: expected a Protection, got {describe(self.protect)}. Write protect=Protection(clip=0.5)."
            )

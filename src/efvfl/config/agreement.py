"""The `[agreement]` table of a run file: what the files of all participants must say alike."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from efvfl.core import ranges
from efvfl.core.agreement import (
    Agreement,
    CachedSteps,
    Downlink,
    FusionUpdates,
    LabelMode,
    MemoryDtype,
    Pipeline,
    PrivateLabels,
    Quorum,
    ReportRange,
    SharedLabels,
    Subsets,
)
from efvfl.errors import ConfigError

_OF_SHARED_LABELS = ("downlink", "fusion", "local_steps", "digest_every")


@dataclass(frozen=True)
class AgreementConfig:
    """What the files of all participants must say alike."""

    labels: Literal["private", "shared"] = "private"  # private: Algorithm 2; shared: all parties hold them, Algorithm 1
    downlink: Downlink = "relay"  # shared labels: the other parties' packets, or the combination of all (Appendix D)
    fusion: FusionUpdates = "send"  # shared labels: how the fusion model x0 reaches the parties
    reports: ReportRange = "batch"  # rows of a report: the batch (C2 o C1), or all rows (Algorithm 1 as stated)
    local_steps: int = 1  # shared labels: the paper's Q, updates of every block in one round
    digest_every: int = 50  # shared labels, replicate: steps between two comparisons of the copies
    pipeline: Pipeline = False  # steps under way at a time: true: 2, auto: measured; updates are that stale, less one
    memory_dtype: MemoryDtype = ""  # of surrogates at all ends: a narrower one halves them, and rounds
    cached: CachedSteps = field(default_factory=CachedSteps)  # private labels: what is learnt between two rounds
    subsets: Subsets = "auto"  # trained to predict: sampled ones, or all alone (off); auto: sampled if rows are missing
    asynchronous: Quorum = field(default_factory=Quorum)  # whether, and when, a step is taken without some reports

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        ranges.check_fields(self, "agreement")
        self.build()

    def build(self) -> Agreement:
        """Return the agreement; a setting of shared labels is refused with private ones."""
        chosen = {name: getattr(self, name) for name in _OF_SHARED_LABELS}
        mode: LabelMode = SharedLabels(**chosen)
        if self.labels == "private":
            for f in fields(self):
                if f.name in chosen and chosen[f.name] != f.default:
                    raise ConfigError(
                        f"agreement.{f.name} does not go with private labels: it would have no effect, because parties "
                        "run neither the fusion model nor the loss. Leave it out, or set labels = 'shared'."
                    )
            mode = PrivateLabels()
        return Agreement(
            mode, self.reports, self.pipeline, self.memory_dtype, self.cached, self.subsets, self.asynchronous
        )

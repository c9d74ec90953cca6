"""What all participants must choose alike: who sees the labels, and what a report and a memory hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from efvfl.core import ranges
from efvfl.errors import ConfigError, describe, nearest

Downlink = Literal["relay", "aggregate"]
FusionUpdates = Literal["send", "replicate", "compress"]
ReportRange = Literal["batch", "all"]
MemoryDtype = Literal["", "bfloat16"]
Pipeline = bool | int | Literal["auto"]
Subsets = Literal["auto", "sampled", "off"]

AUTO_WINDOWS = (1, 2, 4, 8)  # steps under way that `pipeline = "auto"` tries, one after the other


@dataclass(frozen=True)
class PrivateLabels:
    """Algorithm 2: labels and fusion model stay at the server, and each party receives its cotangent.

    >>> Agreement(PrivateLabels()).private
    True
    """


@dataclass(frozen=True)
class SharedLabels:
    """Algorithm 1: every party holds the labels and computes its own cotangent.

    >>> Agreement(SharedLabels(fusion="replicate")).private
    False
    """

    downlink: Downlink = "relay"  # the other parties' packets, or the combination of all (Appendix D)
    fusion: FusionUpdates = "send"  # how the fusion model x0 reaches the parties
    local_steps: int = 1  # the paper's Q: updates of every block in one round
    digest_every: int = 50  # replicate: steps between two comparisons of the copies

    def __post_init__(self) -> None:
        """Refuse unknown words and counts below 1."""
        check_word("downlink", self.downlink, Downlink)
        check_word("fusion", self.fusion, FusionUpdates)
        ranges.check("agreement.local_steps", self.local_steps, "local_steps")
        ranges.check("agreement.digest_every", self.digest_every, "digest_every")


@dataclass(frozen=True)
class CachedSteps:
    """Updates between two rounds from what is remembered of the last batches (private labels; not in the paper).

    >>> Agreement(cached=CachedSteps(9)).cached.steps
    9
    """

    steps: int = 0  # of every block after each round; 0: none. More => fewer rounds and bytes, staler updates
    batches: int = 0  # that are remembered: each is used `steps` times in all; 0: those of an epoch, that is all rows
    angle: float = 60.0  # degrees: a row that has turned farther since its batch weighs nothing; 180: all weigh alike

    def __post_init__(self) -> None:
        """Refuse counts and angles that make no sense."""
        ranges.check_fields(self, "cached")
        if 90 < self.angle < 180:
            raise ConfigError(
                f"cached.angle: expected at most 90 degrees, or 180 for rows that all weigh alike, got {self.angle:g}: "
                "a row that has turned by more than a right angle would weigh less than nothing."
            )


@dataclass(frozen=True)
class Quorum:
    """Asynchronous parties: a step is taken without waiting for all reports (not in the paper).

    >>> Agreement(asynchronous=Quorum(reports=3, most_stale=10)).asynchronous.on
    True
    """

    reports: int = 0  # a step is taken as soon as so many are here; 0: all
    deadline_seconds: float = 0.0  # or when it has waited this long and one is here; 0: there is no deadline
    most_stale: int = 20  # steps that may pass without a party's open report: then it is waited for

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        ranges.check_fields(self, "asynchronous")

    @property
    def on(self) -> bool:
        """Whether a step may be taken before all have reported."""
        return self.reports > 0 or self.deadline_seconds > 0


LabelMode = PrivateLabels | SharedLabels
_MODES = {"private": PrivateLabels, "shared": SharedLabels}


@dataclass(frozen=True)
class Agreement:
    """The choices that every participant must make alike.

    >>> Agreement(SharedLabels(downlink="aggregate", local_steps=2)).local_steps
    2
    >>> Agreement("shared") == Agreement(SharedLabels())
    True
    """

    # A word stands for the mode with its defaults.
    labels: LabelMode | Literal["private", "shared"] = field(default_factory=PrivateLabels)  # or SharedLabels(...)
    reports: ReportRange = "batch"  # rows of a report: the batch (C2 o C1), or all rows (Algorithm 1 as stated)
    pipeline: Pipeline = False  # steps under way at a time: true: 2, auto: measured; updates are that stale, less one
    memory_dtype: MemoryDtype = ""  # of surrogates at all ends: a narrower one halves them, and rounds
    cached: CachedSteps = field(default_factory=CachedSteps)  # private labels: what is learnt between rounds
    subsets: Subsets = "auto"  # trained to predict: sampled ones, or all alone (off); auto: sampled if rows are missing
    asynchronous: Quorum = field(default_factory=Quorum)  # whether, and when, a step is taken without some reports

    def __post_init__(self) -> None:
        """Turn a word into its label mode; refuse unknown words."""
        if isinstance(self.labels, str) and self.labels in _MODES:
            object.__setattr__(self, "labels", _MODES[self.labels]())
        if not isinstance(self.labels, LabelMode):
            raise ConfigError(
                "labels: expected PrivateLabels(), SharedLabels(...), 'private' or 'shared', got "
                f"{describe(self.labels)}."
            )
        check_word("reports", self.reports, ReportRange)
        check_word("memory_dtype", self.memory_dtype, MemoryDtype)
        check_word("subsets", self.subsets, Subsets)
        if not isinstance(self.pipeline, bool) and not self.measures_window:
            ranges.check("agreement.pipeline", self.pipeline, "pipeline")
        if not isinstance(self.cached, CachedSteps):
            raise ConfigError(f"cached: expected CachedSteps(...), got {describe(self.cached)}.")
        if not isinstance(self.asynchronous, Quorum):
            raise ConfigError(f"asynchronous: expected Quorum(...), got {describe(self.asynchronous)}.")

    @property
    def shared(self) -> SharedLabels | None:
        """The choices that exist only with shared labels; None where labels are private."""
        return self.labels if isinstance(self.labels, SharedLabels) else None

    @property
    def private(self) -> bool:
        """Whether labels stay at the server."""
        return self.shared is None

    @property
    def local_steps(self) -> int:
        """Updates of every block in one round, the paper's Q."""
        return self.shared.local_steps if self.shared else 1

    @property
    def measures_window(self) -> bool:
        """Whether the server finds out over a network how many steps are best under way at a time."""
        return self.pipeline == "auto"

    @property
    def window(self) -> int:
        """How many steps may be under way at a time: what all are ready for."""
        if self.pipeline == "auto":
            return AUTO_WINDOWS[-1]
        return 2 if self.pipeline is True else max(1, int(self.pipeline))

    @property
    def window_here(self) -> int:
        """How many steps are under way in one process: with 'auto' one, because there is no line to measure."""
        return 1 if self.measures_window else self.window


def check_word(name: str, value: object, known: object) -> None:
    """Refuse a value that is none of a Literal's words."""
    words = get_args(known)
    if value not in words:
        raise ConfigError(
            f"{name}: expected one of {', '.join(map(repr, words))}, got {describe(value)}. "
            f"{nearest(str(value), [word for word in words if word])}"
        )

"""The methods as compositions of two parts in each direction, and what all participants must agree on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from efvfl.compress import Compressor, Identity
from efvfl.core.memory import Start
from efvfl.errors import ConfigError, nearest, shown, whole

Labels = Literal["shared", "private"]
Remembers = Literal["direct", "error_feedback"]


@dataclass(frozen=True)
class Link:
    """One direction: what compresses, and what both ends remember."""

    compressor: Compressor = field(default_factory=Identity)
    memory: Remembers = "direct"
    start: Start = "compressed"  # exact: a row's first report is not compressed (drops Theorem 1's D0 term)

    def __post_init__(self) -> None:
        """Refuse what is no compressor, and words that nobody knows."""
        if not isinstance(self.compressor, Compressor):
            raise ConfigError(
                f"{shown(self.compressor)} came as a compressor, one with its knobs is expected: write "
                "efvfl(TopK(0.1)) or cvfl(QSGD(4)), and svfl() for none."
            )
        for name, value, known in (("memory", self.memory, Remembers), ("start", self.start, Start)):
            if value not in get_args(known):
                raise ConfigError(f"{name} = {shown(value)} came. {nearest(str(value), get_args(known))}")


@dataclass(frozen=True)
class Method:
    """A way to send representations up, cotangents down (private labels) and the fusion model down (compressed)."""

    name: str
    up: Link
    down: Link = field(default_factory=Link)
    fusion: Link = field(default_factory=Link)


def svfl() -> Method:
    """Return standard VFL: nothing is compressed. With one local step this is SGD on the whole network."""
    return Method("svfl", Link())


def cvfl(compressor: Compressor, down: Compressor | None = None, fusion: Compressor | None = None) -> Method:
    """Return compressed VFL (Castiglia et al.): every value is compressed on its own."""
    return Method(
        "cvfl",
        Link(compressor),
        Link() if down is None else Link(down),
        Link() if fusion is None else Link(fusion),
    )


def efvfl(
    compressor: Compressor,
    down: Compressor | None = None,
    fusion: Compressor | None = None,
    start: Start = "compressed",
) -> Method:
    """Return EF-VFL: the *change* against a memory that both ends keep is compressed."""
    return Method(
        "efvfl",
        Link(compressor, "error_feedback", start),
        Link() if down is None else Link(down, "error_feedback"),
        Link() if fusion is None else Link(fusion, "error_feedback"),
    )


@dataclass(frozen=True)
class Agreement:
    """The choices that every participant must make alike."""

    labels: Labels = "private"  # shared: Algorithm 1, all parties hold the labels; private: Algorithm 2
    downlink: Literal["relay", "aggregate"] = "relay"  # shared labels: the peers' packets, or the combination (App. D)
    fusion: Literal["send", "replicate", "compress"] = "send"  # shared labels: how x0 reaches the parties
    reports: Literal["batch", "all"] = "batch"  # rows of a report: the batch (C2 o C1), or all (Algorithm 1 as stated)
    local_steps: int = 1  # the paper's Q: updates of every block in one round
    digest_every: int = 50  # replicate: steps between two comparisons of the copies
    pipeline: bool = False  # work on step t + 1 while the answer to step t travels: updates are one step stale
    memory_dtype: Literal["", "bfloat16"] = ""  # of surrogates at all ends: narrower is half the size, and rounds them

    def __post_init__(self) -> None:
        """Refuse what cannot work, and say why."""
        for name, choices in (
            ("labels", ("shared", "private")),
            ("downlink", ("relay", "aggregate")),
            ("fusion", ("send", "replicate", "compress")),
            ("reports", ("batch", "all")),
            ("memory_dtype", ("", "bfloat16")),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} = {getattr(self, name)!r} came, one of {', '.join(choices)} is expected.")
        if whole("local_steps", self.local_steps) < 1 or whole("digest_every", self.digest_every) < 1:
            raise ConfigError("local_steps and digest_every must be 1 or more.")
        if self.labels == "private" and self.local_steps > 1:
            raise ConfigError(
                f"local_steps = {self.local_steps} needs labels = 'shared': after its first update a party must run "
                "the fusion model and the loss itself, and with private labels it has neither. Use local_steps = 1."
            )
        if self.pipeline and self.labels == "shared" and self.fusion == "replicate":
            raise ConfigError(
                "pipeline = true does not work with fusion = 'replicate': a party's copy is a step behind when it is "
                "compared with the server's. Use fusion = 'send' or 'compress'."
            )

    @property
    def window(self) -> int:
        """How many steps are under way at a time."""
        return 2 if self.pipeline else 1


Idle = tuple[object, str, str]  # whether a setting is idle, its name, and why it would be


def refuse_idle(*settings: Idle) -> None:
    """Refuse settings that would have no effect."""
    for idle, setting, why in settings:
        if idle:
            raise ConfigError(
                f"{setting} is set, but it would have no effect: {why}. Leave it out or change the other."
            )


def check_together(agreement: Agreement, down: bool, fusion: bool) -> None:
    """Refuse an agreement and compressors, of cotangents and of the fusion model, that do not belong together."""
    private = agreement.labels == "private"
    refuse_idle(
        (down and not private, "method.down", "labels are shared: no cotangent is sent"),
        (fusion and agreement.fusion != "compress", "method.fusion", "agreement.fusion is not 'compress'"),
        (private and agreement.downlink != "relay", "agreement.downlink", "labels are private"),
        (private and agreement.fusion != "send", "agreement.fusion", "labels are private"),
    )
    if agreement.fusion == "compress" and not fusion:
        raise ConfigError(
            "agreement.fusion = 'compress' needs method.fusion, such as { name = 'topk', ratio = 0.1 } in a run file "
            "and fusion=TopK(0.1) in Python."
        )

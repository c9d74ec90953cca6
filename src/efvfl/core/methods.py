"""The methods as compositions: for each direction a compressor, and what both ends remember."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from efvfl.compress import Compressor, Identity
from efvfl.core.memories import Direct, ErrorFeedback, Memory
from efvfl.core.memory import Start
from efvfl.errors import ConfigError, describe, nearest


@dataclass(frozen=True)
class Link:
    """One direction: what compresses, and what both ends remember.

    >>> from efvfl import TopK
    >>> Link(TopK(0.1), ErrorFeedback()) == efvfl(TopK(0.1)).up
    True
    """

    compressor: Compressor = field(default_factory=Identity)
    memory: Memory = field(default_factory=Direct)
    # exact: a row's first report is not compressed (drops Theorem 1's D0 term); mean: G starts at a mean representation
    start: Start = "compressed"
    first: Compressor | None = None  # of a row's first report, in place of `compressor`

    def __post_init__(self) -> None:
        """Refuse what is no compressor, and words that nobody knows."""
        if not isinstance(self.compressor, Compressor):
            raise ConfigError(
                f"expected a compressor with its knobs, got {describe(self.compressor)}: write "
                "efvfl(TopK(0.1)) or cvfl(QSGD(4)), and svfl() for none."
            )
        if not isinstance(self.memory, Memory):
            raise ConfigError(f"memory: expected one such as ErrorFeedback(), got {describe(self.memory)}.")
        if self.start not in get_args(Start):
            raise ConfigError(f"unknown start {describe(self.start)}. {nearest(str(self.start), get_args(Start))}")
        if self.first is not None and not isinstance(self.first, Compressor):
            raise ConfigError(f"first: expected a compressor with its knobs, got {describe(self.first)}.")

    @property
    def of_first_visits(self) -> Compressor | None:
        """What compresses a row's first report; None: what compresses the others too."""
        return Identity() if self.start == "exact" else self.first


NOTHING_CHOSEN = Link()  # where nobody asked for a compressor; `Link(Identity())` is one that somebody asked for


@dataclass(frozen=True)
class Method:
    """A way to send representations up, cotangents down (private labels) and the fusion model down (compressed).

    >>> from efvfl import QSGD
    >>> Method("mine", up=Link(QSGD(4), ErrorFeedback()), down=Link(QSGD(8))).down.memory
    Direct()
    """

    name: str
    up: Link
    down: Link = NOTHING_CHOSEN
    fusion: Link = NOTHING_CHOSEN
    parties: Mapping[str, Compressor] = field(default_factory=dict)  # of representations, in place of that of `up`

    def __post_init__(self) -> None:
        """Refuse what is no compressor."""
        for name, own in self.parties.items():
            if not isinstance(own, Compressor):
                raise ConfigError(f"parties: expected a compressor for {name!r}, got {describe(own)}.")

    def up_of(self, name: str) -> Link:
        """Return the uplink of a party, which may have a compressor of its own."""
        return replace(self.up, compressor=self.parties[name]) if name in self.parties else self.up

    @property
    def compresses_fusion(self) -> bool:
        """Whether a compressor was chosen for the fusion model, be it the identity."""
        return self.fusion is not NOTHING_CHOSEN


def svfl() -> Method:
    """Return standard VFL: nothing is compressed. With one local step this is SGD on the whole network.

    >>> svfl().up.compressor
    Identity()
    """
    return Method("svfl", Link())


def cvfl(
    compressor: Compressor,
    down: Compressor | None = None,
    fusion: Compressor | None = None,
    parties: Mapping[str, Compressor] | None = None,
) -> Method:
    """Return compressed VFL (Castiglia et al.): every value is compressed on its own; some `parties` in their own way.

    >>> from efvfl import TopK
    >>> cvfl(TopK(0.1)).up.memory
    Direct()
    """
    return Method(
        "cvfl",
        Link(compressor),
        NOTHING_CHOSEN if down is None else Link(down),
        NOTHING_CHOSEN if fusion is None else Link(fusion),
        parties or {},
    )


def efvfl(
    compressor: Compressor,
    down: Compressor | None = None,
    fusion: Compressor | None = None,
    start: Start = "compressed",
    first: Compressor | None = None,
    memory: Memory | None = None,
    parties: Mapping[str, Compressor] | None = None,
) -> Method:
    """Return EF-VFL: the *change* against a memory that both ends keep is compressed.

    A row's first report goes through `first`, if it is given, or uncompressed, if the start is 'exact'. With the start
    'mean', the first report also has the mean of its rows' values, and the memory starts there instead of at zero.
    `memory` is another one for all directions, in place of error feedback (EF21).
    `parties` are those that have a compressor of their own.

    >>> from efvfl import QSGD, TopK
    >>> method = efvfl(TopK(0.1), down=QSGD(4))
    >>> method.up.memory, method.down.compressor.bits
    (ErrorFeedback(), 4)
    """
    memory = memory or ErrorFeedback()
    return Method(
        "efvfl",
        Link(compressor, memory, start, first),
        NOTHING_CHOSEN if down is None else Link(down, memory),
        NOTHING_CHOSEN if fusion is None else Link(fusion, memory),
        parties or {},
    )

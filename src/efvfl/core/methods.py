"""The methods as compositions: for each direction a compressor, and what both ends remember."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from efvfl.compress import Compressor, Identity
from efvfl.core.memory import Start
from efvfl.errors import ConfigError, describe, nearest

Remembers = Literal["direct", "error_feedback"]


@dataclass(frozen=True)
class Link:
    """One direction: what compresses, and what both ends remember.

    >>> from efvfl import TopK
    >>> Link(TopK(0.1), "error_feedback") == efvfl(TopK(0.1)).up
    True
    """

    compressor: Compressor = field(default_factory=Identity)
    memory: Remembers = "direct"
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
        for name, value, known in (("memory", self.memory, Remembers), ("start", self.start, Start)):
            if value not in get_args(known):
                raise ConfigError(f"unknown {name} {describe(value)}. {nearest(str(value), get_args(known))}")
        if self.first is not None and not isinstance(self.first, Compressor):
            raise ConfigError(f"first: expected a compressor with its knobs, got {describe(self.first)}.")

    @property
    def of_first_visits(self) -> Compressor | None:
        """What compresses a row's first report; None: what compresses the others too."""
        return Identity() if self.start == "exact" else self.first


@dataclass(frozen=True)
class Method:
    """A way to send representations up, cotangents down (private labels) and the fusion model down (compressed).

    >>> from efvfl import QSGD
    >>> Method("mine", up=Link(QSGD(4), "error_feedback"), down=Link(QSGD(8))).down.memory
    'direct'
    """

    name: str
    up: Link
    down: Link = field(default_factory=Link)
    fusion: Link = field(default_factory=Link)


def svfl() -> Method:
    """Return standard VFL: nothing is compressed. With one local step this is SGD on the whole network.

    >>> svfl().up.compressor
    Identity()
    """
    return Method("svfl", Link())


def cvfl(compressor: Compressor, down: Compressor | None = None, fusion: Compressor | None = None) -> Method:
    """Return compressed VFL (Castiglia et al.): every value is compressed on its own.

    >>> from efvfl import TopK
    >>> cvfl(TopK(0.1)).up.memory
    'direct'
    """
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
    first: Compressor | None = None,
) -> Method:
    """Return EF-VFL: the *change* against a memory that both ends keep is compressed.

    A row's first report goes through `first`, if it is given, or uncompressed, if the start is 'exact'. With the start
    'mean', the first report also has the mean of its rows' values, and the memory starts there instead of at zero.

    >>> from efvfl import QSGD, TopK
    >>> method = efvfl(TopK(0.1), down=QSGD(4))
    >>> method.up.memory, method.down.compressor.bits
    ('error_feedback', 4)
    """
    return Method(
        "efvfl",
        Link(compressor, "error_feedback", start, first),
        Link() if down is None else Link(down, "error_feedback"),
        Link() if fusion is None else Link(fusion, "error_feedback"),
    )

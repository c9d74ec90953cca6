"""The methods as compositions: for each direction a compressor and what both ends remember, and updates in a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from efvfl.compress import Compressor, Identity
from efvfl.core import ranges
from efvfl.core.agreement import Agreement, CachedSteps, check_word
from efvfl.core.memories import Direct, ErrorFeedback, Memory
from efvfl.core.memory import Start
from efvfl.errors import ConfigError, describe, nearest

Cotangents = Literal["all", "sent"]


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

    It may also say how often every block is updated in a round; what it leaves open, the agreement says.

    >>> from efvfl import QSGD
    >>> Method("mine", up=Link(QSGD(4), ErrorFeedback()), down=Link(QSGD(8))).down.memory
    Direct()
    """

    name: str
    up: Link
    down: Link = NOTHING_CHOSEN
    fusion: Link = NOTHING_CHOSEN
    parties: Mapping[str, Compressor] = field(default_factory=dict)  # of representations, in place of that of `up`
    cached: CachedSteps = field(default_factory=CachedSteps)  # what is learnt between rounds from what is remembered
    cotangents: Cotangents = "all"  # private labels: all entries go down, or those that the report has changed
    local_steps: int = 1  # updates of every block in one round with shared labels, in place of `cached`

    def __post_init__(self) -> None:
        """Refuse what is no compressor, and words that nobody knows."""
        check_word("cotangents", self.cotangents, Cotangents)
        if self.cotangents == "sent" and (self.down.start, self.down.first) != ("compressed", None):
            raise ConfigError(
                "cotangents = 'sent': expected a downlink without a start and a first compressor, got one: which "
                "entries went down before is not remembered. Leave it out."
            )
        ranges.check("method.local_steps", self.local_steps)
        for name, own in self.parties.items():
            if not isinstance(own, Compressor):
                raise ConfigError(f"parties: expected a compressor for {name!r}, got {describe(own)}.")

    def up_of(self, name: str) -> Link:
        """Return the uplink of a party, which may have a compressor of its own."""
        return replace(self.up, compressor=self.parties[name]) if name in self.parties else self.up

    def agreed(self, agreement: Agreement) -> Agreement:
        """Return what participants agree on with this method: an agreement, with the updates that the method asks for.

        >>> fedbcd(4).agreed(Agreement("shared")).local_steps
        4
        """
        shared = agreement.shared
        if shared and self.local_steps > 1:
            self._refuse_another(shared.local_steps, 1, self.local_steps, "local_steps")
            return replace(agreement, labels=replace(shared, local_steps=self.local_steps))
        if self.cached.steps:
            self._refuse_another(agreement.cached, CachedSteps(), self.cached, "cached")
            return replace(agreement, cached=self.cached)
        return agreement

    def _refuse_another(self, found: object, left_out: object, own: object, setting: str) -> None:
        if found not in (left_out, own):
            raise ConfigError(
                f"agreement.{setting}: expected none with the method {self.name!r}, which says how often blocks "
                f"are updated in a round, got {found}: leave it out, or give it to svfl or efvfl."
            )

    @property
    def lossless(self) -> bool:
        """Whether no compressor was chosen for representations, not even the identity."""
        return self.up is NOTHING_CHOSEN

    @property
    def compresses_fusion(self) -> bool:
        """Whether a compressor was chosen for the fusion model, be it the identity."""
        return self.fusion is not NOTHING_CHOSEN


def svfl() -> Method:
    """Return standard VFL: nothing is compressed. With one local step this is SGD on the whole network.

    >>> svfl().up.compressor
    Identity()
    """
    return Method("svfl", NOTHING_CHOSEN)


def cvfl(
    compressor: Compressor,
    down: Compressor | None = None,
    fusion: Compressor | None = None,
    parties: Mapping[str, Compressor] | None = None,
    cotangents: Cotangents = "all",
) -> Method:
    """Return compressed VFL (Castiglia et al.): every value is compressed on its own; some `parties` in their own way.

    With `cotangents` 'sent', a cotangent goes down only where the party's report has changed an entry: for a sparse
    compressor such as top-k.

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
        cotangents=cotangents,
    )


def efvfl(
    compressor: Compressor,
    down: Compressor | None = None,
    fusion: Compressor | None = None,
    start: Start = "compressed",
    first: Compressor | None = None,
    memory: Memory | None = None,
    parties: Mapping[str, Compressor] | None = None,
    cotangents: Cotangents = "all",
) -> Method:
    """Return EF-VFL: the *change* against a memory that both ends keep is compressed.

    A row's first report goes through `first`, if it is given, or uncompressed, if the start is 'exact'. With the start
    'mean', the first report also has the mean of its rows' values, and the memory starts there instead of at zero.
    `memory` is another one for all directions, in place of error feedback (EF21).
    `parties` are those that have a compressor of their own. `cotangents` is as for `cvfl`.

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
        cotangents=cotangents,
    )


def fedbcd(updates: int = 5) -> Method:
    """Return FedBCD (Liu et al.): nothing is compressed, and blocks are updated Q = `updates` times in each round.

    With private labels all updates but the first are from what was exchanged in the round as it was: parties use the
    cotangent again, and the server the representations. With shared labels a party computes its cotangent anew for
    every update, from what the others sent once: local steps, as in the paper's algorithm.

    >>> fedbcd(5).cached
    CachedSteps(steps=4, batches=1, angle=180.0)
    """
    ranges.check("method.updates", updates)
    cached = CachedSteps(updates - 1, batches=1, angle=180.0) if updates > 1 else CachedSteps()
    return Method("fedbcd", NOTHING_CHOSEN, cached=cached, local_steps=updates)


def celu(updates: int = 5, batches: int = 5, angle: float = 60.0) -> Method:
    """Return CELU-VFL (Fu et al.): like `fedbcd`, from the last W = `batches` batches in turn, rows weighted.

    Each batch is used R = `updates` times in all. A row weighs as much as the cosine of the angle by which its
    representation (the server: its derivative) has turned since, and nothing beyond `angle` degrees. Private labels.

    >>> celu(5, batches=3).cached
    CachedSteps(steps=4, batches=3, angle=60.0)
    """
    ranges.check("method.updates", updates)
    return Method("celu", NOTHING_CHOSEN, cached=CachedSteps(updates - 1, batches, angle))


METHODS: Final[Mapping[str, Callable[..., Method]]] = {
    make.__name__: make for make in (svfl, cvfl, efvfl, fedbcd, celu)
}

"""Which choices do not go together: one table, checked alike for Python, run files and networks.

A rule says when two choices clash, why, and what to do instead. `docs/options.md` is generated from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from efvfl.core.agreement import Agreement
from efvfl.core.methods import Link, Method
from efvfl.errors import ConfigError


@dataclass(frozen=True)
class Choices:
    """What was chosen, as far as the choices depend on each other."""

    agreement: Agreement = field(default_factory=Agreement)
    memory: bool = True  # whether the uplink has one: error feedback
    down_memory: bool = False
    lossless: bool = False  # nothing is compressed (SVFL)
    down: bool = False  # whether cotangents are compressed
    fusion: bool = False  # whether a compressor of the fusion model is given
    start: str = "compressed"
    first: bool = False  # whether a row's first report has a compressor of its own
    combine: str = "mean"
    widths: tuple[int, ...] = ()  # of the representations; empty: not known yet
    protect: bool = False
    mapped: bool = False
    on_missing: str = "wait"
    decides: bool = False  # whether patience or a plateau decides by the loss of validation rows
    evaluation: str | None = None  # None: as it is best
    missing: bool = False  # whether some parties lack some rows
    sampled: bool = False  # whether subsets of the parties are sampled

    @classmethod
    def of(cls, method: Method, agreement: Agreement, **others: object) -> Choices:
        """Return the choices that a method and an agreement make, and others by name."""
        return cls(
            agreement=agreement,
            memory=method.up.memory == "error_feedback",
            down_memory=method.down.memory == "error_feedback",
            lossless=method.name == "svfl",
            down=method.down != Link(),
            fusion=method.fusion != Link(),
            start=method.up.start,
            first=method.up.first is not None,
            **others,  # type: ignore[arg-type]
        )

    @property
    def shared(self) -> bool:
        """Whether labels are shared."""
        return not self.agreement.private

    def fusion_is(self, how: str) -> bool:
        """Whether the fusion model reaches the parties in this way."""
        return self.agreement.shared is not None and self.agreement.shared.fusion == how


@dataclass(frozen=True)
class Rule:
    """Two choices that do not go together."""

    setting: str
    clash: str  # with what
    why: str
    instead: str
    broken: Callable[[Choices], object] = field(repr=False)

    @property
    def text(self) -> str:
        """The whole as one error."""
        return f"{self.setting} does not go with {self.clash}: {self.why}. {self.instead}."


RULES: tuple[Rule, ...] = (
    Rule(
        "method.down",
        "shared labels",
        "no cotangent is sent, so it would have no effect",
        "Leave it out, or use private labels",
        lambda c: c.down and c.shared,
    ),
    Rule(
        "method.fusion",
        "fusion other than 'compress'",
        "the fusion model is not compressed, so it would have no effect",
        "Leave it out, or use shared labels with fusion = 'compress'",
        lambda c: c.fusion and not c.fusion_is("compress"),
    ),
    Rule(
        "fusion = 'compress'",
        "a method without a compressor for the fusion model",
        "there is nothing to compress it with",
        "Give one: { name = 'topk', ratio = 0.1 } as method.fusion in a run file, fusion=TopK(0.1) in Python",
        # SVFL compresses nothing at all, so that methods can be compared at the same settings.
        lambda c: c.fusion_is("compress") and not c.fusion and not c.lossless,
    ),
    Rule(
        "protect",
        "shared labels",
        "no cotangent is sent, so it would have no effect",
        "Leave it out, or use private labels",
        lambda c: c.protect and c.shared,
    ),
    Rule(
        "downlink = 'aggregate'",
        "combine = 'concat'",
        "a party's share cannot be taken out of a combination that is a concatenation",
        "Use combine = 'sum' or 'mean', or downlink = 'relay'",
        lambda c: c.combine == "concat" and c.agreement.shared and c.agreement.shared.downlink == "aggregate",
    ),
    Rule(
        "combine = 'sum' or 'mean'",
        "representations of different widths",
        "only tensors of one shape can be added",
        "Give all parties the same width, or use combine = 'concat'",
        lambda c: c.combine != "concat" and len(set(c.widths)) > 1,
    ),
    Rule(
        "start = 'exact' or 'mean'",
        "a method without a memory",
        "direct compression forgets the start at once, so it would have no effect",
        "Leave it out, or use efvfl",
        lambda c: c.start != "compressed" and not c.memory,
    ),
    Rule(
        "start = 'exact'",
        "memory_dtype = 'bfloat16'",
        "the narrower memory would round the exact start at once",
        "Use one of the two",
        lambda c: c.start == "exact" and c.agreement.memory_dtype,
    ),
    Rule(
        "method.first",
        "a method without a memory",
        "direct compression forgets the first report at once, so it would have no effect",
        "Leave it out, or use efvfl",
        lambda c: c.first and not c.memory,
    ),
    Rule(
        "method.first",
        "start = 'exact'",
        "a row's first report is then not compressed at all, so it would have no effect",
        "Use one of the two",
        lambda c: c.first and c.start == "exact",
    ),
    Rule(
        "memory_dtype",
        "a method without a memory",
        "there is nothing to keep in it, so it would have no effect",
        "Leave it out, or use efvfl",
        lambda c: c.agreement.memory_dtype and not (c.memory or c.down_memory),
    ),
    Rule(
        "memory = 'mapped'",
        "a method without a memory",
        "there is nothing to keep in files, so it would have no effect",
        "Leave it out, or use efvfl",
        lambda c: c.mapped and not (c.memory or c.down_memory),
    ),
    Rule(
        "on_missing = 'stale'",
        "a method without a memory",
        "there is no last surrogate to continue with",
        "Use efvfl, or on_missing = 'wait' or 'stop'",
        lambda c: c.on_missing == "stale" and not c.memory,
    ),
    Rule(
        "on_missing = 'stale'",
        "start = 'exact' or 'mean'",
        "what was sent before would have to be known of a party that is away",
        "Use a compressed start, or on_missing = 'wait' or 'stop'",
        lambda c: c.on_missing == "stale" and c.start != "compressed",
    ),
    Rule(
        "on_missing = 'stale'",
        "method.first",
        "which rows were sent before would have to be known of a party that is away",
        "Leave it out, or use on_missing = 'wait' or 'stop'",
        lambda c: c.on_missing == "stale" and c.first,
    ),
    Rule(
        "patience or ReduceLROnPlateau",
        "on_missing = 'stale'",
        "a party that is away cannot be told to keep its model, or which rate it has",
        "Leave it out, or use on_missing = 'wait' or 'stop'",
        lambda c: c.decides and c.on_missing == "stale",
    ),
    Rule(
        "evaluation = 'compressed'",
        "on_missing = 'stale'",
        "what was sent before would have to be known of a party that is away",
        "Use evaluation = 'exact', or on_missing = 'wait' or 'stop'",
        lambda c: c.evaluation == "compressed" and c.on_missing == "stale",
    ),
    Rule(
        "patience or ReduceLROnPlateau",
        "evaluation = 'exact'",
        "who restarts must come to the same decisions, and exact evaluation is in no log",
        "Leave evaluation out, or set it to 'compressed'",
        lambda c: c.decides and c.evaluation == "exact",
    ),
    Rule(
        "cached steps",
        "shared labels",
        "a party has all it needs for exact updates between rounds",
        "Use local_steps, or private labels",
        lambda c: c.agreement.cached.steps and c.shared,
    ),
    Rule(
        "cached steps",
        "rows that some parties lack, or subsets = 'sampled'",
        "what is remembered of a batch is the combination of all parties",
        "Leave out cached.steps, or set subsets = 'off' and leave out such rows",
        lambda c: c.agreement.cached.steps and (c.missing or c.sampled),
    ),
    Rule(
        "subsets = 'sampled'",
        "downlink = 'aggregate'",
        "a party cannot tell from the combination of all what that of a subset is",
        "Use downlink = 'relay', or subsets = 'off'",
        lambda c: c.sampled and c.agreement.shared and c.agreement.shared.downlink == "aggregate",
    ),
    Rule(
        "subsets = 'sampled'",
        "protect",
        "the cotangents of a row then differ from party to party, and parties that collude learn more than one is told",
        "Use one of the two: subsets = 'off', or no protection",
        lambda c: c.sampled and c.protect,
    ),
    Rule(
        "rows that some parties lack, or subsets = 'sampled'",
        "on_missing = 'stale'",
        "a row that a party has not reported yet would have to be told from one that it does not have",
        "Leave it out, or use on_missing = 'wait' or 'stop'",
        lambda c: (c.missing or c.sampled) and c.on_missing == "stale",
    ),
)


def check(choices: Choices) -> None:
    """Refuse choices that do not go together, and say why and what to do instead."""
    for rule in RULES:
        if rule.broken(choices):
            raise ConfigError(rule.text)

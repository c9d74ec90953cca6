"""Which choices do not go together: one table, checked alike for Python, run files and networks.

A rule says when two choices clash, why, and what to do instead. `docs/options.md` is generated from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from efvfl.core.choices import Choices as Choices
from efvfl.errors import ConfigError


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


NO_SURROGATES = "a method without surrogates (svfl, cvfl, or the memory ef14)"

RULES: tuple[Rule, ...] = (
    Rule(
        "method.down",
        "shared labels",
        "no cotangent is sent, so it would have no effect",
        "Leave it out, or use private labels",
        lambda c: c.down and c.shared,
    ),
    Rule(
        "method.cotangents = 'sent'",
        "shared labels",
        "no cotangent is sent, so it would have no effect",
        "Leave it out, or use private labels",
        lambda c: c.sent_only and c.shared,
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
        lambda c: c.fusion_is("compress") and not (c.fusion or c.fusion_chosen) and not c.lossless,
    ),
    Rule(
        "protect",
        "shared labels",
        "no cotangent is sent, so it would have no effect",
        "Leave it out, use private labels, or randomise the labels before they are shared (label_epsilon)",
        lambda c: c.protect and c.shared,
    ),
    Rule(
        "protect.visits",
        "protect.clip",
        "all that leaves has noise already, and more of it would guarantee nothing more",
        "Use one of the two",
        lambda c: c.visits and c.clip,
    ),
    Rule(
        "protect.visits",
        "data.stratify",
        "everybody knows the splits, and they would follow from the labels",
        "Leave out one of the two",
        lambda c: c.visits and c.stratify,
    ),
    Rule(
        "protect.visits",
        "class_weights = 'balanced'",
        "every row's derivative would depend on all labels, through their counts",
        "Give the weights as numbers, which are then taken as they are",
        lambda c: c.visits and c.balanced,
    ),
    Rule(
        "protect.label_epsilon",
        "protect.clip or protect.visits",
        "all that follows from randomised labels is post-processing, and noise on it would guarantee nothing more",
        "Use one of them",
        lambda c: c.releases and c.protect,
    ),
    Rule(
        "protect of a [[party]]",
        "evaluation that is exact",
        "it would give validation and test rows without noise",
        "Set evaluation = 'compressed', or leave protect out",
        lambda c: c.rows and c.exact,
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
        "method.memory",
        "svfl or cvfl",
        "they remember nothing, so it would have no effect",
        "Leave it out, or use efvfl",
        lambda c: c.idle_memory,
    ),
    Rule(
        "start = 'exact' or 'mean'",
        NO_SURROGATES,
        "the start is forgotten at once, so it would have no effect",
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
        NO_SURROGATES,
        "the first report is forgotten at once, so it would have no effect",
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
        NO_SURROGATES,
        "there is nothing to keep in it, so it would have no effect",
        "Leave it out, or use efvfl",
        lambda c: c.agreement.memory_dtype and not (c.memory or c.down_memory),
    ),
    Rule(
        "memory = 'mapped'",
        "a method without a memory",
        "there is nothing to keep in files, so it would have no effect",
        "Leave it out, or use efvfl",
        lambda c: c.mapped and not (c.memory or c.down_memory or c.own),
    ),
    Rule(
        "on_missing = 'stale'",
        NO_SURROGATES,
        "there is no last surrogate to continue with",
        "Use efvfl, or on_missing = 'wait' or 'stop'",
        lambda c: c.on_missing == "stale" and not c.memory,
    ),
    Rule(
        "on_missing = 'stale'",
        "a memory of which the sender holds a part (momentum, econtrol)",
        "what it noted of reports that were not taken would have to be taken back",
        "Use error_feedback or decay, or on_missing = 'wait' or 'stop'",
        lambda c: c.on_missing == "stale" and c.own and c.memory,
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
        "away",
        "pipeline",
        "a run that is restored would have to know which of a party's reports were under way when it left",
        "Use one of the two",
        lambda c: c.away and c.agreement.pipeline,
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
    Rule(
        "asynchronous",
        NO_SURROGATES,
        "there is no last surrogate to continue with while a report is late",
        "Use efvfl, or leave it out",
        lambda c: c.asynchronous and not c.memory,
    ),
    Rule(
        "asynchronous",
        "pipeline",
        "a party has one open report, and both let the others go on without waiting",
        "Use one of the two",
        lambda c: c.asynchronous and c.agreement.pipeline,
    ),
    Rule(
        "asynchronous",
        "cached steps",
        "both ends would have to remember the same batches, and a late party skips some",
        "Use one of the two",
        lambda c: c.asynchronous and c.agreement.cached.steps,
    ),
    Rule(
        "asynchronous",
        "shared labels other than with downlink = 'aggregate' and fusion = 'send'",
        "a late party would miss packets that it has to remember",
        "Use these two, or private labels",
        lambda c: c.asynchronous and c.agreement.shared and not c.stateless,
    ),
    Rule(
        "asynchronous",
        "rows that some parties lack, or subsets = 'sampled'",
        "a row that a party has not reported yet would have to be told from one that it does not have",
        "Use one of the two",
        lambda c: c.asynchronous and (c.missing or c.sampled),
    ),
    Rule(
        "asynchronous",
        "protect",
        "the batch of a late report is answered twice, and what is said of the noise counts one answer",
        "Use one of the two",
        lambda c: c.asynchronous and c.protect,
    ),
    Rule(
        "asynchronous",
        "on_missing = 'stale'",
        "a party that is missing is late, and waited for after most_stale steps",
        "Use on_missing = 'wait' or 'stop'",
        lambda c: c.asynchronous and c.on_missing == "stale",
    ),
    Rule(
        "asynchronous.reports",
        "fewer parties than that",
        "so many reports never come",
        "Give at most the number of parties",
        lambda c: c.widths and c.agreement.asynchronous.reports > len(c.widths),
    ),
    Rule(
        "training.local_steps of a party",
        "private labels",
        "it cannot compute its cotangent again after an update",
        "Leave it out, or use shared labels",
        lambda c: c.own_local_steps and not c.shared,
    ),
    Rule(
        "training.optimizer of a party",
        "ReduceLROnPlateau as the scheduler of all",
        "the server tells all parties one rate",
        "Use one of the two",
        lambda c: c.own_optimizer and c.plateau,
    ),
)


def check(choices: Choices) -> None:
    """Refuse choices that do not go together, and say why and what to do instead."""
    for rule in RULES:
        if rule.broken(choices):
            raise ConfigError(rule.text)

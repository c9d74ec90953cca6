"""The plan: what every participant knows of the federation before it starts, enough to build its own half alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from efvfl.core.agreement import Agreement
from efvfl.core.batches import Batches, BatchRows, ReportRows, take
from efvfl.core.block import Block
from efvfl.core.channel import Channel
from efvfl.core.losses import Loss
from efvfl.core.memories import ErrorFeedback
from efvfl.core.memory import Keeping, MemoryEnd
from efvfl.core.methods import Link, Method, svfl
from efvfl.core.optimizer import Optimizer
from efvfl.core.presence import OwnBatches, PresentBatch, RowPresence, trained_together
from efvfl.core.subsets import draw
from efvfl.errors import ConfigError, nearest
from efvfl.util.rng import derive

Direction = Literal["up", "down"]


@dataclass(frozen=True)
class Plan:
    """What all participants know alike, but for `mapped`."""

    names: list[str]  # of the parties; party k is the k-th of them, from 1
    widths: list[int]  # of their representations
    dtype: torch.dtype
    batches: Batches
    method: Method
    agreement: Agreement
    loss: Loss
    optimizer: Optimizer
    label_holder: str = ""  # a party that sits next to the server
    stale: bool = False  # whether steps may proceed without a party that is missing
    held_out: Mapping[str, int] = field(default_factory=dict)  # rows evaluated by messages, by split; empty: none
    presence: RowPresence | None = None  # who has which rows; None: all have all, and no other subset is trained for
    held_out_presence: Mapping[str, RowPresence] = field(default_factory=dict)  # by split, where parties lack such rows
    mapped: Path | None = None  # each participant's own choice: a folder where memories are in files; None: in RAM

    def __post_init__(self) -> None:
        """Agree on what the method asks for as well; refuse a compressor of a party that there is not."""
        object.__setattr__(self, "agreement", self.method.agreed(self.agreement))
        for name in self.method.parties:
            if name not in self.names:
                raise ConfigError(f"method.parties has {name!r}, which is not a party. {nearest(name, self.names)}")
        if self.agreement.private and self.label_holder in self.method.parties:
            raise ConfigError(
                f"method.parties has {self.label_holder!r}, which sits next to the server and compresses nothing, so "
                "it would have no effect: leave it out."
            )

    @property
    def partial(self) -> bool:
        """Whether a step may be taken without the reports of some parties."""
        return self.stale or self.agreement.asynchronous.on

    def number(self, name: str) -> int:
        """Return k of a party, which is also the number of its block."""
        return self._numbers[name]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names, start=1)}

    @cached_property
    def report_rows(self) -> ReportRows:
        """Which rows a report covers, of a party that has them all."""
        return ReportRows(self.batches, self.agreement.reports == "all")

    def batches_of(self, name: str) -> BatchRows:
        """Return the batches as a party sees them."""
        return self._own[name] if self.presence else self.batches

    def report_rows_of(self, name: str) -> ReportRows:
        """Return which rows a party's report covers."""
        return self._own_report_rows[name] if self.presence else self.report_rows

    @cached_property
    def _own(self) -> dict[str, OwnBatches]:
        masks = self.presence.masks if self.presence else {}
        return {name: OwnBatches(self.batches, mask) for name, mask in masks.items()}

    @cached_property
    def _own_report_rows(self) -> dict[str, ReportRows]:
        return {name: ReportRows(own, self.agreement.reports == "all") for name, own in self._own.items()}

    @cached_property
    def samples_subsets(self) -> bool:
        """Whether subsets of the parties that are present are trained for as well."""
        chosen = self.agreement.subsets
        return self.presence is not None and (chosen == "sampled" or (chosen == "auto" and self.presence.missing))

    def trained_for(self, present: Tensor) -> Tensor:
        """Return for every row whether some loss was of just the parties that it has, or could be: one bool a row.

        `present` is bool, shape (rows, parties).
        """
        seen = self.presence.patterns if self.presence else torch.ones(1, len(self.names), dtype=torch.bool)
        return trained_together(seen, present, self.samples_subsets)

    def present(self, step: int) -> PresentBatch | None:
        """Return who has which rows of a batch; None: all have all."""
        if self.presence is None:
            return None
        mask = take(self.presence.table, self.batches.rows(step)).to(self.dtype)
        tasks = draw(mask, derive(self.batches.seed, "subsets", step)) if self.samples_subsets else None
        return PresentBatch(mask, [self._own[name].places(step) for name in self.names], self.widths, tasks)

    @cached_property
    def fusion_key(self) -> int:
        """What seeds the fusion model's dropout, alike for all who run it."""
        return derive(self.batches.seed, "fusion")

    def link(self, name: str, direction: Direction) -> Link:
        """Return a party's uplink or downlink; next to the server, and with private labels, nothing is lost."""
        if self.agreement.private and name == self.label_holder:
            # The batch of a report that came late is answered with what is remembered of all, itself included.
            return Link(memory=ErrorFeedback()) if self.agreement.asynchronous.on and direction == "up" else svfl().up
        return self.method.up_of(name) if direction == "up" else self.method.down

    def answers_in_part(self, name: str) -> bool:
        """Whether a party's cotangents have only those entries that its report changed at the server."""
        beside = self.agreement.private and name == self.label_holder
        return self.method.cotangents == "sent" and not beside

    def channel(self, name: str, direction: Direction, key: int | None = None) -> Channel:
        """Return one end of the channel that carries a party's representation (up) or cotangent (down).

        The sender has a key, private to it; the receiver has none.
        """
        what = f"{name}'s {'representation' if direction == 'up' else 'cotangent'}"
        return self._channel(name, self.link(name, direction), self.batches_of(name).samples, key, what)

    def validation_channel(self, name: str, key: int | None = None) -> Channel:
        """Return one end of the channel that carries a party's validation rows, as `up` carries its training rows."""
        rows = self.held_rows(name, "validation")
        return self._channel(name, self.link(name, "up"), rows, key, f"{name}'s validation rows")

    def held_rows(self, name: str, split: str) -> int:
        """Return how many rows of a held-out split a party has."""
        presence = self.held_out_presence.get(split)
        return presence.count(name) if presence else self.held_out.get(split, 0)

    def _channel(self, name: str, link: Link, rows: int, key: int | None, what: str) -> Channel:
        width = self.widths[self.names.index(name)]
        narrow = torch.bfloat16 if self.agreement.memory_dtype == "bfloat16" else None
        first, folder = link.first is not None, self.mapped if rows else None  # an empty file cannot be mapped
        keeping = Keeping(link.start, first, narrow, folder, sends=key is not None)
        made = MemoryEnd(link.memory, (rows, width), self.dtype, keeping)
        return Channel(link, made, (width,), self.dtype, key or 0, what)

    def fusion_channel(self, block: Block, key: int | None = None) -> Channel:
        """Return one end of the channel that carries the fusion model as a vector."""
        link = self.method.fusion
        made = MemoryEnd(link.memory, (block.size(),), block.dtype, Keeping(link.start, sends=key is not None))
        return Channel(link, made, (), block.dtype, key or 0, "the fusion model")

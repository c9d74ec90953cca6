"""Who has which rows: the rows are the label holder's, and a party may lack some of them.

A party sees the schedule of batches through its own rows: of every batch it has a part, perhaps an empty one, and it
numbers its rows by itself. So it computes, reports and remembers those alone. Whoever combines representations puts
them back in their places, with zeros where there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from efvfl.core.batches import ALL, KEPT, Batches, Rows, take
from efvfl.core.subsets import Tasks
from efvfl.errors import ConfigError


@dataclass(frozen=True)
class RowPresence:
    """Which rows every party has: by name, in the parties' order, a bool for each row.

    With private labels a party knows of itself alone.
    """

    masks: Mapping[str, Tensor]

    @cached_property
    def table(self) -> Tensor:
        """All masks side by side, shape (rows, parties)."""
        return torch.stack(list(self.masks.values()), dim=1)

    @cached_property
    def missing(self) -> bool:
        """Whether some party lacks some row."""
        return not all(bool(mask.all()) for mask in self.masks.values())

    @cached_property
    def patterns(self) -> Tensor:
        """Who was present together: every different row of the table once."""
        found: Tensor = torch.unique(self.table, dim=0)
        return found

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.masks.values())))

    def count(self, name: str) -> int:
        """Return how many rows a party has."""
        return int(self.masks[name].sum())

    def part(self, rows: slice) -> RowPresence:
        """Return the presence of some rows."""
        return RowPresence({name: mask[rows] for name, mask in self.masks.items()})

    def own_span(self, name: str, start: int, stop: int) -> tuple[int, int]:
        """Return which of its own rows a party has among those from `start` to `stop`."""
        first = int(self.masks[name][:start].sum())
        return first, first + int(self.masks[name][start:stop].sum())

    def spread(self, name: str, part: Tensor) -> Tensor:
        """Return a party's rows with zeros for those that it lacks, shape (rows, width)."""
        return spread(part, self.masks[name].nonzero().reshape(-1), len(self.masks[name]))

    def check_parties(self) -> None:
        """Refuse parties that have no row."""
        for name, mask in self.masks.items():
            if not bool(mask.any()):
                raise ConfigError(
                    f"expected party {name!r} to have some of the {len(mask):,} rows, got none: leave it out."
                )

    def check_rows(self) -> None:
        """Refuse rows that no party has."""
        nobody = int((~self.table.any(dim=1)).sum())
        if nobody:
            raise ConfigError(
                f"expected every row at one party at least, got {nobody:,} of {len(self.table):,} rows at none: leave "
                "these rows out, or name a label holder that has columns of all."
            )


def spread(part: Tensor, places: Rows, count: int) -> Tensor:
    """Return rows at their places among `count` of them, with zeros at all others."""
    if isinstance(places, slice):
        return part
    return part.new_zeros(count, part.shape[1]).index_copy(0, places, part)


def trained_together(seen: Tensor, present: Tensor, sampled: bool) -> Tensor:
    """Return for every row whether its parties were trained to predict together: one bool a row.

    Where subsets are sampled these are all that were ever present together (`seen`) and their subsets, else those that
    were present together, which are all parties if no row is missing.

    >>> seen = torch.tensor([[True, True, False]])
    >>> trained_together(seen, torch.tensor([[True, False, False], [False, True, True]]), sampled=True)
    tensor([ True, False])
    """
    differs = present[:, None] & ~seen if sampled else present[:, None] != seen
    return (~differs.any(dim=2)).any(dim=1) & present.any(dim=1)


def everybody(names: Sequence[str], rows: int) -> RowPresence:
    """Return a presence in which every party has every row."""
    return RowPresence({name: torch.ones(rows, dtype=torch.bool) for name in names})


def of_training(
    by_split: Mapping[str, RowPresence], names: Sequence[str], rows: int, always: bool
) -> RowPresence | None:
    """Return who has which training rows; None: all have all, and nothing is trained for fewer, unless `always`."""
    train = by_split.get("train")
    for name, presence in by_split.items():
        if presence.missing and not always and not (train and train.missing):
            raise ConfigError(
                f"the {name} rows: expected all parties to have all rows, as in training, got rows that some lack: "
                "fill rows of nothing but NaN, or set subsets='sampled' in the agreement."
            )
        presence.check_rows()
    if train and train.missing:
        train.check_parties()
        return train
    return everybody(names, rows) if always else None


@dataclass(frozen=True)
class OwnBatches:
    """The batch schedule as a party sees it that has some of the rows: these alone, by its own numbers.

    >>> own = OwnBatches(Batches(samples=6, size=3, seed=1), torch.tensor([True, False, True, True, False, True]))
    >>> own.samples, sorted(row for step in range(2) for row in own.rows(step).tolist())
    (4, [0, 1, 2, 3])
    """

    batches: Batches
    has: Tensor  # bool, shape (rows,)
    _last: dict[int, tuple[Tensor, Rows]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def samples(self) -> int:
        """How many rows the party has."""
        return int(self.has.sum())

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch."""
        return self.batches.per_epoch

    @cached_property
    def _numbers(self) -> Tensor:
        """The party's number of every row; -1: it has none."""
        return torch.where(self.has, self.has.cumsum(0) - 1, -1)

    @cached_property
    def all_places(self) -> Rows:
        """Which of all rows the party has."""
        return ALL if self.samples == len(self.has) else self.has.nonzero().reshape(-1)

    def rows(self, step: int) -> Rows:
        """Return the party's rows of a step, perhaps none."""
        return ALL if self.batches.full else self._at(step)[0]

    def places(self, step: int) -> Rows:
        """Return where in the batch these rows are."""
        return self.all_places if self.batches.full else self._at(step)[1]

    def _at(self, step: int) -> tuple[Tensor, Rows]:
        found = self._last.get(step)
        if found is None:
            numbers = take(self._numbers, self.batches.rows(step))
            places = (numbers >= 0).nonzero().reshape(-1)
            found = (take(numbers, places), ALL if len(places) == len(numbers) else places)
            for old in list(self._last)[: 1 - KEPT]:
                self._last.pop(old, None)
            self._last[step] = found
        return found

    def touched(self, steps: range) -> Rows:
        """Return the party's rows of all these steps."""
        rows = self.batches.touched(steps)
        if isinstance(rows, slice):
            return ALL
        numbers = take(self._numbers, rows)
        return numbers[numbers >= 0]

    def count(self, step: int) -> int:
        """Return how many rows the party has of a step."""
        return self.samples if self.batches.full else len(self._at(step)[0])


@dataclass(frozen=True)
class PresentBatch:
    """Who has which rows of one batch."""

    mask: Tensor  # 0 or 1 in the dtype of representations, shape (batch, parties)
    places: Sequence[Rows]  # where in the batch the rows of every party are
    widths: Sequence[int]  # of the representations
    tasks: Tasks | None  # the subsets to train for; None: those present alone

    def spread(self, place: int, part: Tensor) -> Tensor:
        """Return a party's part of a batch with zeros for the rows that it lacks, shape (batch, width)."""
        return spread(part, self.places[place], len(self.mask))

    def part(self, place: int, values: Tensor) -> Tensor:
        """Return of the whole batch's values the rows that a party has."""
        return take(values, self.places[place])

    def spread_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the parts of all parties, spread."""
        return [self.spread(place, part) for place, part in enumerate(parts)]

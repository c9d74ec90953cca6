"""Starting a model from the parameters of a trained one: what fits is kept, the rest stays as it was initialised.

Entries of a tensor are matched by what they belong to (an input column, a level, a party) where somebody can say that,
so that columns may be added, dropped or put in another order. A tensor about which nobody can must have the same shape;
if one does not, the whole model starts fresh: half a model of unknown parts would be worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

State = Mapping[str, Tensor]  # what a module's `state_dict` returns

Outcome = Literal["kept", "partly", "fresh"]


@dataclass(frozen=True)
class Entry:
    """One tensor of a state: its key there, and what its entries along each dimension belong to."""

    key: str
    axes: tuple[Sequence[object] | None, ...]  # None: entries are matched by place, and their number must be the same


Entries = Mapping[str, Entry]  # by names that mean the same in both models, whatever the keys are

NONE: Final[Entries] = {}


@runtime_checkable
class NamesEntries(Protocol):
    """A model of a table that can say which of its entries belongs to which column."""

    @staticmethod
    def named_entries(encoder: Any, state: State) -> Entries:
        """Return the named entries of a state of this model, for columns that this encoder has encoded."""


@torch.no_grad()
def start_from(model: nn.Module, old: State, now: Entries = NONE, before: Entries = NONE) -> Outcome:
    """Give a model what fits of an old state; return whether that is all of it, some or nothing.

    `now` and `before` name entries of the model's own and of the old state; the other tensors must have equal keys and
    shapes. A model that does not fit is left as it is.

    >>> model, old = nn.Linear(3, 1, bias=False), {"weight": torch.tensor([[1.0, 2.0]])}
    >>> named = {"weight": Entry("weight", (None, ["age", "town", "debt"]))}
    >>> start_from(model, old, named, {"weight": Entry("weight", (None, ["debt", "age"]))})
    'partly'
    >>> model.weight[0, 0].item(), model.weight[0, 2].item()
    (2.0, 1.0)
    """
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    named = {entry.key for entry in before.values()}
    unnamed = set(state) - {entry.key for entry in now.values()}
    if unnamed != set(old) - named or not named <= set(old):
        return "fresh"
    pairs = [(_plain(key, state[key]), _plain(key, old[key])) for key in unnamed]
    pairs += [(now[name], before[name]) for name in now.keys() & before.keys()]
    copied = [_copy(state[mine.key], old[theirs.key], mine, theirs) for mine, theirs in pairs]
    if None in copied or not any(copied):
        return "fresh"
    model.load_state_dict(state)
    every = sum(tensor.numel() for tensor in state.values())
    return "kept" if sum(count or 0 for count in copied) == every else "partly"


def _plain(key: str, tensor: Tensor) -> Entry:
    return Entry(key, (None,) * tensor.dim())


def _copy(new: Tensor, old: Tensor, mine: Entry, theirs: Entry) -> int | None:
    """Copy the entries that belong to the same; return how many, or None if the two cannot be matched."""
    if new.dim() != old.dim() or (len(mine.axes), len(theirs.axes)) != (new.dim(), old.dim()):
        return None
    part, into = old, []
    for dim, (here, there) in enumerate(zip(mine.axes, theirs.axes, strict=True)):
        places = _places(here, there, new.shape[dim], old.shape[dim])
        if places is None:
            return None
        part = part.index_select(dim, torch.tensor(places[1], dtype=torch.long))
        into.append(torch.tensor(places[0], dtype=torch.long).view(-1, *[1] * (new.dim() - dim - 1)))
    if into:
        new[tuple(into)] = part.to(new)
    else:
        new.copy_(old)
    return part.numel()


def _places(
    here: Sequence[object] | None, there: Sequence[object] | None, new: int, old: int
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return where entries of one dimension are that belong to the same, in both; None if nobody can say."""
    if here is None or there is None:
        return (range(new), range(old)) if new == old else None
    if (len(here), len(there)) != (new, old):
        return None
    found = {what: place for place, what in enumerate(there)}
    common = [(place, found[what]) for place, what in enumerate(here) if what in found]
    return [a for a, _ in common], [b for _, b in common]

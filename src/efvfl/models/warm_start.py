"""Starting a model from the parameters of a trained one: what fits is kept, the rest stays as it was initialised.

Entries of a tensor are matched by labels that say what they belong to (an input column, a level, a party), where there
are any, so that columns may be added, dropped or reordered. A tensor without labels must have the same shape;
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
class LabelledTensor:
    """One tensor of a state: its key there, and the labels of its entries along each dimension."""

    key: str
    axes: tuple[Sequence[object] | None, ...]  # None: without labels; there must be as many entries in both


LabelledTensors = Mapping[str, LabelledTensor]  # by names that mean the same in both models, whatever the keys are

NONE: Final[LabelledTensors] = {}


@runtime_checkable
class LabelsTensors(Protocol):
    """A model of a table that can say which of its entries belong to which column."""

    @staticmethod
    def labelled_tensors(encoder: Any, state: State) -> LabelledTensors:
        """Return the tensors of a state of this model that have labels, for columns that this encoder has encoded."""


@torch.no_grad()
def start_from(model: nn.Module, old: State, now: LabelledTensors = NONE, before: LabelledTensors = NONE) -> Outcome:
    """Give a model what fits of an old state; return whether that is all of it, some or nothing.

    `now` and `before` are the labelled tensors of the model's own and of the old state; one that only the model has
    stays as it is. The other tensors must have equal keys and shapes. A model that does not fit is left as it is.

    >>> model, old = nn.Linear(3, 1, bias=False), {"weight": torch.tensor([[1.0, 2.0]])}
    >>> now = {"weight": LabelledTensor("weight", (None, ["age", "town", "debt"]))}
    >>> start_from(model, old, now, {"weight": LabelledTensor("weight", (None, ["debt", "age"]))})
    'partly'
    >>> model.weight[0, 0].item(), model.weight[0, 2].item()
    (2.0, 1.0)
    """
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    labelled = {tensor.key for tensor in before.values()}
    plain = set(state) - {tensor.key for tensor in now.values()}
    if plain != set(old) - labelled or not labelled <= set(old):
        return "fresh"
    pairs = [(_plain(key, state[key]), _plain(key, old[key])) for key in plain]
    pairs += [(now[name], before[name]) for name in now.keys() & before.keys()]
    copied = [_copy(state[mine.key], old[theirs.key], mine, theirs) for mine, theirs in pairs]
    if None in copied or not any(copied):
        return "fresh"
    model.load_state_dict(state)
    every = sum(tensor.numel() for tensor in state.values())
    return "kept" if sum(count or 0 for count in copied) == every else "partly"


def _plain(key: str, tensor: Tensor) -> LabelledTensor:
    return LabelledTensor(key, (None,) * tensor.dim())


def _copy(new: Tensor, old: Tensor, mine: LabelledTensor, theirs: LabelledTensor) -> int | None:
    """Copy the entries with the same labels; return how many, or None if the two cannot be matched."""
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
    """Return where entries of one dimension with the same labels are, in both; None if they cannot be matched."""
    if here is None or there is None:
        return (range(new), range(old)) if new == old else None
    if (len(here), len(there)) != (new, old):
        return None
    found = {what: place for place, what in enumerate(there)}
    common = [(place, found[what]) for place, what in enumerate(here) if what in found]
    return [a for a, _ in common], [b for _, b in common]

"""What both ends of a link remember of the values sent so far: the tensors, whatever the rule for them is.

The rules are in `core.memories`. With error feedback (EF21, the paper's Section 2.1) both ends hold the surrogate G of
all rows and add the *decoded* packet to it: they stay equal bit for bit. G may be kept in bfloat16. Then both ends
round what they add to alike, and the surrogate everyone works with is the rounded one. What the sender alone remembers,
such as an accumulated error, is kept in the values' own dtype and is in no digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.core.batches import Rows, take
from efvfl.core.memories import Before, Memory
from efvfl.errors import CheckpointError, ConfigError
from efvfl.util import mapped
from efvfl.util.jit import kernel

Start = Literal["compressed", "exact", "mean"]


@kernel
def _add(
    g: NDArray[np.floating], rows: NDArray[np.int64], change: NDArray[np.floating], surrogate: NDArray[np.floating]
) -> bool:
    """Add to these rows of `g` and copy them to `surrogate`, in one pass; return False if there is no such row."""
    for i in range(rows.size):
        row = rows[i]
        if row < 0 or row >= g.shape[0]:
            return False
        for j in range(g.shape[1]):
            value = g[row, j] + change[i, j]  # read once: then several numbers are added at a time
            g[row, j] = value
            surrogate[i, j] = value
    return True


@kernel
def _count_beyond(limit: float, g: NDArray[np.floating], rows: NDArray[np.int64], change: NDArray[np.floating]) -> int:
    """Return how many numbers would be beyond a limit, or NaN, if added to these rows of `g`; -1: no such row."""
    beyond = 0
    for i in range(rows.size):
        row = rows[i]
        if row < 0 or row >= g.shape[0]:
            return -1
        for j in range(g.shape[1]):
            if not abs(g[row, j] + change[i, j]) <= limit:
                beyond += 1
    return beyond


@dataclass(frozen=True)
class Keeping:
    """How the tensors of one end are kept, whatever the rule."""

    start: Start = "compressed"  # exact: a row's first report is not compressed; mean: G starts at a mean
    first: bool = False  # whether a row's first report is told from others; with an exact start it always is
    narrow: torch.dtype | None = None  # of G; None: as the values
    folder: Path | None = None  # where the tensors lie in files; None: in RAM
    sends: bool = False  # whether this is the sender's end


class MemoryEnd:
    """One end's memory of one link."""

    def __init__(
        self, rule: Memory, shape: tuple[int, ...], dtype: torch.dtype, keeping: Keeping | None = None
    ) -> None:
        """Remember values of shape (rows, width) by this rule. Of rows that were never sent, G is zero."""
        keeping = keeping or Keeping()
        if keeping.start != "compressed" and not rule.surrogate:
            raise ConfigError(f"start = {keeping.start!r} needs a memory with surrogates: {rule.name!r} has none.")
        if keeping.start == "exact" and keeping.narrow is not None:
            raise ConfigError(
                f"an exact start needs a memory in the values' own dtype: {keeping.narrow} would round it at once."
            )
        self.rule = rule
        self.dtype = dtype
        self._adds = type(rule).after is Memory.after  # G + C, as with EF21
        self._shape = shape
        self._folder = keeping.folder
        self._g = self._zeros(keeping.narrow or dtype) if rule.surrogate else None
        tells = rule.surrogate and (keeping.first or keeping.start == "exact")
        self.seen = torch.zeros(shape[0], dtype=torch.bool) if tells else None
        self.unseen = shape[0] if tells else 0
        self.started = torch.zeros(1, dtype=torch.bool) if keeping.start == "mean" else None
        self.own = {name: self._zeros(dtype) for name in rule.own} if keeping.sends else {}
        self.sent_before = torch.zeros(shape[0] if self.own else 0, dtype=torch.bool)
        self.unsent = len(self.sent_before)
        self._nothing = torch.zeros((), dtype=dtype)

    def _zeros(self, dtype: torch.dtype) -> Tensor:
        if self._folder is not None:
            return mapped.zeros(self._shape, dtype, self._folder)
        return torch.zeros(self._shape, dtype=dtype)

    @property
    def keeps(self) -> bool:
        """Whether both ends hold a surrogate of every row."""
        return self._g is not None

    @property
    def g(self) -> Tensor:
        """The surrogates G of all rows."""
        assert self._g is not None, "checked when the federation was built"
        return self._g

    def surrogate(self, rows: Rows) -> Tensor:
        """Return G[rows] in the values' dtype."""
        found = take(self.g, rows)
        return found if found.dtype == self.dtype else found.to(self.dtype)

    # What the sender does before a packet is absorbed.

    def residual(self, rows: Rows, value: Tensor) -> Tensor:
        """Return what is to be compressed in place of the value of these rows; nothing changes."""
        return self.rule.residual(self._before(rows, value), value)

    def sent(self, rows: Rows, value: Tensor, decoded: Tensor) -> None:
        """Note what the sender alone remembers, of a value that is absorbed next as `decoded`."""
        if not self.own:
            return
        found = self.rule.remember(self._before(rows, value), value, self.after(rows, decoded))
        for name, tensor in self.own.items():
            tensor[rows] = found[name]
        if self.unsent:
            self.unsent -= int((~take(self.sent_before, rows)).sum())
            self.sent_before[rows] = True

    def _before(self, rows: Rows, value: Tensor) -> Before:
        g = self._nothing if self._g is None else self.surrogate(rows)
        return Before(g, self._own_before(rows, value) if self.own else {})

    def _own_before(self, rows: Rows, value: Tensor) -> Mapping[str, Tensor]:
        found = {name: take(tensor, rows) for name, tensor in self.own.items()}
        if not self.unsent:
            return found
        new = ~take(self.sent_before, rows).reshape(-1, *(1,) * (value.dim() - 1))
        return found | {name: torch.where(new, t, found[name]) for name, t in self.rule.begin(value).items()}

    # What both ends do.

    def after(self, rows: Rows, decoded: Tensor) -> Tensor:
        """Return the surrogate of these rows as absorbing a decoded packet would make it; nothing is absorbed."""
        if self._g is None:
            return decoded
        return self.rule.after(self.surrogate(rows), decoded).to(self._g.dtype).to(decoded.dtype)

    def stays_within(self, limit: float, rows: Rows, decoded: Tensor) -> bool:
        """Whether no number in the surrogate of these rows would be beyond a limit; nothing is absorbed."""
        if self._g is not None and self._adds and self._g.dtype == decoded.dtype and isinstance(rows, Tensor):
            beyond = _count_beyond(limit, self._g.numpy(), rows.numpy(), decoded.numpy())
            if beyond < 0:
                raise IndexError(f"expected rows below {len(self._g):,}, got others.")
            return beyond == 0
        return not decoded.numel() or float(self.after(rows, decoded).abs().max()) <= limit

    def absorb(self, rows: Rows, decoded: Tensor) -> Tensor:
        """Advance by a decoded packet and return the surrogate of these rows: with EF21, G[rows] += C(h - G[rows])."""
        if self._g is None:
            return decoded
        self._visit(rows)
        if self._adds and self._g.dtype == decoded.dtype:
            return self._add_to(self._g, rows, decoded)
        after = self.rule.after(self.surrogate(rows), decoded)
        if self._g.dtype != decoded.dtype:
            rounded = after.to(self._g.dtype)
            self._g[rows] = rounded
            return rounded.to(decoded.dtype)
        if isinstance(rows, slice):
            return self._g[rows].copy_(after)
        self._g.index_copy_(0, rows, after)
        return after

    def _add_to(self, g: Tensor, rows: Rows, decoded: Tensor) -> Tensor:
        """G[rows] += decoded, in one pass over memory where rows are chosen one by one."""
        if isinstance(rows, slice):
            return g[rows].add_(decoded)
        surrogate = torch.empty_like(decoded)
        if not _add(g.numpy(), rows.numpy(), decoded.numpy(), surrogate.numpy()):
            raise IndexError(f"expected rows below {len(g):,}, got others.")
        return surrogate

    def restore(self, rows: Rows, surrogate: Tensor) -> None:
        """Set G[rows] to what the other end holds."""
        self.g[rows] = surrogate.to(self.g.dtype)

    def first_visits(self, rows: Rows) -> Tensor | None:
        """Return which of the rows were never sent (bool), where that matters, or None if none is."""
        if self.seen is None or self.unseen == 0:
            return None
        new = ~take(self.seen, rows)
        return new if bool(new.any()) else None

    @property
    def wants_mean(self) -> bool:
        """Whether it starts at a mean that it has not got yet."""
        return self.started is not None and not self.started

    def start_at(self, mean: Tensor, rows: Rows) -> None:
        """Set G to the mean, and to zero where the first report is about to be absorbed, whose change is from zero."""
        assert self.started is not None, "a mean was wanted"
        self.g.copy_(mean.to(self.g.dtype).expand_as(self.g))
        self.g[rows] = 0
        self.started.fill_(True)

    def _visit(self, rows: Rows) -> None:
        if self.seen is not None and self.unseen:
            self.unseen -= int((~take(self.seen, rows)).sum())
            self.seen[rows] = True

    # Checkpoints and digests.

    def tensors(self) -> dict[str, Tensor]:
        """Return what both ends remember, by name; read it only.

        That is G, which rows were sent where that matters, and whether there is a mean where it starts at one.
        """
        found = {"g": self._g, "seen": self.seen, "started": self.started}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what this end remembers; that of a mapped tensor lies in a file too."""
        state: dict[str, Any] = {n: self._copy(t) if n == "g" else t.clone() for n, t in self.tensors().items()}
        if self.own:
            state |= {"own": {name: self._copy(t) for name, t in self.own.items()}, "sent": self.sent_before.clone()}
        return state

    def _copy(self, tensor: Tensor) -> Tensor:
        return self._zeros(tensor.dtype).copy_(tensor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""
        if "g" in state and not self.keeps:
            raise CheckpointError(f"the saved state has surrogates, but this run's memory {self.rule.name!r} has none.")
        if self.keeps:
            self._check(state.get("g"), self.g, "memory")
        if set(state.get("own", {})) != set(self.own):
            raise CheckpointError(
                f"the saved state is of another memory than {self.rule.name!r}: expected {sorted(self.own)} of its "
                f"sender's own, got {sorted(state.get('own', {}))}."
            )
        if set(state) - {"own", "sent"} != set(self.tensors()):
            raise CheckpointError("the saved state was made with another start: compressed, exact and mean do not mix.")
        for name, tensor in self.own.items():
            self._check(state["own"][name], tensor, name)
        for name, tensor in self.tensors().items():
            tensor.copy_(state[name])
        self.unseen = 0 if self.seen is None else int((~self.seen).sum())
        for name, tensor in self.own.items():
            tensor.copy_(state["own"][name])
        if self.own:
            self.sent_before.copy_(state["sent"])
            self.unsent = int((~self.sent_before).sum())

    def _check(self, saved: Tensor | None, here: Tensor, what: str) -> None:
        if saved is None or saved.shape != here.shape or saved.dtype != here.dtype:
            found = f"no {what}" if saved is None else f"a {what} of {tuple(saved.shape)}, {saved.dtype}"
            raise CheckpointError(f"expected a saved {what} of {tuple(here.shape)}, {here.dtype}, got {found}.")

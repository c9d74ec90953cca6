"""What both ends of a link remember of the values sent so far.

Direct compression remembers nothing. Error feedback (EF21, the paper's Section 2.1) remembers the surrogate G, sends
the compressed change C(h - G), and both ends add the *decoded* packet to G: they stay equal bit for bit. G may be kept
in bfloat16. Then both ends round what they add to alike, and the surrogate everyone works with is the rounded one.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from efvfl.core.batches import Rows, take
from efvfl.errors import CheckpointError, ConfigError
from efvfl.util import mapped

Start = Literal["compressed", "exact", "mean"]


class Memory(Protocol):
    """One end's memory of one link."""

    def residual(self, rows: Rows, value: Tensor) -> Tensor:
        """Return what is to be compressed."""

    def absorb(self, rows: Rows, decoded: Tensor) -> Tensor:
        """Advance by a decoded packet and return the surrogate of these rows."""

    def first_visits(self, rows: Rows) -> Tensor | None:
        """Return which of the rows were never sent (bool), where that matters, or None if none is."""

    @property
    def wants_mean(self) -> bool:
        """Whether it starts at a mean that it has not got yet."""

    def start_at(self, mean: Tensor, rows: Rows) -> None:
        """Start all rows at this mean, but those about to be absorbed, whose change is given from zero."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what is remembered, by name; read it only."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what is remembered."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""


class Direct:
    """No memory: the surrogate is C(h)."""

    def residual(self, rows: Rows, value: Tensor) -> Tensor:
        """Compress the value itself."""
        return value

    def absorb(self, rows: Rows, decoded: Tensor) -> Tensor:
        """The decoded packet is the surrogate."""
        return decoded

    def first_visits(self, rows: Rows) -> Tensor | None:
        """Nothing is special about a first visit."""
        return None

    @property
    def wants_mean(self) -> bool:
        """Nothing is remembered, so it starts nowhere."""
        return False

    def start_at(self, mean: Tensor, rows: Rows) -> None:
        """Never called: no mean is wanted."""

    def tensors(self) -> dict[str, Tensor]:
        """Nothing is remembered."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """There is nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load, and there must not be."""
        if state:
            raise CheckpointError("the saved state has a memory, but this run compresses directly.")


class ErrorFeedback:
    """The surrogate G of all rows, which starts at zero: the first report of a row is C(h), as in the paper.

    With start = "mean" all rows start at the mean representation of the first report's rows instead.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        start: Start = "compressed",
        folder: Path | None = None,
        first: bool = False,
    ) -> None:
        """Hold G of shape (rows, width). With `first`, or an exact start, a row's first report is told from others.

        A dtype narrower than that of the values rounds G. With a folder, G lies in a file there and not in RAM.
        """
        first |= start == "exact"
        self._zeros = partial(torch.zeros, shape, dtype=dtype)
        if folder is not None:
            self._zeros = partial(mapped.zeros, shape, dtype, folder)
        self.g = self._zeros()
        self.seen = torch.zeros(shape[0], dtype=torch.bool) if first else None
        self.unseen = shape[0] if first else 0
        self.started = torch.zeros(1, dtype=torch.bool) if start == "mean" else None

    def residual(self, rows: Rows, value: Tensor) -> Tensor:
        """H - G[rows]."""
        return value - take(self.g, rows)

    def absorb(self, rows: Rows, decoded: Tensor) -> Tensor:
        """G[rows] += C(h - G[rows]); return G[rows]."""
        self._visit(rows)
        if self.g.dtype != decoded.dtype:
            rounded = self._rounded(rows, decoded)
            self.g[rows] = rounded
            return rounded.to(decoded.dtype)
        if isinstance(rows, slice):
            return self.g[rows].add_(decoded)
        surrogate = self.g.index_select(0, rows).add_(decoded)
        self.g.index_copy_(0, rows, surrogate)
        return surrogate

    def change(self, rows: Rows, decoded: Tensor) -> Tensor:
        """Return what absorbing this would add to G[rows]: what was decoded, but for rounding."""
        if self.g.dtype == decoded.dtype:
            return decoded
        return self._rounded(rows, decoded).to(decoded.dtype) - take(self.g, rows)

    def _rounded(self, rows: Rows, decoded: Tensor) -> Tensor:
        return (take(self.g, rows) + decoded).to(self.g.dtype)

    def first_visits(self, rows: Rows) -> Tensor | None:
        """Return the rows never sent before, while there are any."""
        if self.seen is None or self.unseen == 0:
            return None
        new = ~take(self.seen, rows)
        return new if bool(new.any()) else None

    @property
    def wants_mean(self) -> bool:
        """Whether it starts at the mean, and nothing was sent yet."""
        return self.started is not None and not self.started

    def start_at(self, mean: Tensor, rows: Rows) -> None:
        """Set G to the mean, and to zero where the first report is about to be absorbed."""
        assert self.started is not None, "a mean was wanted"
        self.g.copy_(mean.to(self.g.dtype).expand_as(self.g))
        self.g[rows] = 0
        self.started.fill_(True)

    def _visit(self, rows: Rows) -> None:
        if self.seen is not None and self.unseen:
            self.unseen -= int((~take(self.seen, rows)).sum())
            self.seen[rows] = True

    def tensors(self) -> dict[str, Tensor]:
        """Return G, which rows were sent where that matters, and whether there is a mean where it starts at one."""
        flags = {"seen": self.seen, "started": self.started}
        return {"g": self.g} | {name: flag for name, flag in flags.items() if flag is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of these; that of a mapped G lies in a file too."""
        return {name: self._zeros().copy_(t) if name == "g" else t.clone() for name, t in self.tensors().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved G."""
        saved = state.get("g")
        if saved is None or saved.shape != self.g.shape or saved.dtype != self.g.dtype:
            found = "no memory" if saved is None else f"a memory of {tuple(saved.shape)}, {saved.dtype}"
            raise CheckpointError(f"expected a saved memory of {tuple(self.g.shape)}, {self.g.dtype}, got {found}.")
        if set(state) != set(self.tensors()):
            raise CheckpointError("the saved state was made with another start: compressed, exact and mean do not mix.")
        self.g.copy_(saved)
        if self.started is not None:
            self.started.copy_(state["started"])
        if self.seen is not None:
            self.seen.copy_(state["seen"])
            self.unseen = int((~self.seen).sum())


def make(
    kind: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    start: Start = "compressed",
    narrow: torch.dtype | None = None,
    folder: Path | None = None,
    first: bool = False,
) -> Memory:
    """Return the memory of that name for values of this shape and dtype: in a narrower one, in a file, or as it is."""
    if kind == "direct":
        if start != "compressed":
            raise ConfigError(
                f"start = {start!r} needs memory = 'error_feedback': direct compression forgets it at once."
            )
        return Direct()
    if kind == "error_feedback":
        if start == "exact" and narrow is not None:
            raise ConfigError(
                f"an exact start needs a memory in the values' own dtype: {narrow} would round it at once."
            )
        return ErrorFeedback(shape, narrow or dtype, start, folder, first)
    raise ConfigError(f"memory: expected 'direct' or 'error_feedback', got {kind!r}.")

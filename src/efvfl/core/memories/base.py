"""The interface of memories, and their registry.

A memory is a rule of a few lines about the rows of one report: what is compressed, what both ends hold afterwards, and
what the sender alone remembers. It holds nothing itself. `core.memory` keeps the tensors, the same way for all: in RAM
or in files, rounded or not, in checkpoints and digests. To add one, write a file like `decay.py`: a frozen dataclass
whose fields are its parameters, decorated with `@register`. The contract tests run over all that are registered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

from torch import Tensor

from efvfl.errors import ConfigError, nearest


class Before(NamedTuple):
    """What the sender remembers of the rows of a report before it is sent; read it only."""

    g: Tensor  # the surrogate G, shape (rows, width); a single zero where none is kept
    own: Mapping[str, Tensor]  # what it alone remembers, by name, of the same shape


@dataclass(frozen=True)
class Memory(ABC):
    """What is remembered of every row of a link, from one of its visits to the next.

    All functions are pure, work row by row, and leave their arguments as they are. `after` runs at both ends, which
    must stay equal bit for bit: it sees nothing but what both have.

    >>> from efvfl import TopK, efvfl
    >>> efvfl(TopK(0.1), memory=lookup("momentum")(eta=0.2)).down.memory, efvfl(TopK(0.1)).up.memory
    (Direct(), ErrorFeedback())
    """

    name: ClassVar[str]  # in files
    surrogate: ClassVar[bool] = True  # whether both ends hold G; if not, the decoded packet alone is the surrogate
    own: ClassVar[tuple[str, ...]] = ()  # tensors that only the sender holds; they start at zero

    @abstractmethod
    def residual(self, before: Before, value: Tensor) -> Tensor:
        """Return what is to be compressed in place of `value`, shape (rows, width)."""

    def after(self, g: Tensor, decoded: Tensor) -> Tensor:
        """Return the surrogate that a decoded packet makes of G, at both ends; not called where none is kept."""
        return g + decoded

    def begin(self, value: Tensor) -> Mapping[str, Tensor]:
        """Return what the sender remembers of rows that it has never sent, where that is not zero."""
        return {}

    def remember(self, before: Before, value: Tensor, surrogate: Tensor) -> Mapping[str, Tensor]:
        """Return what the sender alone remembers from now on, given the surrogate that both ends then have."""
        return {}


MEMORIES: dict[str, type[Memory]] = {}

Registered = TypeVar("Registered", bound=type[Memory])


def register(name: str) -> Callable[[Registered], Registered]:
    """Return a class decorator that registers a memory by the name that files use.

    Registering a class of the same module and name again replaces the old one, because a notebook cell may run twice.
    """

    def add(cls: Registered) -> Registered:
        old = MEMORIES.get(name)
        if old is not None and (old.__module__, old.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(f"memory {name!r}: expected a name that is not in use, got that of {old.__qualname__}.")
        cls.name = name
        MEMORIES[name] = cls
        return cls

    return add


def lookup(name: str) -> type[Memory]:
    """Return the class of the memory of this name."""
    if name not in MEMORIES:
        raise ConfigError(f"there is no memory {name!r}. {nearest(name, MEMORIES)}")
    return MEMORIES[name]

"""Start commands a second sooner: nothing of torch.compile is imported until somebody uses it.

The optimisers of torch import `torch._dynamo` when they are made, only to tell the compiler that it should leave them
alone. That takes as long as importing the rest of torch, in each process of a federation.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class _Later(ModuleType):
    """Stands for `torch._dynamo` until more is asked of it than optimisers do; then the real one is imported."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Do nothing, as the real one where nothing is being compiled."""

    @staticmethod
    def disable(fn: Any, recursive: bool = True, **_: Any) -> Any:
        """Return the function as it is: nothing is being compiled."""
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # whoever looks at modules in general; `__path__`: imports
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


def without_compiler() -> None:
    """Have torch import its compiler late, in this process; for commands, whose process is ours."""
    sys.modules.setdefault(NAME, _Later(NAME))

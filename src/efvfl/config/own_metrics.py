"""Losses and metrics of your own that a run file names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from efvfl.config import user_code
from efvfl.core import losses
from efvfl.errors import ConfigError

losses.find_own_with(user_code.attribute)


def own_metrics(paths: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Return the functions that 'package.module:function' names, by the name of the function.

    >>> list(own_metrics(["math:dist"]))
    ['dist']
    """
    found: dict[str, Callable[..., Any]] = {}
    for path in paths:
        metric = user_code.named(path, "metric")
        name = path.rpartition(":")[2]
        if name in found or not callable(metric):
            raise ConfigError(f"metrics: expected functions with different names, got {path!r}.")
        found[name] = metric
    return found

"""The `[method]` table of a run file: a method by its name, or one of yours by its import path."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from efvfl.config import user_code
from efvfl.config.compressors import compressor_from
from efvfl.config.memories import memory_from
from efvfl.config.parsing import arguments
from efvfl.core.agreement import Agreement
from efvfl.core.memory import Start
from efvfl.core.methods import METHODS, Cotangents, Method
from efvfl.errors import ConfigError, describe, nearest


@dataclass(frozen=True)
class MethodConfig:
    """What is compressed, and how."""

    name: str = "efvfl"  # or svfl, cvfl, fedbcd, celu, or 'package.module:function', which returns a Method
    compressor: dict[str, Any] = field(default_factory=lambda: {"name": "topk", "ratio": 0.1})
    down: dict[str, Any] = field(default_factory=dict)  # compressor of cotangents (private labels); empty: none
    fusion: dict[str, Any] = field(default_factory=dict)  # compressor of x0 (agreement.fusion = "compress")
    parties: dict[str, dict[str, Any]] = field(default_factory=dict)  # compressors of parties that have their own
    start: Start = "compressed"  # exact: first reports are not compressed; mean: memories start at a mean
    first: dict[str, Any] = field(default_factory=dict)  # compressor of a row's first report; empty: as the others
    memory: dict[str, Any] = field(default_factory=dict)  # what both ends remember; empty: error_feedback (EF21)
    cotangents: Cotangents = "all"  # private labels: sent: only those entries go down that the report has changed
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of fedbcd, celu or your own method

    def __post_init__(self) -> None:
        """Refuse a name that nobody knows, and what a built-in method does not take."""
        if self.own:
            return
        if self.name not in METHODS:
            raise ConfigError(f"method.name: unknown method {describe(self.name)}. {nearest(self.name, METHODS)}")
        if self.lossless:
            self.build()
        else:
            arguments(METHODS[self.name], self.options, "method.options", leave=_tables())

    @property
    def own(self) -> bool:
        """Whether the method is yours."""
        return ":" in self.name

    @property
    def lossless(self) -> bool:
        """Whether the method takes no compressor: it ignores the file's, so that methods compare at one setting."""
        return not self.own and "compressor" not in inspect.signature(METHODS[self.name]).parameters

    @property
    def remembers(self) -> bool:
        """Whether the method has the memory that the file names, as far as that is known without importing yours."""
        return self.name == "efvfl" or self.own

    def agreed(self, agreement: Agreement) -> Agreement:
        """Return an agreement with what the method adds to it, as far as that is known without importing yours."""
        return self.build().agreed(agreement) if self.lossless else agreement

    def build(self) -> Method:
        """Return the method."""
        make = self._own() if self.own else METHODS[self.name]
        takes = inspect.signature(make).parameters
        given = {name: value for name, value in self._made().items() if name in takes} if not self.lossless else {}
        if not self.own and "compressor" in takes and given["compressor"] is None:
            raise ConfigError(
                f"method.name = {self.name!r} needs a compressor, such as {{ name = 'topk', ratio = 0.1 }}."
            )
        self._refuse_useless(set(takes))
        made = make(**given, **arguments(make, self.options, "method.options", leave=_tables()))
        if not isinstance(made, Method):
            raise ConfigError(f"{self.name!r}: expected a function that returns an efvfl.Method, got {describe(made)}.")
        return made

    def _made(self) -> dict[str, Any]:
        """Return what the tables of the file mean, by the name of the argument that takes it."""
        own = {name: made for name, table in self.parties.items() if (made := compressor_from(table))}
        tables = {name: compressor_from(getattr(self, name)) for name in ("compressor", "down", "fusion", "first")}
        return {
            **tables,
            "parties": own,
            "start": self.start,
            "memory": memory_from(self.memory),
            "cotangents": self.cotangents,
        }

    def _own(self) -> Callable[..., Method]:
        found = user_code.named(self.name, "method")
        if not callable(found):
            raise ConfigError(
                f"{self.name!r}: expected a function that returns an efvfl.Method, got {describe(found)}."
            )
        return found

    def _refuse_useless(self, takes: set[str]) -> None:
        """Refuse what is set although your method does not take it; of others the table of rules says why not."""
        for f in fields(self) if self.own else ():
            default = f.default_factory() if f.default_factory is not MISSING else f.default
            if f.name in _tables() - takes and getattr(self, f.name) != default:
                raise ConfigError(
                    f"method.{f.name} is set, but it would have no effect: {self.name!r} does not take it."
                )


def _tables() -> set[str]:
    """Return the settings that are arguments of methods under the same name."""
    return {f.name for f in fields(MethodConfig)} - {"name", "options"}

"""Every error this library raises on purpose.

```text
EfvflError
├── ConfigError        a setting that cannot work: unknown key, wrong type, methods that do not fit together
├── CompressionError   a block that no compressor may send: NaN, infinity, wrong dtype
├── DataError          a data set that is missing, cut short or not what it should be
│   └── InputError     the same of rows handed to an estimator: a ValueError, as scikit-learn has it
├── WireError          bytes that are not a packet or a message of ours
├── ProtocolError      a well-formed message that does not belong here: wrong kind, step or shape
├── CheckpointError    a saved state that cannot be read, written or does not fit
├── LinkError          a connection that broke; it is dialled again
├── RefusedError       the other side will not have us: its reason is the text
├── LimitError         the server asks for more than a party's own file allows
├── WorkerError        a worker of the same party is gone; all of them start again from the checkpoint
├── AbsentError        a participant did not come within the time it was given
└── Interrupted        somebody asked us to stop; everything is saved
```

A message says what came, what was expected and what to do next.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import SupportsIndex


class EfvflError(Exception):
    """Base of all errors of this library."""


class ConfigError(EfvflError, ValueError):
    """A setting that cannot work."""


class CompressionError(EfvflError, ValueError):
    """A block that no compressor may send."""


class DataError(EfvflError):
    """A data set that is missing, cut short or not what it should be."""

    def __init__(self, what: str, advice: str = "") -> None:
        """Say what is wrong, and apart from it what to do in a file: an estimator has other advice."""
        super().__init__(f"{what} {advice}" if advice else what)
        self.what, self.advice = what, advice


class InputError(DataError, ValueError):
    """Rows that an estimator cannot take."""


class WireError(EfvflError, ValueError):
    """Bytes that are not a packet or a message of ours."""


class ProtocolError(EfvflError):
    """A well-formed message that does not belong here."""


class CheckpointError(EfvflError):
    """A saved state that cannot be read or does not fit."""


class LinkError(EfvflError):
    """A connection that broke."""


class RefusedError(EfvflError):
    """The other side will not have us."""


class LimitError(EfvflError):
    """More is asked for than a party's own file allows."""


class WorkerError(EfvflError):
    """A worker of the same party is gone."""


class AbsentError(EfvflError):
    """A participant did not come in time."""


class Interrupted(EfvflError):
    """Somebody asked us to stop."""

    def __init__(self, then: str = "everything is saved, the same command goes on from here.") -> None:
        super().__init__(f"stopped as asked: {then}")


def nearest(word: str, known: Iterable[str]) -> str:
    """End of an error about an unknown word: the nearest known one, if any, and all the choices."""
    choices = sorted(known)
    match = difflib.get_close_matches(word, choices, n=1)
    hint = f"Did you mean {match[0]!r}? " if match else ""
    return f"{hint}Known: {', '.join(choices) or 'none'}."


def shown(value: object) -> str:
    """What came, in the words of an error: short values as they are written, others by what they are."""
    if value is None or isinstance(value, str | int | float | complex | dict | list | tuple):
        text = repr(value)
        return text if len(text) < 80 else f"a {type(value).__name__} of {len(text):,} characters"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = getattr(value, "__name__", "")
    return f"the function {name}" if callable(value) and name else f"an object of {type(value).__name__}"


def whole(name: str, value: object, least: int | None = None) -> int:
    """Return a whole number, or refuse what is none or below the least that makes sense."""
    expected = "a whole number" if least is None else f"a whole number from {least}"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ConfigError(f"{name} = {shown(value)} came, {expected} is expected.")
    number = operator.index(value)
    if least is not None and number < least:
        raise ConfigError(f"{name} = {number} came, {expected} is expected.")
    return number

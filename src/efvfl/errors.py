"""The errors that this library raises on purpose.

```text
EfvflError
├── ConfigError        an invalid setting: unknown key, wrong type, methods that do not fit together
│   └── MissingExtraError  an optional package that is not installed; also an ImportError; the text names the extra
├── CompressionError   a block that cannot be compressed: NaN, infinity, wrong dtype
├── DataError          a data set that is missing, truncated or malformed
│   └── InputError     the same for rows passed to an estimator; also a ValueError, as in scikit-learn
├── WireError          bytes that are not a valid packet or message
├── ProtocolError      a valid message in the wrong place: wrong kind, step or shape
├── CheckpointError    a saved state that cannot be read or written, or does not match
│   └── DamagedError   a file whose content is not what was written to it
├── LinkError          a broken connection; it is dialled again
├── RefusedError       the peer refused us; the text is its reason
├── LimitError         the server asks for more than the party's file allows
├── WorkerError        a worker of the same party was lost; all workers restart from the checkpoint
├── AbsentError        a participant did not connect in time
├── IncompleteError    a command has done its work for some rows, and could not for others
└── Interrupted        the run was asked to stop; everything is saved
```

`DataWarning` is a warning, not an error: rows that an estimator could use, but perhaps not as they were meant.

A message names the setting or file, says "expected Y, got X", and then what to do next.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import SupportsIndex


class EfvflError(Exception):
    """Base class of all errors of this library.

    >>> from efvfl import TopK
    >>> try:
    ...     TopK(ratio=2)
    ... except EfvflError as error:
    ...     print(error)
    topk's ratio: expected a number above 0 and at most 1, got 2.
    """


class ConfigError(EfvflError, ValueError):
    """An invalid setting."""


class MissingExtraError(ConfigError, ImportError):
    """An optional package that is not installed."""


class CompressionError(EfvflError, ValueError):
    """A block that cannot be compressed."""


class DataError(EfvflError):
    """A data set that is missing, truncated or malformed."""

    def __init__(self, what: str, advice: str = "") -> None:
        """Keep the problem apart from the advice for run files, because an estimator gives other advice."""
        super().__init__(f"{what} {advice}" if advice else what)
        self.what, self.advice = what, advice


class InputError(DataError, ValueError):
    """Rows that an estimator cannot use."""


class DataWarning(UserWarning):
    """Something in the rows passed to an estimator that it could work around, such as a value that cannot be read."""


class WireError(EfvflError, ValueError):
    """Bytes that are not a valid packet or message."""


class ProtocolError(EfvflError):
    """A valid message in the wrong place: wrong kind, step or shape."""


class CheckpointError(EfvflError):
    """A saved state that cannot be read or written, or does not match."""


class DamagedError(CheckpointError):
    """A file whose content is not what was written to it."""


class LinkError(EfvflError):
    """A broken connection."""


class RefusedError(EfvflError):
    """The peer refused the connection; the text is its reason."""


class LimitError(EfvflError):
    """The server asks for more than the party's file allows."""


class WorkerError(EfvflError):
    """A worker of the same party was lost."""


class AbsentError(EfvflError):
    """A participant did not connect in time."""


class IncompleteError(EfvflError):
    """A command has done its work for some rows, and could not for others."""


class Interrupted(EfvflError):
    """The run was asked to stop."""

    def __init__(self, then: str = "everything is saved, the same command goes on from here.") -> None:
        super().__init__(f"stopped as asked: {then}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown word: the closest known word, if any, and all choices.

    >>> nearest("topp", ["topk", "sign"])
    "Did you mean 'topk'? Known: sign, topk."
    """
    choices = sorted(known)
    match = difflib.get_close_matches(word, choices, n=1)
    hint = f"Did you mean {match[0]!r}? " if match else ""
    return f"{hint}Known: {', '.join(choices) or 'none'}."


def describe(value: object) -> str:
    """Return a value as error messages show it: short values by their repr, others by their type.

    >>> describe([1, 2]), describe(print), describe(object())
    ('[1, 2]', 'the function print', 'an instance of object')
    """
    if value is None or isinstance(value, str | int | float | complex | dict | list | tuple):
        text = repr(value)
        return text if len(text) < 80 else f"a {type(value).__name__} of {len(text):,} characters"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = getattr(value, "__name__", "")
    return f"the function {name}" if callable(value) and name else f"an instance of {type(value).__name__}"


def printable(text: str, keep: str = "") -> str:
    r"""Return a text without control characters: it may be from another organisation, and a terminal would obey them.

    Where a text of ours may be around it, `keep` names those that stay, such as the ends of its lines.

    >>> printable("one\x1b[2Jtwo")
    'one?[2Jtwo'
    """
    return "".join(c if c.isprintable() or c in keep else "?" for c in text)


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """Return a setting as an int, or raise `ConfigError` if it is no whole number or below `least`.

    >>> whole_number("epochs", 3, least=1)
    3
    >>> whole_number("epochs", "x", least=1)
    Traceback (most recent call last):
    efvfl.errors.ConfigError: epochs: expected a whole number of at least 1, got 'x'.
    """
    expected = "a whole number" if least is None else f"a whole number of at least {least}"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ConfigError(f"{name}: expected {expected}, got {describe(value)}.")
    number = operator.index(value)
    if least is not None and number < least:
        raise ConfigError(f"{name}: expected {expected}, got {number}.")
    return number


def system_text(error: Exception) -> str:
    """Return what the system says of an error, without its number and the path that is named anyway.

    >>> system_text(FileNotFoundError(2, "No such file or directory", "run.toml")), system_text(ValueError("not UTF-8"))
    ('No such file or directory', 'not UTF-8')
    """
    return getattr(error, "strerror", None) or str(error)

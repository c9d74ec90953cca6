"""How many files this process may open; a connection is one too."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

ENOUGH: Final = 65_536


def raise_limit() -> int:
    """Raise the number of files that may be open as far as the system lets us and is of use; return it.

    Shells and services usually start processes with 1,024, which is there for programs that still use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    with contextlib.suppress(ValueError, OSError):  # some systems show a hard limit that they do not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft

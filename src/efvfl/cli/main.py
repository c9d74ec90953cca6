"""The command line: the parser, the dispatch to a command's handler, and the exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from efvfl.cli import align, certs, data, federation, reproduce, run, service
from efvfl.errors import (
    AbsentError,
    CheckpointError,
    ConfigError,
    DataError,
    EfvflError,
    Interrupted,
    LimitError,
    RefusedError,
)

# Exit codes: what a script can tell apart.
USAGE = 2  # a setting or a file is wrong
FAILED = 3  # training could not continue
REFUSED = 4  # the other side refuses us, or it asks for more than our own file allows
ABSENT = 5  # a participant was missing for too long
INTERRUPTED = 130  # by Ctrl-C or SIGTERM; `serve` and `join` have saved everything

_CODES: tuple[tuple[type[EfvflError], int], ...] = (
    (ConfigError, USAGE),
    (CheckpointError, USAGE),
    (DataError, USAGE),
    (RefusedError, REFUSED),
    (LimitError, REFUSED),
    (AbsentError, ABSENT),
    (Interrupted, INTERRUPTED),
    (EfvflError, FAILED),
)

# Every group registers its commands and their handlers; a handler imports what it needs when it is called.
_GROUPS = (run, data, reproduce, certs, align, federation, service)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="efvfl", description="Vertical federated learning with error feedback.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in _GROUPS:
        group.register(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    from rich.console import Console  # late, so that --help stays quick

    try:
        options.handler(options, Console())
    except EfvflError as error:
        print(f"efvfl: {error}", file=sys.stderr)
        return next(code for kind, code in _CODES if isinstance(error, kind))
    except KeyboardInterrupt:
        print("efvfl: interrupted.", file=sys.stderr)
        return INTERRUPTED
    return 0

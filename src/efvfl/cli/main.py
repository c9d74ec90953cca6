"""The command line: the parser, the dispatch to a command's handler, and the exit codes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import efvfl
from efvfl.cli import (
    align,
    attack,
    certs,
    dashboard,
    data,
    doctor,
    export,
    federation,
    init,
    keys,
    plan,
    quick_start,
    reproduce,
    run,
    service,
    value,
)
from efvfl.cli.options import examples_text
from efvfl.errors import (
    AbsentError,
    CheckpointError,
    ConfigError,
    DataError,
    EfvflError,
    IncompleteError,
    Interrupted,
    LimitError,
    RefusedError,
    printable,
)

if TYPE_CHECKING:
    from rich.console import Console

# Exit codes: what a script can tell apart.
USAGE = 2  # a setting or a file is wrong
FAILED = 3  # training could not continue
REFUSED = 4  # the other side refuses us, or it asks for more than our own file allows
ABSENT = 5  # a participant was missing for too long
INCOMPLETE = 6  # done, but not for all rows that were asked for
INTERRUPTED = 130  # by Ctrl-C or SIGTERM; `serve` and `join` have saved everything

_CODES: tuple[tuple[type[EfvflError], int], ...] = (
    (ConfigError, USAGE),
    (CheckpointError, USAGE),
    (DataError, USAGE),
    (RefusedError, REFUSED),
    (LimitError, REFUSED),
    (AbsentError, ABSENT),
    (IncompleteError, INCOMPLETE),
    (Interrupted, INTERRUPTED),
    (EfvflError, FAILED),
)

LINE_ENDS = "\n\t"  # what a text of ours may have; in that of a peer they are replaced as soon as it is read

# Every group registers its commands and their handlers; a handler imports what it needs when it is called.
# Their order is that of `efvfl --help`: one process, a federation from its first day on, what is made of it, the paper.
_GROUPS = (
    run,
    init,
    keys,
    doctor,
    align,
    federation,
    service,
    dashboard,
    value,
    export,
    attack,
    plan,
    data,
    reproduce,
    certs,
)

# What these write is public, or they look after it themselves; what others write tells of rows and labels.
_PUBLIC = frozenset({"data", "demo", "reproduce", "figures", "certs"})
_WIDE = 10_000  # columns of what is not a terminal
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="efvfl",
        description="Vertical federated learning with compressed error feedback. More: `efvfl COMMAND --help`.",
        epilog=examples_text("demo", "run run.toml", "init customers.csv", "serve bank.toml", "join telco.toml"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"efvfl {efvfl.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in _GROUPS:
        group.register(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if arguments is None:  # a command of its own: processes that it starts must not look for modules in its folder
        os.environ.setdefault("PYTHONSAFEPATH", "1")
        quick_start.without_compiler()
    options = _parser().parse_args(arguments)
    try:
        with contextlib.nullcontext() if options.command in _PUBLIC else _private_files():
            options.handler(options, _console())
    except EfvflError as error:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        _complain(options, printable(str(error), keep=LINE_ENDS), code)  # a peer's text may be in it
        return code
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _drop_output()
        _complain(options, f"{error}: free some space; the same command goes on from what was saved.", USAGE)
        return USAGE
    except KeyboardInterrupt:
        _complain(options, "interrupted.", INTERRUPTED)
        return INTERRUPTED
    return 0


def _console() -> Console:
    """Return where results go: a file or a pipe is as wide as they are, so that nothing is wrapped or cut."""
    from rich.console import Console  # late, so that --help stays quick

    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def _complain(options: argparse.Namespace, text: str, code: int) -> None:
    """Say on stderr why a command ends, in the form of its log."""
    if getattr(options, "log", "") == "json":
        from efvfl.network.ops.terminal_log import as_json

        print(as_json("error", text, {"exit_code": code}, time.time()), file=sys.stderr)
    else:
        print(f"efvfl: {text}", file=sys.stderr)


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Let nobody but the owner read what is written."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _drop_output() -> None:
    """Forget what a full disk did not take of stdout: Python would try again at its end, and fail once more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

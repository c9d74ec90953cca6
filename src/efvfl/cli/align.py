"""`efvfl align`: from a federation file and one's own table to the rows that all share."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.data.tables.encode import TableSettings
from efvfl.data.tables.load import Table, label_settings
from efvfl.errors import ConfigError, DataError, Interrupted, nearest
from efvfl.network.align.aligned_rows import FILE, Aligned
from efvfl.network.align.alignment import AlignServer, nothing_shared
from efvfl.network.align.messages import FRAME, Reason
from efvfl.network.align.party import AlignMember
from efvfl.network.identity import certificates
from efvfl.network.links.connections import Hooks, ServerTimeouts
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.links.grpc import dial, listen, port_of
from efvfl.network.ops import audit_log
from efvfl.network.ops.lock import Lock
from efvfl.network.ops.session import folder_of, identity_of, stops, tick
from efvfl.network.ops.status import Mode, StatusLine

log = logging.getLogger("efvfl")


@dataclass(frozen=True)
class Own:
    """What one participant brings: its tables, the ids that are in all of them, and labels if it holds those."""

    tables: list[Table]  # one; two at a label holder whose labels lie in a table of their own
    ids: list[str]
    labels: NDArray[Any] | None


def read_own(config: RunConfig, folder: Path, name: str) -> Own:
    """Read the ids of a party, or the label holder's ('') ids and labels."""
    party = name or config.label_holder
    own = config.of(party).data
    if party and own is None:
        raise ConfigError(f"party {party!r} has no table in this file: its [[party]] needs data = {{ path, id }}.")
    tables = [Table.open(folder / own.path, TableSettings.of(own), config.data)] if own else []
    if name:
        return Own(tables, tables[0].ids, None)
    where = label_settings(config)
    if where is None:
        raise ConfigError("the label holder has no labels: set `label` in [data], or in its own [[party]] data.")
    if config.data.label:
        tables.append(Table.open(folder / where[0], where[1], config.data))
    both = set(tables[0].ids)
    ids = [one for one in tables[-1].ids if one in both]
    if not ids:
        raise DataError(f"{tables[0].path} and {tables[1].path} of the label holder have no id in common.")
    return Own(tables, ids, tables[-1].labels(ids).to_numpy())


def align(options: argparse.Namespace, config: RunConfig, console: Console, stack: contextlib.ExitStack) -> None:
    """Be a party or the label holder; what is opened is closed with the stack."""
    names = [party.name for party in config.party]
    if not set(names) - {config.label_holder}:
        raise ConfigError("nobody is there to align with: the file needs a [[party]] for every party.")
    if options.party is None:
        _lead(options, config, console, stack)
        return
    if options.party not in names:
        raise ConfigError(f"{options.party!r} is not a party of this federation. {nearest(options.party, names)}")
    if options.party == config.label_holder:
        raise ConfigError(f"{options.party!r} sits next to the server: `efvfl align` without --party does its part.")
    _follow(options, config, console, stack)


def _follow(options: argparse.Namespace, config: RunConfig, console: Console, stack: contextlib.ExitStack) -> None:
    """Be a party."""
    name: str = options.party
    own = read_own(config, options.file.parent, name)
    identity, folder = identity_of(options, name), folder_of(options, name)
    stack.callback(Lock(folder).release)
    member = AlignMember(config, name, own.ids, folder)
    stack.callback(member.close)
    written = audit_log.AuditLog(folder)
    stack.callback(written.close)
    address, waiting = (
        configs.check_address(options.address or config.network.address),
        PartyTimeouts(server=config.network.absent_seconds),
    )
    written.watch(port_of(address))
    joining = Dialler(member, partial(dial, address, identity, FRAME, written.count), waiting, written.wrote)

    def state() -> dict[str, Any]:
        return {"done": member.shards_done, "of": member.shards, **_bytes(written), "connected": joining.connected}

    shown = Shown(options.status, console, state)
    stack.callback(shown.close)
    joining.on_tick = partial(tick, shown, written)
    _introduce(shown, own, config)
    with _not_saved(), stops(joining.stopping):
        joining.run()
    if member.void == Reason.EMPTY:
        raise nothing_shared(member.ids)
    if member.aligned is None:
        raise DataError("the label holder could not cut the shared rows into splits: it was told why. Nothing changed.")
    _conclude(shown, own, member.aligned, folder)


def _lead(options: argparse.Namespace, config: RunConfig, console: Console, stack: contextlib.ExitStack) -> None:
    """Be the label holder."""
    own = read_own(config, options.file.parent, "")
    identity, folder = identity_of(options, certificates.SERVER), folder_of(options, certificates.SERVER)
    stack.callback(Lock(folder).release)
    written = audit_log.AuditLog(folder)
    stack.callback(written.close)
    patience = ServerTimeouts(absent=config.network.absent_seconds)
    hooks = Hooks(written.wrote, lambda: tick(shown, written))
    server = AlignServer(config, own.ids, own.labels, folder, patience, hooks)
    requests = server.requests

    def state() -> dict[str, Any]:
        missing = requests.presence.missing_for()
        return {"done": server.done, "of": server.total, **_bytes(written), "missing": missing}

    shown = Shown(options.status, console, state)
    stack.callback(shown.close)
    _introduce(shown, own, config)
    address = configs.check_address(options.address or config.network.address)
    listening, port = listen(address, identity, FRAME, len(requests.names), requests.accept)
    written.watch(port)
    stack.callback(lambda: listening.stop(1.0).wait(2.0))
    stack.callback(written.count)
    stack.callback(requests.close)
    shown.say(f"Listening on {address.rsplit(':', 1)[0]}:{port} for {', '.join(requests.names)}.", port=port)
    with _not_saved(), stops(requests.stopping):
        found = server.run()
    for name in sorted(server.untold):
        log.warning("%s has the list, but went before it was told that all is done.", name)
    _conclude(shown, own, found, folder)


@contextlib.contextmanager
def _not_saved() -> Iterator[None]:
    try:
        yield
    except Interrupted:
        raise Interrupted("the alignment was not finished, and the same command starts it over.") from None


def _bytes(written: audit_log.AuditLog) -> dict[str, int]:
    return {"bytes_out": written.totals["out"], "bytes_in": written.totals["in"]}


def _introduce(shown: Shown, own: Own, config: RunConfig) -> None:
    """Say what became of the own tables."""
    forms = list(config.data.id_format)
    for one in own.tables:
        report = one.found.report
        counts = {key: getattr(report, key) for key in ("total", "missing", "duplicates", "changed")}
        shown.say(f"{one.path}: {report.text()} Ids are compared {_described(forms)}.", **counts, id_format=forms)


def _described(forms: Sequence[str]) -> str:
    words = {"strip": "without spaces around them", "case": "in lower case", "zeros": "without leading zeros"}
    return ", ".join(words[form] for form in words if form in forms) or "as they are"


def _conclude(shown: Shown, own: Own, found: Aligned, folder: Path) -> None:
    """Say what all share, and how much of the own table that is."""
    rows, shared, counts = own.tables[0].found.report.total, len(found.ids), found.counts()
    splits = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    shown.say(
        f"{shared:,} rows are shared by all, {shared / rows:.1%} of the {rows:,} here: {splits}. "
        f"List: {folder / FILE}. What left the building: efvfl audit {folder}",
        shared=shared,
        share=shared / rows,
        **counts,
    )


class Shown:
    """How an alignment shows what it is doing: a bar for people, JSON lines for services, or nothing."""

    def __init__(self, mode: Mode, console: Console, state: Callable[[], dict[str, Any]]) -> None:
        """Show what `state` returns."""
        self.mode = mode
        self.console = console
        self.state = state
        self._lines = StatusLine("json" if mode == "json" else "quiet", console, state)
        self._bar: Progress | None = None
        if mode == "live" and console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("aligning", total=None)
            self._bar.start()

    def __call__(self) -> None:
        """Show the state."""
        self._lines()
        if self._bar:
            state = self.state()
            text = f"waiting for {', '.join(state['missing'])}" if state.get("missing") else "shards compared"
            text = "no link to the server" if state.get("connected") is False else text
            self._bar.update(self._task, description=text, completed=state["done"], total=state["of"] or None)

    def say(self, text: str, **more: Any) -> None:
        """Show something that happened once."""
        if self.mode == "live":
            self.console.print(text, soft_wrap=True, highlight=False)
        else:
            self._lines.say(text, **more)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar:
            self._bar.stop()

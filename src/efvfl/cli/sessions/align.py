"""`efvfl align`: from a federation file and a participant's own table to the rows that all share."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from efvfl.cli.sessions import setup
from efvfl.config.run_file import RunConfig
from efvfl.data import label_draws
from efvfl.data.participation import Participation
from efvfl.data.tables.encode import TableSettings
from efvfl.data.tables.id_hints import own_format
from efvfl.data.tables.load import Table, label_settings
from efvfl.errors import ConfigError, DataError, Interrupted, nearest
from efvfl.network.align.aligned_rows import Aligned
from efvfl.network.align.alignments import Alignments
from efvfl.network.align.list_targets import Draw, ListTargets
from efvfl.network.align.messages import FRAME, VoidReason
from efvfl.network.align.party import AlignmentParty
from efvfl.network.align.server import AlignmentServer, nothing_shared
from efvfl.network.identity import certificates
from efvfl.network.links.connections import Hooks, ServerTimeouts
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.ops.audit_log import AuditLog
from efvfl.network.ops.session import SessionOptions, stop_on_signal, tick
from efvfl.network.ops.status import Mode, StatusLine, say
from efvfl.network.training import beginning

log = logging.getLogger("efvfl")


@dataclass(frozen=True)
class LocalTables:
    """What one participant brings: its tables, the ids that are in all of them, and labels if it holds those."""

    tables: list[Table]  # one; two at a label holder whose labels lie in a table of their own
    ids: list[str]
    labels: NDArray[Any] | None
    id_format: Sequence[str]


def read_tables(config: RunConfig, folder: Path, name: str) -> LocalTables:
    """Read the ids of a party, or the label holder's ('') ids and labels."""
    party = name or config.label_holder
    data = config.of(party).data
    if party and data is None:
        raise ConfigError(f"party {party!r} has no table in this file: its [[party]] needs data = {{ path, id }}.")
    tables = [Table.open(folder / data.path, TableSettings.of(data), config.data)] if data else []
    if name:
        return LocalTables(tables, tables[0].ids, None, config.data.id_format)
    target = label_settings(config)
    if target is None:
        raise ConfigError("the label holder has no labels: set `label` in [data], or in its own [[party]] data.")
    if config.data.label:
        tables.append(Table.open(folder / target[0], target[1], config.data))
    both = set(tables[0].ids)
    ids = [one for one in tables[-1].ids if one in both]
    if not ids:
        raise DataError(f"{tables[0].path} and {tables[1].path} of the label holder have no id in common.")
    labels = tables[-1].encoding(ids, config.loss).encode(tables[-1].labels(ids))
    return LocalTables(tables, ids, labels.numpy(), config.data.id_format)


def follow(options: SessionOptions, name: str, config: RunConfig, console: Console, stack: ExitStack) -> None:
    """Align as the named party; what is opened is closed with the stack."""
    names = _check_parties(config)
    if name not in names:
        raise ConfigError(f"{name!r} is not a party of this federation. {nearest(name, names)}")
    if name == config.label_holder:
        raise ConfigError(f"{name!r} sits next to the server: `efvfl align` without --party does its part.")
    local = read_tables(config, options.file.parent, name)
    credentials, folder = options.credentials_of(name), options.folder_of(name)
    setup.lock(folder, stack)
    party = AlignmentParty(config, name, local.ids, folder)
    stack.callback(party.close)
    audit = setup.open_audit_log(folder, stack)

    def state() -> dict[str, Any]:
        return {"done": party.shards_done, "of": party.shards, **_bytes(audit), "connected": dialler.connected}

    progress = ProgressDisplay(options.status, console, state)
    stack.callback(progress.close)
    dialler = Dialler(
        party,
        setup.make_dial(options.address_of(config), credentials, FRAME, audit),
        PartyTimeouts(server=config.network.absent_seconds),
        on_frame=audit.record,
        on_tick=partial(tick, (progress,), audit),
    )
    _describe_tables(progress, local, config)
    with _restartable(), stop_on_signal(dialler.stopping):
        dialler.run()
    if party.void == VoidReason.EMPTY:
        raise nothing_shared(party.ids, party.mode)
    if party.aligned is None:
        raise DataError("the label holder could not make a list of the rows: it was told why. Nothing changed.")
    _describe_result(progress, local, party, party.aligned)


def lead(options: SessionOptions, config: RunConfig, console: Console, stack: ExitStack) -> None:
    """Align as the label holder; what is opened is closed with the stack."""
    _check_parties(config)
    _check_secret(config)
    local = read_tables(config, options.file.parent, "")
    credentials, folder = options.credentials_of(certificates.SERVER), options.folder_of(certificates.SERVER)
    setup.lock(folder, stack)
    audit = setup.open_audit_log(folder, stack)
    timeouts = ServerTimeouts(absent=config.network.absent_seconds, silent=config.network.silent_seconds)
    hooks = Hooks(audit.record, lambda: tick((progress,), audit))
    draw = partial(label_draws.of_folder, config, home=folder)
    server = AlignmentServer(config, local.ids, told_labels(local, config, draw), folder, timeouts, hooks)
    server.targets_of = partial(ListTargets.of, local.tables[-1], loss=config.loss, draw=draw)
    requests = server.requests

    def state() -> dict[str, Any]:
        missing = requests.presence.missing_for()
        return {"done": server.done, "of": server.total, **_bytes(audit), "missing": missing}

    progress = ProgressDisplay(options.status, console, state)
    stack.callback(progress.close)
    _describe_tables(progress, local, config)
    port = setup.open_port(options, config, credentials, FRAME, requests, audit, stack)
    progress.say(setup.listening_text(options, config, port, requests), port=port)
    with _restartable(), stop_on_signal(requests.stopping):
        aligned = server.run()
    for name in sorted(server.uninformed):
        log.warning("%s has the list, but left before it was told that the alignment has ended.", name)
    _describe_result(progress, local, server, aligned)


def told_labels(local: LocalTables, config: RunConfig, draw: Draw) -> NDArray[Any] | None:
    """Return the labels by which rows are cut into splits: as others may know them."""
    if local.labels is None or not config.data.stratify:
        return local.labels
    loss = local.tables[-1].encoding(local.ids, config.loss).loss
    release = draw(loss, {"": torch.from_numpy(local.labels)}, {"": local.ids})
    return release.labels[""].numpy() if release else local.labels


def show_lists(options: SessionOptions, party: str, console: Console) -> None:
    """Show the lists in a participant's folder, and which of them training there began with."""
    folder = options.folder_of(party or certificates.SERVER)
    alignments, began = Alignments(folder), beginning.load(folder)
    if not alignments.numbers():
        raise DataError(f"there is no list in {folder}: run `efvfl align` first, all together.")
    for number in alignments.numbers():
        used = " Training in this folder began with it." if began and began.alignment == number else ""
        newest = " The newest." if number == alignments.newest else ""
        made = datetime.fromtimestamp(alignments.path(number).stat().st_mtime).strftime("%Y-%m-%d")
        text = f"{describe(alignments, number, alignments.load(number))} Of {made}: {alignments.path(number)}."
        console.print(text + newest + used, soft_wrap=True, highlight=False, markup=False)


def _check_parties(config: RunConfig) -> list[str]:
    names = [party.name for party in config.party]
    if not set(names) - {config.label_holder}:
        raise ConfigError("nobody is there to align with: the file needs a [[party]] for every party.")
    return names


def _check_secret(config: RunConfig) -> None:
    """Refuse splits that tell parties labels, and numbers of rows that tell them ids: both need a secret order."""
    if config.private_seed not in (None, config.seed):
        return
    secret = "set it to a random number (python -c 'import secrets; print(secrets.randbits(63))')"
    if config.data.align == "outer":
        raise ConfigError(
            "align = 'outer' needs a private_seed at the top level of the label holder's own file, because parties "
            f"that know the order of the rows would learn which ids are between their own: {secret}."
        )
    if config.agreement.labels == "private" and config.data.stratify:
        raise ConfigError(
            "data.stratify with private labels needs a private_seed at the top level of the label holder's own file, "
            f"because parties that know the seed would read labels off the splits: {secret}, or leave stratify out."
        )


@contextlib.contextmanager
def _restartable() -> Iterator[None]:
    """Say what to do after an interruption: nothing of an alignment is saved before its end."""
    try:
        yield
    except Interrupted:
        raise Interrupted(
            "the alignment was not finished: the same command starts it again from the beginning."
        ) from None


def _bytes(audit: AuditLog) -> dict[str, int]:
    return {"bytes_out": audit.totals["out"], "bytes_in": audit.totals["in"]}


def _describe_tables(progress: ProgressDisplay, local: LocalTables, config: RunConfig) -> None:
    """Say how the ids in this participant's tables were read."""
    forms = list(config.data.id_format)
    for table in local.tables:
        report = table.found.report
        counts = {key: getattr(report, key) for key in ("total", "missing", "duplicates", "changed")}
        progress.say(f"{table.path}: {report.text()} Ids are compared {_described(forms)}.", **counts, id_format=forms)


def _described(forms: Sequence[str]) -> str:
    words = {"strip": "without spaces around them", "case": "in lower case", "zeros": "without leading zeros"}
    return ", ".join(words[form] for form in words if form in forms) or "as they are"


def describe(alignments: Alignments, number: int, aligned: Aligned) -> str:
    """Say what a list has that the one before it had not, and the other way round."""
    before = alignments.before(number)
    text = f"Alignment {number}: {len(aligned.ids):,} rows"
    if aligned.outer and len(aligned.ids) < aligned.outer.rows:
        text += f" of the {aligned.outer.rows:,} of the label holder"
    if not before:
        return f"{text}."
    try:
        more, fewer = aligned.compared(alignments.load(before))
    except DataError as error:
        return f"{text}; they cannot be compared with those before: {error}"
    return f"{text}, {more:,} more than alignment {before}, {fewer:,} fewer."


def _describe_result(
    progress: ProgressDisplay, local: LocalTables, here: AlignmentParty | AlignmentServer, aligned: Aligned
) -> None:
    """Say how many rows take part, how much of the local tables that is, and why the others are left out."""
    rows, shared, counts = local.tables[0].found.report.total, len(aligned.ids), aligned.counts()
    splits = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    parts = {table.path: table.participation(shared, aligned.outer is not None) for table in local.tables}
    found = " ".join(_describe_rows(table, parts[table.path], local.id_format) for table in local.tables)
    alignments, number = here.alignments, here.number
    text = (
        describe(alignments, number, aligned) if here.added else f"Alignment {number} again: the same {shared:,} rows."
    )
    has = {name: sum(mask) for name, mask in aligned.outer.masks.items()} if aligned.outer else {}
    if shared and len(has) > 1:
        found += f" Of these rows {', '.join(f'{name} has {count:,}' for name, count in has.items())}."
    progress.say(
        f"{text} That is {shared / rows:.1%} of the {rows:,} here: {splits}. {found} "
        f"List: {alignments.path(number)}. What left the building: efvfl audit {alignments.folder}",
        alignment=number,
        shared=shared,
        share=shared / rows,
        **counts,
        tables={str(path): part.counts() for path, part in parts.items()},
        **({"has": has} if has else {}),
    )


def _describe_rows(table: Table, part: Participation, id_format: Sequence[str]) -> str:
    # Of the others' ids nothing is known here, but which of the own ones a format would change is.
    hint = own_format(table.written_ids, id_format) if part.unmatched else ""
    return f"{table.path}: {part.text()}" + (f" {hint}" if hint else "")


class ProgressDisplay:
    """Shows the progress of an alignment: a bar for people, JSON lines for services, or nothing."""

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
        """Show the current state."""
        self._lines()
        if self._bar:
            state = self.state()
            text = f"waiting for {', '.join(state['missing'])}" if state.get("missing") else "shards compared"
            text = "no link to the server" if state.get("connected") is False else text
            self._bar.update(self._task, description=text, completed=state["done"], total=state["of"] or None)

    def say(self, text: str, **more: Any) -> None:
        """Show an event."""
        if self.mode == "live":
            say(self.console, text, **more)
        else:
            self._lines.say(text, **more)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar:
            self._bar.stop()

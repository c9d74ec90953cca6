"""`efvfl join`: a party's process."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from rich.console import Console

from efvfl.cli.sessions import setup
from efvfl.config.run_file import RunConfig
from efvfl.core.channel import codec_seconds
from efvfl.core.plan import Plan
from efvfl.errors import ConfigError, ProtocolError, nearest
from efvfl.network import handshake
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.ops.session import SessionOptions, stop_on_signal, tick
from efvfl.network.ops.status import StatusLine
from efvfl.network.training import build, participant_data, questions
from efvfl.network.training.autosave import CheckpointPolicy
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.workers import worker_group
from efvfl.network.workers.group_model import workers_of
from efvfl.runs.model_notes import ModelNotes, local_note
from efvfl.runs.run_folder import RunSettings
from efvfl.runs.status_file import StatusFile
from efvfl.runs.svfl_bytes import bytes_beside
from efvfl.runs.true_settings import true_settings


def join(options: SessionOptions, name: str, config: RunConfig, console: Console, stack: ExitStack) -> None:
    """Take part as the named party until the server ends the run; what is opened is closed with the stack."""
    folder, network, limits = options.folder_of(name), config.network, config.of(name).limits
    if not worker_group.rank():
        setup.lock(folder, stack)  # first of all: it makes the folder, for nobody else to read
    start = setup.open_start(options, name, folder)
    data = participant_data.load(config, options.file.parent, name, folder, start)
    if name not in data.names:
        raise ConfigError(f"{name!r} is not a party of this federation. {nearest(name, data.names)}")
    if name == config.label_holder:
        raise ConfigError(f"{name!r} sits next to the server: `efvfl serve` does its part.")
    if worker_group.rank():
        setup.work(config, data, name)
        return
    credentials = options.credentials_of(name)
    setup.warn_without_private_seed(config, name)
    if config.of(name).protect.noise and config.of(name).private_seed is None:
        raise ConfigError("protect is on, but its noise would follow from the shared seed: set private_seed.")
    plan = build.make_plan(config, data, folder)
    party = build.build_party(config, plan, data, name)
    ModelNotes({name: local_note(config, name, data.columns["train"])}).save(folder)
    if workers := workers_of(party):
        stack.push(workers.leave)
    process = PartyProcess(
        party,
        folder,
        data.about(config, name),
        questions.QuestionHandler.allowed(party, data, config, folder),
        limits,
        CheckpointPolicy(network),
        handshake.own_model(config, name),
    )
    stack.callback(process.message_log.close)
    audit = setup.open_audit_log(folder, stack)

    def state() -> dict[str, Any]:
        codec = codec_seconds(party.every_channel())
        return {
            "step": party.step,
            "bytes_out": audit.totals["out"],
            "bytes_in": audit.totals["in"],
            "compute": max(0.0, process.seconds - codec),
            "codec": codec,
            "waiting": dialler.waited,
            "connected": dialler.connected,
        }

    status = StatusLine(options.status, console, state)
    stack.callback(status.close)
    metrics = setup.open_metrics(options, state, status, stack)
    file = StatusFile(folder, "join", name, lambda: _watched(config, process, plan, state()))
    file.watch()
    stack.push(file.leave)
    if party.noise:
        status.say(party.noise.promise(plan.batches.per_epoch * config.epochs))
    limit = build.frame_limit(plan, party.label_mode.fusion_size)
    dialler = Dialler(
        process,
        setup.make_dial(options.address_of(config), credentials, limit, audit),
        PartyTimeouts(server=network.absent_seconds),
        on_frame=audit.record,
        on_tick=partial(tick, [show for show in (status, file, metrics) if show], audit, workers),
    )
    with stop_on_signal(dialler.stopping):
        dialler.run()
    if process.diverged:
        raise ProtocolError(handshake.diverged([name]))
    status.say(f"Done after {party.step:,} steps. What left the building: efvfl audit {folder}")


def _watched(config: RunConfig, process: PartyProcess, plan: Plan, state: dict[str, Any]) -> dict[str, Any]:
    """Return what a dashboard shows of a party: its own side, for nobody tells it more."""
    party, limits = process.party, process.limits
    rows = {"train": plan.batches.samples, **plan.held_out}
    widths = dict(zip(plan.names, plan.widths, strict=True))
    settings = RunSettings(true_settings(config, rows, network=True), widths, rows, party.label_mode.fusion_size)
    return {
        **state,
        "seconds": {key: state[key] for key in ("compute", "codec", "waiting")},
        "steps": plan.batches.per_epoch * config.epochs,
        "epochs": config.epochs,
        **bytes_beside(settings, process.ledger, party.step),
        "limits": {"bytes": limits.bytes, "steps": limits.steps, "rows": process.rows_allowed},
        "used": {"bytes": process.ledger.total("up"), "steps": party.step, "rows": process.rows_given.value},
    }

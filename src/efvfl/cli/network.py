"""The commands of a federation: `efvfl certs`, `align`, `serve`, `join`, `predict`, `serve-predictions` and `audit`."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.logging import RichHandler
from torch import Tensor

from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.errors import ConfigError, nearest
from efvfl.network import handshake
from efvfl.network.identity import authority, certificates
from efvfl.network.links.connections import Hooks, ServerTimeouts
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.links.grpc import dial, listen, port_of
from efvfl.network.ops import audit_log
from efvfl.network.ops.lock import Lock
from efvfl.network.ops.session import folder_of, identity_of, signals, stops, tick
from efvfl.network.ops.status import StatusLine
from efvfl.network.predict import service
from efvfl.network.predict.prediction import said
from efvfl.network.training import build, participant_data, questions
from efvfl.network.training.autosave import CheckpointPolicy
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.server_process import ServerProcess
from efvfl.network.workers import worker_group
from efvfl.network.workers.worker_group import workers_of
from efvfl.runs import metrics
from efvfl.runs.run_folder import load_outputs
from efvfl.util.extras import optional
from efvfl.util.files import write_atomically

log = logging.getLogger("efvfl")


def run_command(options: argparse.Namespace, console: Console) -> None:
    """Run one of these commands."""
    if options.command == "audit":
        for folder in audit_log.folders(options.run):
            lines = audit_log.read(folder)
            console.print(audit_log.table(folder.name, lines), audit_log.contents(lines), "", highlight=False)
        return
    config = configs.load(options.file)
    if options.command == "certs":
        make_certs(options, config, console)
        return
    if options.command not in ("join", "serve"):
        worker_group.refuse(options.command)
    if options.command != "align" and options.device:
        config = configs.on_device(config, options.device)
    sys.path.insert(0, str(options.file.parent.resolve()))  # your own models may lie beside the file
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[_handler(options.status)])
    if config.threads:
        torch.set_num_threads(config.threads)
    with contextlib.ExitStack() as stack:
        {"align": align, "join": join}.get(options.command, serve)(options, config, console, stack)


def align(options: argparse.Namespace, config: RunConfig, console: Console, stack: contextlib.ExitStack) -> None:
    """Find the rows that all share; its library is loaded here, since nothing else needs it."""
    from efvfl.cli import align

    align.align(options, config, console, stack)


def _handler(mode: str) -> logging.Handler:
    return RichHandler(console=Console(stderr=True), show_path=False) if mode == "live" else logging.StreamHandler()


def make_certs(options: argparse.Namespace, config: RunConfig, console: Console) -> None:
    """Make what is missing, for all names in a federation file."""
    names = participant_data.party_names(config, options.file.parent)
    made = authority.make(options.out, [certificates.SERVER, *names, *options.client], options.days, options.host)
    for path in made:
        console.print(f"made {path}", soft_wrap=True, highlight=False)
    text = f"Give each party its NAME.key and NAME.crt, and {options.out / 'ca.crt'}, by a way you trust; keep ca.key."
    console.print(text if made else "Nothing was missing.", soft_wrap=True, highlight=False)


def join(options: argparse.Namespace, config: RunConfig, console: Console, stack: contextlib.ExitStack) -> None:
    """Be a party; what is opened is closed with the stack."""
    name: str = options.party
    holding = participant_data.load(config, options.file.parent, name, folder_of(options, name))
    if name not in holding.names:
        raise ConfigError(f"{name!r} is not a party of this federation. {nearest(name, holding.names)}")
    if name == config.label_holder:
        raise ConfigError(f"{name!r} sits next to the server: `efvfl serve` does its part.")
    if worker_group.rank():
        _work(config, holding, name)
        return
    identity = identity_of(options, name)
    _warn_of_seed(config, name)
    plan = build.make_plan(config, holding, folder_of(options, name))
    party = build.build_party(config, plan, holding, name)
    if workers := workers_of(party):
        stack.push(workers.leave)
    stack.callback(Lock(folder_of(options, name)).release)
    network = config.network
    member = PartyProcess(
        party,
        folder_of(options, name),
        handshake.about(config, name, holding.names, holding.trained_ids),
        questions.QuestionHandler(party, holding),
        config.of(name).limits,
        CheckpointPolicy(network),
    )
    stack.callback(member.message_log.close)
    written = audit_log.AuditLog(member.folder)
    stack.callback(written.close)
    address = configs.check_address(options.address or network.address)
    written.watch(port_of(address))
    joining = Dialler(
        member,
        partial(dial, address, identity, build.frame_limit(plan, party.label_mode.fusion_size), written.count),
        PartyTimeouts(server=network.absent_seconds),
        written.wrote,
    )

    def state() -> dict[str, Any]:
        codec = party.up.seconds
        return {
            "step": party.step,
            "bytes_out": written.totals["out"],
            "bytes_in": written.totals["in"],
            "compute": member.seconds - codec,
            "codec": codec,
            "waiting": joining.waited,
            "connected": joining.connected,
        }

    status = StatusLine(options.status, console, state)
    stack.callback(status.close)
    joining.on_tick = partial(tick, status, written, workers)
    with stops(joining.stopping):
        joining.run()
    status.say(f"Done after {party.step:,} steps. What left the building: efvfl audit {member.folder}")


def _work(config: RunConfig, holding: ParticipantData, name: str) -> None:
    """Be a worker of a party that has a rank above 0, until rank 0 is done; to be asked to stop is its business."""
    with signals(lambda number, frame: None):
        build.build_worker(config, build.make_plan(config, holding), holding, name).work()


def _warn_of_seed(config: RunConfig, name: str = "") -> None:
    if (config.of(name) if name else config).private_seed is None:
        log.warning(
            "no private_seed is set for %s: its initial parameters and noise follow from the shared seed, which the "
            "others know. Set it in your own copy of the file, and start in an empty folder: what has begun goes on.",
            name or "the server",
        )


def serve(options: argparse.Namespace, config: RunConfig, console: Console, stack: contextlib.ExitStack) -> None:
    """Be the label holder: train, or predict; what is opened is closed with the stack."""
    folder = folder_of(options, certificates.SERVER)
    holding = participant_data.load(config, options.file.parent, "", folder)
    if not config.label_holder:
        worker_group.refuse("serve")
    if worker_group.rank():
        _work(config, holding, config.label_holder)
        return
    identity = identity_of(options, certificates.SERVER)
    _warn_of_seed(config)
    wanted = _wanted(options, holding) if options.command == "predict" else []
    hooks = Hooks(
        lambda name, direction, frame: written.wrote(name, direction, frame),
        lambda: tick(status, written, serving.workers),
    )
    serving = _open(options, config, holding, folder, stack, hooks)
    front = service.prepare(options, folder, stack) if options.command == "serve-predictions" else None
    requests, written = serving.requests, audit_log.AuditLog(folder)
    stack.callback(written.close)
    status = StatusLine(options.status, console, partial(_standing, serving, written))
    stack.callback(status.close)
    address = configs.check_address(options.address or config.network.address)
    listening, port = listen(address, identity, build.frame_limit(serving.plan), len(holding.names), requests.accept)
    written.watch(port)
    stack.callback(lambda: listening.stop(1.0).wait(2.0))
    stack.callback(written.count)
    stack.callback(requests.close)
    stack.callback(written.count)
    status.say(f"Listening on {address.rsplit(':', 1)[0]}:{port} for {', '.join(requests.names)}.", port=port)
    if front:
        service.run(front, serving, status)
        return
    with stops(requests.stopping):
        if options.command == "predict":
            _predict(options, wanted, serving, status)
        else:
            _train(serving, status)
        for name in sorted(serving.finish()):
            log.warning("%s could not be told that all is done: start `efvfl serve` again when it is back.", name)


def _open(
    options: argparse.Namespace,
    config: RunConfig,
    holding: ParticipantData,
    folder: Path,
    stack: contextlib.ExitStack,
    hooks: Hooks,
) -> ServerProcess:
    """Take the folder for this process alone, and go on from what is in it."""
    if config.protect.on and config.private_seed is None:
        raise ConfigError("[protect] is on, but its noise would follow from the shared seed: set private_seed.")
    stack.callback(Lock(folder).release)
    network = config.network
    patience = ServerTimeouts(absent=network.absent_seconds, stale=network.stale_seconds)
    serving = ServerProcess(config, holding, folder, patience, hooks)
    if serving.workers:
        stack.push(serving.workers.leave)
    stack.callback(serving.message_log.close)
    if options.command != "serve":
        serving.requests.told.clear()  # who takes part in this is to be told when it is over
        if not serving.finished:
            raise ConfigError(f"training in {folder} is not finished: run `efvfl serve {options.file}` first.")
    return serving


def _standing(serving: ServerProcess, written: audit_log.AuditLog) -> dict[str, Any]:
    """Return what a status line tells."""
    server = serving.server
    codec = sum(channel.seconds for channel in server.channels.values())
    return {
        "step": server.step_number,
        "steps": serving.steps,
        "loss": server.surrogate_loss if math.isfinite(server.surrogate_loss) else None,
        "bytes_out": written.totals["out"],
        "bytes_in": written.totals["in"],
        "compute": serving.computing - codec,
        "codec": codec,
        "waiting": serving.requests.waited,
        "missing": serving.requests.presence.missing_for(),
    }


def _train(serving: ServerProcess, status: StatusLine) -> None:
    for record in serving.train():
        split, scores = ("validation", record.validation) if record.validation else ("test", record.test)
        parts = [f"loss on surrogates {record.surrogate_loss:.4f}"]
        parts += [f"{split} {name} {value:.4f}" for name, value in scores.items()]
        parts += [f"{sum(b - a + 1 for a, b in spans)} steps without {name}" for name, spans in record.absent.items()]
        status.say(f"epoch {record.epoch}: {', '.join(parts)}")
    found = {
        split: metrics.of_loss(serving.config.loss, o.output, o.labels)
        for split, o in load_outputs(serving.folder).items()
    }
    for split, values in found.items():
        status.say(f"{split}: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}", **{split: values})
    status.say(f"Trained. Records: {serving.folder / 'records.jsonl'}. A page about it: efvfl report {serving.folder}")


def _wanted(options: argparse.Namespace, holding: ParticipantData) -> list[str]:
    """Return the ids to predict, or say what is wrong before anybody is asked."""
    if (options.ids is None) == (options.split is None):
        raise ConfigError("give either --ids FILE, with one id a line, or --split validation or test.")
    if options.out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out {options.out} came, a name that ends in .csv or .parquet is expected.")
    if options.split:
        if options.split not in holding.ids:
            raise ConfigError(f"there are no {options.split} rows.")
        return holding.ids[options.split]
    try:
        ids = [line.strip() for line in options.ids.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"cannot read {options.ids}: {error}") from error
    if not ids:
        raise ConfigError(f"{options.ids} is empty, one id a line is expected.")
    return ids


def _predict(options: argparse.Namespace, ids: list[str], serving: ServerProcess, status: StatusLine) -> None:
    output = serving.predict_split(options.split) if options.split else serving.predict(serving.in_one_form(ids))
    write_predictions(options.out, ids, output, serving.config.loss, serving.holding.class_names)
    status.say(f"Predictions of {len(ids):,} rows: {options.out}")


def write_predictions(path: Path, ids: list[str], output: Tensor, loss: str, names: Sequence[str] = ()) -> None:
    """Write ids and what the network says of them; `names` are those of the classes."""
    with optional("tables", "a file of predictions"):
        import polars

    columns = said(output, loss, names)
    if "probabilities" in columns:  # one column for each class
        shares = list(zip(*columns.pop("probabilities"), strict=True))
        columns |= {f"probability_{name}": list(p) for name, p in zip(names or range(len(shares)), shares, strict=True)}
    buffer = io.BytesIO()
    frame = polars.DataFrame({"id": ids, **columns})
    frame.write_csv(buffer) if path.suffix == ".csv" else frame.write_parquet(buffer)
    write_atomically(path, buffer.getvalue())

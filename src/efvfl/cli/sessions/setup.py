"""What the processes of a federation do first: load the file, set up logging, open a port or prepare a connection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from efvfl.config import own_file, run_file, user_code
from efvfl.config.run_file import RunConfig
from efvfl.network.identity.certificates import Credentials
from efvfl.network.identity.renewal import Renewal
from efvfl.network.links.connecting import dial
from efvfl.network.links.dialling import Dial
from efvfl.network.links.listening import listen
from efvfl.network.links.requests import Requests
from efvfl.network.links.socket_bytes import SocketBytes
from efvfl.network.ops import private_seed, terminal_log
from efvfl.network.ops.audit_log import AuditLog
from efvfl.network.ops.lock import Lock
from efvfl.network.ops.open_files import raise_limit
from efvfl.network.ops.session import SessionOptions, handle_signals
from efvfl.network.ops.status import StatusLine
from efvfl.network.training import beginning, build, trained_folder
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.workers import worker_group
from efvfl.runs.trained import TrainedRun

if TYPE_CHECKING:
    from efvfl.network.ops.metrics import MetricsEndpoint

log = logging.getLogger("efvfl")


def start(
    options: SessionOptions, device: Literal["cpu", "cuda", "mps"] | None = None, single_process: str = ""
) -> RunConfig:
    """Load the participant's file and prepare this process for it.

    `single_process` names a command that torchrun must not start several times.
    """
    raise_limit()
    config, participant = own_file.open_run(options.file)
    if participant:
        config = private_seed.completed(config, participant, options.folder_of(participant.certified))
    if single_process:
        worker_group.refuse(single_process)
    if device:
        config = run_file.on_device(config, device)
    user_code.look_in(options.file.parent)
    terminal_log.start(options.log, options.status == "live")
    if config.threads:
        torch.set_num_threads(config.threads)
    return config


def lock(folder: Path, stack: ExitStack) -> None:
    """Take a participant's folder for this process alone, until the stack is closed."""
    stack.callback(Lock(folder).release)


def open_start(options: SessionOptions, name: str, folder: Path) -> TrainedRun | None:
    """Return the trained run that a participant's folder starts from; None if none is given, or it has started."""
    if options.start_from is None:
        return None
    if beginning.has_begun(folder):
        log.info("training in %s has begun and goes on: --from is not needed any more", folder)
        return None
    return trained_folder.open_trained(options.start_from, name)


def open_audit_log(folder: Path, stack: ExitStack) -> AuditLog:
    """Open the audit log in a folder; it is closed with the stack."""
    audit = AuditLog(folder)
    stack.callback(audit.close)
    return audit


def open_metrics(
    options: SessionOptions, state: Callable[[], dict[str, Any]], status: StatusLine, stack: ExitStack
) -> MetricsEndpoint | None:
    """Tell Prometheus what `state` returns, if the options say so; the port is closed with the stack."""
    if not options.metrics:
        return None
    from efvfl.network.ops.metrics import MetricsEndpoint  # late: it needs an extra

    endpoint = MetricsEndpoint(options.metrics, state)
    stack.callback(endpoint.close)
    status.say(f"Metrics at {endpoint.url}", metrics=endpoint.port)
    return endpoint


def make_dial(address: str, credentials: Credentials | None, limit: int, audit: AuditLog) -> Dial:
    """Return what connects to the server, with the certificate of that day; the audit log counts its bytes."""
    audit.watch(count := SocketBytes())
    renewal = Renewal(credentials) if credentials else None
    return lambda: dial(address, renewal.current() if renewal else None, limit, count)


def open_port(
    options: SessionOptions,
    config: RunConfig,
    credentials: Credentials | None,
    limit: int,
    requests: Requests,
    audit: AuditLog,
    stack: ExitStack,
) -> int:
    """Listen for parties and return the port; it is closed, and its last bytes are counted, with the stack."""
    address, denied = options.address_of(config), options.deny_list()
    listening, port = listen(address, credentials, limit, len(requests.names), requests.accept, denied)
    audit.watch(listening.count)
    stack.callback(audit.count)
    stack.callback(listening.close, 1.0)
    stack.callback(requests.close)
    return port


def listening_text(options: SessionOptions, config: RunConfig, port: int, requests: Requests) -> str:
    """Say where the server listens, and for whom."""
    host = options.address_of(config).rsplit(":", 1)[0]
    return f"Listening on {host}:{port} for {', '.join(requests.names)}."


def warn_without_private_seed(config: RunConfig, name: str = "") -> None:
    """Warn a participant whose initial parameters and noise follow from the seed that all know."""
    if (config.of(name) if name else config).private_seed is None:
        log.warning(
            "no private_seed is set for %s: its initial parameters and noise follow from the shared seed, which the "
            "others know. Set it in your own copy of the file, or write an own file (`efvfl init`), and start in an "
            "empty folder: a run that has begun keeps its parameters.",
            name or "the server",
        )


def work(config: RunConfig, data: ParticipantData, name: str) -> None:
    """Be a worker with a rank above 0 until rank 0 ends; signals are ignored, since rank 0 decides when to stop."""
    with handle_signals(lambda number, frame: None):
        build.build_worker(config, build.make_plan(config, data), data, name).work()

"""`efvfl serve-predictions`: predictions by id over HTTPS."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import (
    Commands,
    add_command,
    add_device,
    add_file,
    add_metrics,
    add_panel,
    add_session,
    leading_options,
)

if TYPE_CHECKING:
    from rich.console import Console


_ABOUT = """Predicts rows by id for clients, over HTTPS, until it is stopped. The parties run `efvfl join` meanwhile,
and clients show a token, or a certificate of the federation's authority."""


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    command = add_command(
        commands,
        "serve-predictions",
        "the label holder: predict rows by id for clients, over HTTPS",
        _ABOUT,
        "serve-predictions bank.toml",
        "serve-predictions bank.toml --listen 0.0.0.0:8443 --client-certs shop",
    )
    add_file(command)
    command.add_argument("--listen", default="127.0.0.1:8443", help="where clients ask (default: %(default)s)")
    command.add_argument("--token-file", type=Path, help="clients show what it holds (default: token in the folder)")
    command.add_argument("--client-certs", nargs="+", metavar="NAME", help="in place of a token: names of clients")
    command.add_argument("--tls-cert", type=Path, help="in place of the federation's server certificate")
    command.add_argument("--tls-key", type=Path, help="its key")
    command.add_argument("--timeout", type=float, default=10.0, help="seconds for a request (default: %(default)g)")
    command.add_argument(
        "--source",
        choices=("cached", "live"),
        default="cached",
        help="of representations: kept ones, or asked for each time (default: %(default)s)",
    )
    command.add_argument("--cache-rows", type=int, default=1_000_000, help="of every party (default: %(default)s)")
    command.add_argument("--warm", action="store_true", help="fetch all rows of the splits at the start")
    command.add_argument(
        "--fallback", choices=("mean",), default="", help="stands in for a missing party, if the model needs all"
    )
    add_panel(command)
    command.add_argument("--quota", type=int, default=100_000, help="ids a minute of a client (default: %(default)s)")
    command.add_argument(
        "--unknown-quota",
        type=int,
        default=1_000,
        help="ids an hour that parties lack, of a client (default: %(default)s)",
    )
    add_device(command)
    add_session(command)
    add_metrics(command)
    command.set_defaults(handler=_serve_predictions)


def _serve_predictions(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.sessions import serve, setup
    from efvfl.network.predict.batcher import ServiceSettings
    from efvfl.network.predict.service import ServiceOptions

    session = leading_options(options)
    config = setup.start(session, options.device, single_process="serve-predictions")
    service = ServiceOptions(
        listen=options.listen,
        certs=session.certs,
        insecure=options.insecure,
        token_file=options.token_file,
        client_names=frozenset(options.client_certs or ()),
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        denied=session.deny_list(),
        settings=ServiceSettings(
            options.timeout,
            options.source,
            options.cache_rows,
            options.warm,
            options.fallback,
            options.quota,
            options.unknown_quota,
            options.wait,
            tuple(options.require),
        ),
    )
    with contextlib.ExitStack() as stack:
        serve.serve_predictions(session, service, config, console, stack)

"""`efvfl attack`: what a curious party and the server make of what they are sent."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command, add_json, print_json

if TYPE_CHECKING:
    from rich.console import Console

_ATTACK = """Attacks a federation and says what was found: labels, by a party from what it is sent, and a party's
columns, by the server from what the party sends. A run file is trained in this process, with all that arrives at both
recorded, and nothing of it is kept; the active attack trains once more, and so does every defence. The folder of a run
is attacked from its files alone: models, and memories where there is error feedback. Nothing here proves a run safe."""


def register(commands: Commands) -> None:
    """Add the command of this file to the parser."""
    attack = add_command(
        commands,
        "attack",
        "what a curious party tells about labels, and the server about columns",
        _ATTACK,
        "attack run.toml",
        "attack run.toml --party host --defences max-norm marvell",
        "attack runs/run --attacks direction inverse --json",
    )
    attack.add_argument(
        "run", type=Path, metavar="RUN|FILE", help="a run file, or the folder of a finished `efvfl run`"
    )
    attack.add_argument(
        "--party",
        default="",
        help="that attacks labels, and whose columns are attacked (default: the first without labels)",
    )
    attack.add_argument("--attacks", nargs="+", default=[], metavar="NAME", help="those to try (default: all)")
    attack.add_argument(
        "--defences",
        nargs="+",
        default=[],
        metavar="NAME",
        help="also train with each: max-norm, marvell, unlike-columns, unlike-labels; none guarantees anything",
    )
    attack.add_argument(
        "--known", type=int, default=10, help="labels of each class that are known (default: %(default)s)"
    )
    attack.add_argument("--shadow", type=int, default=100, help="rows whose columns are known (default: %(default)s)")
    attack.add_argument("--seed", type=int, default=0, help="of the attackers (default: %(default)s)")
    attack.add_argument(
        "--base", type=Path, default=Path(), help="where paths in a folder's settings start (default: here)"
    )
    attack.add_argument("--picture", type=Path, metavar="PNG", help="also draw what was found")
    add_json(attack)
    attack.set_defaults(handler=_attack)


def _attack(options: argparse.Namespace, console: Console) -> None:
    from rich.console import Console

    from efvfl.errors import ConfigError
    from efvfl.network.workers import worker_group
    from efvfl.runs.attacks import catalogue, shown
    from efvfl.runs.attacks.bench import Attacker
    from efvfl.runs.attacks.of_run import attack_file, attack_folder

    worker_group.refuse("attack")
    kinds = catalogue.chosen(options.attacks)
    attacker = Attacker(options.party, options.known, options.shadow, options.seed)
    if options.run.is_dir():
        if options.defences:
            raise ConfigError("defences: expected none with a folder, which is not trained again: give the run file.")
        report = attack_folder(options.run, options.base, kinds, attacker)
    else:
        with Console(stderr=True).status("training") as status:
            report = attack_file(options.run, kinds, attacker, options.defences, lambda text: status.update(text))
    if options.picture:
        shown.draw(options.picture, report)
    if options.json:
        print_json(report.to_table())
        return
    shown.show(report, console)
    if options.picture:
        console.print(f"Picture: {options.picture}", soft_wrap=True, highlight=False)

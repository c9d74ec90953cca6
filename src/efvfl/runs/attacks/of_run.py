"""The bench on what people have: a run file, which is trained, or the folder of a run that `efvfl run` has left."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from efvfl.config import run_file, user_code
from efvfl.errors import ConfigError, nearest
from efvfl.runs.attacks import views
from efvfl.runs.attacks.bench import Attacked, Attacker, attack_saved, train_and_attack
from efvfl.runs.attacks.catalogue import AttackKind
from efvfl.runs.attacks.defences import DEFENCES, Defence
from efvfl.runs.build import load_data, make_federation, watching
from efvfl.runs.run import reopen
from efvfl.training.federation import Federation

AS_IT_IS = "as in the file"
Say = Callable[[str], None]


@dataclass(frozen=True)
class AttackReport:
    """What attacks found in one run or several, with other defences, and what each attacker knew."""

    source: str  # the file or folder
    attacker: Attacker
    kinds: Sequence[AttackKind]
    runs: Sequence[Attacked]

    def to_table(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "source": self.source,
            "attacker": asdict(self.attacker),
            "attacks": [asdict(kind) for kind in self.kinds],
            "runs": [run.to_table() for run in self.runs],
        }


def defence_of(name: str) -> Defence:
    """Return a defence by name."""
    if name not in DEFENCES:
        raise ConfigError(f"there is no defence {name!r}. {nearest(name, DEFENCES)}")
    return DEFENCES[name]


def attack_file(
    path: Path,
    kinds: Sequence[AttackKind],
    attacker: Attacker,
    defences: Sequence[str] = (),
    say: Say = lambda text: None,
) -> AttackReport:
    """Train what a run file says, in this process, and attack it; once more with each defence, in place of none.

    Nothing of the training is kept.
    """
    config = run_file.load(path)
    user_code.look_in(path.parent)
    if config.threads:
        torch.set_num_threads(config.threads)
    chosen: list[tuple[str, Defence | None]] = [(AS_IT_IS, None), *((name, defence_of(name)) for name in defences)]
    data = load_data(config, path.parent)

    def train(federation: Federation) -> None:
        for record in federation.train(config.epochs, watching(config).every, gradient=False):
            say(f"epoch {record.epoch} of {config.epochs}")

    runs = []
    for name, defence in chosen:
        say(name)
        runs.append(
            train_and_attack(
                lambda: make_federation(config, data),
                train,
                config.epochs,
                kinds,
                attacker,
                data.train.labels,
                defence,
                name,
            )
        )
    return AttackReport(str(path), attacker, kinds, runs)


def attack_folder(folder: Path, base: Path, kinds: Sequence[AttackKind], attacker: Attacker) -> AttackReport:
    """Attack a finished run from the files in its folder: models, and memories where there is error feedback.

    Its rows are loaded again, from paths relative to `base`, to measure what was found; nothing is trained again.
    """
    config, federation, load = reopen(folder, base)
    if config.threads:
        torch.set_num_threads(config.threads)
    initial = copy.deepcopy(views.party_of(federation, attacker.party).block.module)
    load()
    return AttackReport(str(folder), attacker, kinds, [attack_saved(federation, initial, kinds, attacker)])

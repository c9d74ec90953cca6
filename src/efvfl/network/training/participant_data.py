"""What one participant holds, from arrays or from tables, and what training in its folder began with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from efvfl.config.run_file import RunConfig
from efvfl.data import label_draws
from efvfl.data.npz import read
from efvfl.errors import ConfigError
from efvfl.network.align.alignments import Alignments
from efvfl.network.training import beginning
from efvfl.network.training.beginning import Beginning
from efvfl.network.training.holding import ParticipantData as ParticipantData
from efvfl.network.training.own_arrays import from_data_set, from_own_file
from efvfl.network.training.own_tables import ENCODER as ENCODER
from efvfl.network.training.own_tables import StartingPoint, from_tables, needs_list
from efvfl.runs.build import has_tables, load_data
from efvfl.runs.trained import TrainedRun


def party_names(config: RunConfig, folder: Path) -> list[str]:
    """Return the parties' names: those in the file, or those of the data."""
    if has_tables(config):
        return [p.name for p in config.party]
    return [p.name for p in config.party] if _has_own_files(config, folder) else load_data(config, folder).names


def _has_own_files(config: RunConfig, folder: Path) -> bool:
    """Whether each participant has a data file of its own; its copy of the run file may name that one alone."""
    if any(p.data for p in config.party):
        return True
    return bool(config.party and config.data.path) and not read(folder / config.data.path).columns


def load(
    config: RunConfig, folder: Path, name: str, home: Path | None = None, start: TrainedRun | None = None
) -> ParticipantData:
    """Return what a party holds, or the server ('').

    `home` is the participant's folder, where the lists of shared rows are. Training that has begun there goes on with
    what it began with; at its first step it takes the newest list, and starts from a trained run if one is given.
    """
    began = _begin(config, home, start)
    data = _load(config, folder, name, StartingPoint(home, began.alignment, bool(began.start), start))
    data = replace(data, began=began, start=start)
    return data if name else _randomised(config, data, home, start)


def _randomised(
    config: RunConfig, data: ParticipantData, home: Path | None, start: TrainedRun | None
) -> ParticipantData:
    """Return what the label holder has, with labels as others may know them where these are randomised."""
    if not config.protect.releases:
        return data
    check_sharing(config)
    earlier, loss = start.folder if start else None, config.loss or data.loss
    return replace(data, release=label_draws.of_folder(config, loss, data.labels, data.ids, home, earlier))


def check_sharing(config: RunConfig) -> None:
    """Refuse randomised labels that are shared, where parties would have the true ones themselves."""
    if config.agreement.labels == "shared" and not (has_tables(config) and config.data.align == "outer"):
        raise ConfigError(
            "protect.label_epsilon with shared labels needs tables and data.align = 'outer': then the list of rows "
            "tells the parties the randomised labels. Otherwise they have labels in files of their own."
        )


def _begin(config: RunConfig, home: Path | None, start: TrainedRun | None) -> Beginning:
    """Return what training began with, or decide it now and write it down."""
    if home and (found := beginning.load(home)):
        return found
    number = _newest(home, start) if home and needs_list(config) else 0
    began = Beginning(number, dict(start.identities) if start else {})
    if home and (began.identity() or (home / beginning.FILE).exists()):
        began.save(home)
    return began


def _newest(home: Path, start: TrainedRun | None) -> int:
    """Return the number of the newest list; a folder without any takes that of the run that it starts from."""
    own = Alignments(home)
    if start and not own.newest and (number := Alignments(start.folder).newest):
        own.save(number, Alignments(start.folder).load(number))
    return own.newest


def _load(config: RunConfig, folder: Path, name: str, start: StartingPoint) -> ParticipantData:
    party = name or config.label_holder
    for key, rows in (("subset", config.data.subset), ("held_out", config.data.held_out)):
        if rows and (has_tables(config) or _has_own_files(config, folder)):
            raise ConfigError(
                f"data.{key} = {rows} is set, but it would have no effect: each participant uses all rows of its own "
                "file. Leave it out."
            )
    if has_tables(config):
        return from_tables(config, folder, name, start)
    if _has_own_files(config, folder):
        return from_own_file(config, folder, name, party)
    return from_data_set(config, folder, name, party)

"""Where the draw of randomised labels comes from: kept in the label holder's folder, or repeated from a seed.

Over a network a label is drawn by the operating system, once: the draw is on the disk, by the rows' ids, before
anything follows from it. A row that is in the file has its label from there, in this run and in every later one in that
folder, so a restart, an alignment with more rows or a second training spend nothing more. In one process, where
everything follows from one seed, the draw does too, and is a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from efvfl.config.run_file import RunConfig
from efvfl.core import losses
from efvfl.core.label_mechanism import as_table
from efvfl.core.label_release import LabelRelease, Source, from_seed, from_system, mechanism_for
from efvfl.errors import CheckpointError, ConfigError, DataError
from efvfl.util import checkpoint
from efvfl.util.rng import derive

Known = dict[str, tuple[float, float]]  # by id: the label, and the one that is told

FILE: Final = "labels.safetensors"  # in the label holder's folder


def of_run(
    config: RunConfig, loss: str, truth: Mapping[str, Tensor], ids: Mapping[str, Sequence[str]]
) -> LabelRelease | None:
    """Return the labels that a run in one process learns from, drawn from its seed; None: as they are."""
    if not config.protect.releases:
        return None
    seed = config.seed if config.private_seed is None else config.private_seed
    source, names = from_seed(derive(seed, "server", "labels")), {split: ids[split] for split in truth} if ids else None
    return LabelRelease.draw(config.protect, loss, truth, source, names)


def of_rows(config: RunConfig, loss: str, labels: Tensor, ids: Sequence[str]) -> Tensor:
    """Return the labels by which rows are cut into splits, in one process."""
    release = of_run(config, loss, {"": labels}, {"": ids})
    return release.labels[""] if release else labels


def of_folder(
    config: RunConfig,
    loss: str,
    truth: Mapping[str, Tensor],
    ids: Mapping[str, Sequence[str]],
    home: Path | None,
    earlier: Path | None = None,
    source: Source = from_system,
) -> LabelRelease | None:
    """Return the labels that everything is computed from, by split, as the label holder's folder has them.

    Rows without a draw get one now. A folder without a file takes over that of an `earlier` run, from which it starts.
    None: labels are as they are.
    """
    if not config.protect.releases:
        return None
    if home is None:
        raise ConfigError("protect.label_epsilon needs the label holder's folder, where the draw is kept.")
    path, known = home / FILE, Known()
    chosen = losses.lookup(loss)
    for labels in truth.values():
        chosen.check(labels)
    classes = max((int(labels.max()) + 1 for labels in truth.values() if len(labels)), default=0)
    mechanism = mechanism_for(config.protect, chosen, classes)
    found = next((folder / FILE for folder in (home, earlier) if folder and (folder / FILE).exists()), None)
    if found:
        state = checkpoint.load(found)
        if state.get("mechanism") != as_table(mechanism):
            raise CheckpointError(
                f"the labels in {found} were randomised as {state.get('mechanism')}, and now it would be "
                f"{as_table(mechanism)}: restore protect.label_epsilon and the classes, or start in a new folder, "
                "which spends another epsilon."
            )
        known = _pairs(state["ids"], state["true"], state["told"])
    new = {split: [i for i, name in enumerate(ids[split]) if name not in known] for split in truth}
    for split, rows in new.items():
        part, names = truth[split][rows], [ids[split][i] for i in rows]
        drawn = mechanism.randomise(part, source(names)) if rows else part
        known |= _pairs(names, part, drawn)
    told = {split: _told(labels, ids[split], known, path) for split, labels in truth.items()}
    if found != path or any(new.values()):
        true, said = (torch.from_numpy(np.array([pair[place] for pair in known.values()])) for place in (0, 1))
        checkpoint.save(path, {"mechanism": as_table(mechanism), "ids": list(known), "true": true, "told": said})
    return LabelRelease(mechanism, told, dict(truth), source is not from_system, config.protect.label_correction)


def _pairs(ids: Sequence[str], true: Tensor, told: Tensor) -> Known:
    """Return labels by id; in double precision, which holds every dtype of labels exactly."""
    return dict(zip(ids, zip(true.tolist(), told.tolist(), strict=True), strict=True))


def _told(labels: Tensor, ids: Sequence[str], known: Known, path: Path) -> Tensor:
    """Return the labels of rows as they were told, or refuse if these had others when they were."""
    true, told = (torch.tensor([known[name][place] for name in ids], dtype=labels.dtype) for place in (0, 1))
    if changed := int((true != labels).sum()):
        raise DataError(
            f"{changed:,} of {len(ids):,} labels are not those that were randomised ({path}): restore the table, or "
            "start in a new folder, which spends another epsilon."
        )
    return told

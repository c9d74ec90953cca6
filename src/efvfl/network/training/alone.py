"""What the label holder of a network reaches with its own columns alone, trained once the parties know of the end."""

from __future__ import annotations

from dataclasses import replace

from efvfl.network.training.server_process import ServerProcess
from efvfl.runs.alone import LabelHolderRows, leave_alone, no_longer_than
from efvfl.runs.run_folder import ALONE


def train_alone(process: ServerProcess) -> None:
    """Leave the outputs in the folder, unless they are there already or this is stopped."""
    data, folder, stopping = process.data, process.folder, process.requests.stopping
    if (folder / ALONE).exists() or stopping.is_set():
        return
    splits = [split for split in ("train", "validation", "test") if split in data.labels]
    rows = LabelHolderRows(
        {split: data.columns[split] for split in splits},
        {split: data.true_targets(split) for split in splits},
        data.ids,
        data.classes,
        data.encoder,
    )

    def stop() -> bool:
        process.requests.hooks.on_tick()  # it is alive, whoever watches
        return stopping.is_set() or process.request.taken()

    config = replace(process.config, loss=process.plan.loss.name)
    leave_alone(folder, no_longer_than(process.records, config), rows, stop)

"""What a run in one process leaves in its folder, for reports, exports and later runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from efvfl.config.run_file import RunConfig
from efvfl.data import Dataset
from efvfl.runs import model_notes, party_worth, run_folder
from efvfl.runs.alone import LabelHolderRows
from efvfl.runs.build import column_seed
from efvfl.runs.column_worth import ColumnWorth
from efvfl.runs.model_notes import ModelNotes
from efvfl.runs.true_settings import true_settings
from efvfl.training.federation import Federation
from efvfl.util.files import write_atomically

ENCODERS: Final = "encoders"  # in a run's folder: how the columns of each party's table became numbers


def save_encoders(folder: Path, data: Dataset) -> None:
    """Write how columns became numbers, by party."""
    for name, encoder in data.encoders.items():
        write_atomically(folder / ENCODERS / f"{name}.json", encoder.to_json().encode())


def leave_for_report(federation: Federation, config: RunConfig, data: Dataset, folder: Path) -> None:
    """Write what a report of the run is made from."""
    outputs = {}
    for split, part in federation.splits.items():
        if split != "train":
            ids = data.ids.get(split) or [str(i) for i in range(len(part.labels))]
            outputs[split] = run_folder.Outputs(ids, part.labels, federation.held_out_output(split))
    if outputs:
        run_folder.save_outputs(folder, outputs)
    labels = {split: part.labels for split, part in federation.splits.items()}
    exact = {} if federation.server.evaluation else {s: federation.represent(s) for s in outputs}
    party_worth.leave_values(folder, federation.server, exact, labels)
    _leave_column_values(federation, config, data, folder)
    save_settings(federation, config, data, folder, complete=True)
    _save_models(federation, config, data, folder)
    run_folder.save_columns(folder, data.columns)
    save_encoders(folder, data)


def _leave_column_values(federation: Federation, config: RunConfig, data: Dataset, folder: Path) -> None:
    """Write which columns of tables matter, on validation rows, else on test rows."""
    labels = {split: part.labels for split, part in federation.splits.items()}
    split = party_worth.split_of(labels, labels)
    if not split or not data.encoders:
        return
    step = party_worth.step_of(len(labels[split]))
    name, metric = party_worth.main_metric(federation.server.loss, federation.scored_rows(split).every(step))
    places = {party: encoder.places for party, encoder in data.encoders.items()}
    seeds = {party: column_seed(config, party) for party in places}
    found = federation.column_values(places, split, metric, every=step, seeds=seeds)
    ColumnWorth(split, len(labels[split][::step]), name, found).save(folder)


def _save_models(federation: Federation, config: RunConfig, data: Dataset, folder: Path) -> None:
    """Write what `efvfl export` makes the models from, beside their parameters."""
    columns = zip(data.names, data.train.features, strict=True)
    head = model_notes.head_note(config, federation.server.plan, data.classes, data.class_names)
    ModelNotes({name: model_notes.local_note(config, name, x) for name, x in columns}, head).save(folder)


def save_settings(federation: Federation, config: RunConfig, data: Dataset, folder: Path, complete: bool) -> None:
    """Write the settings that were true for the run, and what reports say of its rows and sizes."""
    labels = {split: part.labels for split, part in federation.splits.items()}
    widths = {name: party.up.width[0] for name, party in federation.parties.items()}
    sizes = run_folder.Sizes(widths, federation.server.block.size(), labels, data.class_names)
    settings = true_settings(config, {split: len(part) for split, part in labels.items()}, network=False)
    run_folder.save_settings(folder, settings, sizes, data.participation, complete)


def own_rows(config: RunConfig, data: Dataset) -> LabelHolderRows:
    """Return what the label holder has itself."""
    place, name = data.names.index(config.label_holder), config.label_holder
    splits = {s: part for s in ("train", "validation", "test") if (part := getattr(data, s)) is not None}
    return LabelHolderRows(
        {split: part.features[place] for split, part in splits.items()},
        {split: part.targets for split, part in splits.items()},
        {split: data.ids.get(split) or [str(i) for i in range(len(part.labels))] for split, part in splits.items()},
        data.classes,
        data.encoders.get(name),
        data.sources[place] if data.sources else None,
    )

"""What splits and missing labels tell: stratified by randomised labels, and which rows have a label is no secret."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from efvfl.config.run_file import RunConfig, read
from efvfl.core.label_release import from_seed
from efvfl.data import label_draws
from efvfl.data.tables.load import cut_ids, join
from efvfl.data.tables.splits import split_seed
from efvfl.runs.build import load_data, make_federation
from efvfl.util.rng import derive

ROWS = 60


@pytest.fixture
def chosen(tmp_path: Path) -> RunConfig:
    ids = [f"p{i:02d}" for i in range(ROWS)]
    paid = ["yes" if i % 3 else "no" for i in range(ROWS)]
    columns = np.random.default_rng(0).normal(size=(ROWS, 2)).round(3)
    pl.DataFrame({"id": ids, "debt": columns[:, 0], "paid": [*paid[:-2], None, ""]}).write_csv(tmp_path / "bank.csv")
    pl.DataFrame({"id": ids, "calls": columns[:, 1]}).write_csv(tmp_path / "telco.csv")
    bank = {"name": "bank", "data": {"path": "bank.csv", "id": "id", "label": "paid"}}
    table = {
        "label_holder": "bank",
        "private_seed": 5,
        "data": {"stratify": True, "validation": 0.2, "test": 0.2},
        "protect": {"label_epsilon": 1.0},
        "class_weights": "balanced",
        "party": [bank, {"name": "telco", "data": {"path": "telco.csv", "id": "id"}}],
    }
    return read(RunConfig, table, "case")


def test_stratified_splits_follow_from_the_randomised_labels(chosen: RunConfig, tmp_path: Path) -> None:
    joined = join(chosen, tmp_path)
    ids = sorted(i for part in joined.ids.values() for i in part)
    truth = torch.tensor([int(int(name[1:]) % 3 > 0) for name in ids])
    release = label_draws.of_run(chosen, joined.classes.loss, {"": truth}, {"": ids})
    assert release
    assert joined.ids == cut_ids(ids, chosen.data, split_seed(chosen), release.labels[""])
    assert joined.ids != cut_ids(ids, chosen.data, split_seed(chosen), truth)
    assert joined.ids != join(replace(chosen, protect=replace(chosen.protect, label_epsilon=0.0)), tmp_path).ids


def test_weights_of_classes_follow_from_the_randomised_labels(chosen: RunConfig, tmp_path: Path) -> None:
    run = make_federation(chosen, load_data(chosen, tmp_path))
    told = run.server.labels
    weights = run.server.loss.each.weights  # type: ignore[union-attr]
    counts = torch.bincount(told.long(), minlength=2).double()
    assert torch.allclose(weights, len(told) / (2 * counts))
    assert not torch.equal(told, run.splits["train"].labels)
    seed = from_seed(derive(5, "server", "labels"))
    release = run.server.release
    assert release
    assert release.simulated
    assert (release.mechanism.randomise(release.truth["test"], seed(load_data(chosen, tmp_path).ids["test"]))).equal(
        release.labels["test"]
    )


def test_rows_without_a_label_are_left_out_and_everybody_can_see_that(chosen: RunConfig, tmp_path: Path) -> None:
    """docs/security.md lists it: the list of rows has no `p58` and `p59`, which are in both tables."""
    listed = {i for part in join(chosen, tmp_path).ids.values() for i in part}
    assert {f"p{i:02d}" for i in range(ROWS)} - listed == {"p58", "p59"}

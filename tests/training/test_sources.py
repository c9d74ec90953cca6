"""A party whose columns are a `Source` alone: the same bits as with a tensor, and never more than a batch at once."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
import torch
from problems import ROWS, classes, columns, everything, head, local_models, problem, same
from torch import Tensor, nn

from efvfl import (
    QSGD,
    Agreement,
    Federation,
    RowProtection,
    Setup,
    SharedLabels,
    TopK,
    Training,
    cvfl,
    efvfl,
    federate,
    svfl,
)
from efvfl.core.batches import Rows
from efvfl.core.source_columns import LOOKED_AT, SourceColumns
from efvfl.data.augment import QuadrantCrops, quadrants
from efvfl.errors import ConfigError
from efvfl.network.training import build
from efvfl.training.constants import problem_of


class Counted:
    """Rows of a tensor, and what was asked for."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.asked: list[tuple[int, int]] = []  # steps and how many rows

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, rows: Rows, step: int) -> Tensor:
        found = self.x[rows].clone()
        self.asked.append((step, len(found)))
        return found


CHOICES: dict[str, dict[str, Any]] = {
    "private": {"method": efvfl(TopK(0.2), down=QSGD(4))},
    "shared": {"method": efvfl(TopK(0.2)), "agreement": Agreement(SharedLabels(local_steps=2))},
    "all rows": {"method": efvfl(TopK(0.2)), "agreement": Agreement(reports="all")},
    "window": {"method": cvfl(TopK(0.2)), "agreement": Agreement(pipeline=3)},
    "full batch": {"method": svfl(), "batch_size": 0},
    "protected": {"method": efvfl(TopK(0.2)), "evaluation": "compressed"},
}


def pair(wrap: Callable[[Tensor], Any], **options: Any) -> Federation:
    """The problem with the second party's columns, of all splits, wrapped; the others give tensors."""
    x, later = columns(), columns(rows=20, seed=7)
    held = ({"party1": later[0], "party2": wrap(later[1]), "party3": later[2]}, classes(later))
    features = {"party1": x[0], "party2": wrap(x[1]), "party3": x[2]}
    return problem(features=features, labels=classes(x), validation=held, test=held, **{"batch_size": 16} | options)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_source_trains_as_its_tensor_does_bit_for_bit(choice: str) -> None:
    options = CHOICES[choice]
    if choice == "protected":
        options = options | {
            "protect_rows": {"party2": RowProtection(clip=1.0, noise=0.1, gradient_clip=1.0, gradient_noise=0.1)}
        }
    read, plain = pair(Counted, **options), pair(lambda x: x, **options)
    mine, expected = read.fit(3), plain.fit(3)
    assert same(everything(read), everything(plain))
    for one, other in zip(mine, expected, strict=True):
        assert replace(one, seconds=0.0) == replace(other, seconds=0.0)


def test_no_step_reads_more_than_its_batch_and_records_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efvfl.core.local_model.CHUNK", 10)
    source = Counted(columns()[1])
    x = columns()
    made = problem(efvfl(TopK(0.2)), features=[x[0], source, x[2]], batch_size=16)
    made.fit(2)
    steps = [(step, rows) for step, rows in source.asked if step >= 0]
    assert steps == [(step, made.server.batches.count(step)) for step in range(8)]
    looked_at = [rows for step, rows in source.asked if step == LOOKED_AT]
    assert sum(looked_at) >= 2 * ROWS
    assert max(looked_at) == 10


class Drifting(Counted):
    """Rows that depend on the step, but as they are looked at."""

    def batch(self, rows: Rows, step: int) -> Tensor:
        return super().batch(rows, step) + 0.01 * (step + 1)


def test_the_step_is_told_and_rows_that_are_looked_at_have_none() -> None:
    x = columns()
    one = problem(efvfl(TopK(0.2)), features=[x[0], Drifting(x[1]), x[2]], batch_size=16)
    beside = problem(
        efvfl(TopK(0.2)), features=x, sources=[Counted(x[0]), Drifting(x[1]), Counted(x[2])], batch_size=16
    )
    assert [r.train for r in one.fit(2)] == [r.train for r in beside.fit(2)]
    assert same(everything(one), everything(beside))
    new = columns(rows=4, seed=9)
    assert torch.equal(one.predict([new[0], Drifting(new[1]), new[2]]), one.predict(new))


def test_a_saved_state_goes_on_with_a_source() -> None:
    whole, first, second = (pair(Counted, **CHOICES["private"]) for _ in range(3))
    whole.fit(4)
    for _ in range(6):
        first.step()
    second.load_state_dict(first.state_dict())
    second.fit(4)
    assert same(everything(whole), everything(second))


def test_what_looks_at_all_rows_reads_them_too() -> None:
    options = {"method": efvfl(TopK(0.2)), "agreement": Agreement(subsets="sampled")}
    read, plain = pair(Counted, **options), pair(lambda x: x, **options)
    for made in (read, plain):
        made.fit(2)
    assert read.party_values().values == plain.party_values().values
    assert read.column_values() == plain.column_values()
    assert problem_of(read) == problem_of(plain)


def test_a_source_beside_a_party_that_lacks_rows() -> None:
    x = columns()
    x[0][::4] = torch.nan
    made = [problem(efvfl(TopK(0.2)), features=[x[0], second, x[2]], batch_size=16) for second in (Counted(x[1]), x[1])]
    for one in made:
        one.fit(2)
    assert same(*map(everything, made))
    present = torch.ones(ROWS, dtype=torch.bool)
    present[3] = False
    with pytest.raises(ConfigError, match="expected all rows of a party that gives a source, got some missing"):
        problem(features=[x[1][:, :0], Counted(x[1]), x[2]], present={"party2": present})


class Broken(Counted):
    """Returns something else at a step."""

    def __init__(self, x: Tensor, step: int, change: Callable[[Tensor], Any]) -> None:
        super().__init__(x)
        self.step = step
        self.change = change

    def batch(self, rows: Rows, step: int) -> Any:
        found = super().batch(rows, step)
        return self.change(found) if step == self.step else found


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda x: x[1:], r"at step 2: expected 16 rows from the source, got a tensor of shape \(15, 3\)"),
        (
            lambda x: x[:, 1:],
            r"expected torch.float64 of shape \(16, 3\) from the source, as its first row is, got .* of \(16, 2\)",
        ),
        (lambda x: x.float(), "expected torch.float64 of shape .* from the source, .* got torch.float32"),
        (lambda x: x * torch.inf, "at step 2 hold NaN or infinity"),
        (lambda x: x.numpy(), "expected a tensor of rows from the source, got an instance of ndarray"),
        (lambda x: x.sum(), "expected a tensor of rows from the source"),
    ],
)
def test_what_a_source_returns_is_checked_at_every_step(change: Callable[[Tensor], Any], error: str) -> None:
    x = columns()
    made = problem(features=[x[0], Broken(x[1], 2, change), x[2]], batch_size=16)
    with pytest.raises(ConfigError, match=r"the columns of 'party2'.* " + error):
        made.fit(1, gradient=False)


def test_wrong_lengths_dtypes_and_forms_are_refused_before_the_first_step() -> None:
    x, later = columns(), columns(rows=20, seed=7)
    with pytest.raises(ConfigError, match="'party2' holds 59 training rows, but there are 60 labels"):
        problem(features=[x[0], Counted(x[1][1:]), x[2]])
    with pytest.raises(ConfigError, match=r"validation columns of 'party2': expected torch.float64 of shape .*float32"):
        problem(validation=([later[0], Counted(later[1].float()), later[2]], classes(later)))
    with pytest.raises(ConfigError, match=r"Columns are torch.float32, the model is torch.float64"):
        problem(features=[x[0], Counted(x[1].float()), x[2]])
    with pytest.raises(ConfigError, match="expected a table for each party"):
        problem(features=Counted(x[1]))
    with pytest.raises(ConfigError, match="expected a tensor of rows from the source"):
        problem(features=[x[0], Broken(x[1], LOOKED_AT, lambda found: found.tolist()), x[2]])


class Mapped:
    """Rows of a file of numbers."""

    def __init__(self, path: Path, columns: int) -> None:
        self.rows = np.memmap(path, np.float32, "r").reshape(-1, columns)

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Rows, step: int) -> Tensor:
        return torch.tensor(self.rows[rows if isinstance(rows, slice) else rows.numpy()])


class Selected:
    """Rows of a table in a database."""

    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(path)
        (self.rows,) = self.database.execute("select count(*) from rows").fetchone()

    def __len__(self) -> int:
        return int(self.rows)

    def batch(self, rows: Rows, step: int) -> Tensor:
        wanted = torch.arange(self.rows)[rows].tolist()
        marks = ",".join("?" * len(wanted))
        found = self.database.execute(f"select * from rows where id in ({marks})", wanted)
        by_id = {row[0]: row[1:] for row in found}
        return torch.tensor([by_id[row] for row in wanted])


def test_files_and_databases(tmp_path: Path) -> None:
    x = columns(torch.float32)
    x[0].numpy().tofile(tmp_path / "rows.bin")
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("create table rows (id integer primary key, a real, b real, c real)")
        database.executemany("insert into rows values (?, ?, ?, ?)", [(i, *row) for i, row in enumerate(x[1].tolist())])
    read = [Mapped(tmp_path / "rows.bin", 5), Selected(tmp_path / "rows.db"), x[2]]
    runs = [
        federate(
            given,
            classes(x),
            local_models(torch.float32),
            head(dtype=torch.float32),
            method=efvfl(TopK(0.2)),
            training=Training(batch_size=16),
        )
        for given in (read, x)
    ]
    assert [r.train for r in runs[0].fit(2)] == [r.train for r in runs[1].fit(2)]
    assert same(*map(everything, runs))


def test_augmented_images_alone_are_looked_at_as_they_are() -> None:
    images = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    table = torch.arange(256.0).unsqueeze(0) / 255
    crops = [QuadrantCrops(images, table, place, key=5) for place in range(4)]
    for source, plain in zip(crops, quadrants(images, table), strict=True):
        found = SourceColumns(source, "images")
        assert torch.equal(found[:], plain)
        assert not torch.equal(found.batch(slice(None), 0), plain)


def test_a_device_is_where_its_rows_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efvfl.training.placement.find", lambda name: torch.device("cpu"))
    moved, plain = (pair(Counted, device=device) for device in ({"party2": "cuda"}, "cpu"))
    assert "forward" in vars(moved.models[1])
    assert [r.train for r in moved.fit(2)] == [r.train for r in plain.fit(2)]


PARTY = "top-right"


@pytest.mark.parametrize("changes", [{}, {"patience": 9, "agreement": {"labels": "shared"}}])
def test_over_a_network_a_party_reads_its_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    config = networks.config(**changes)
    expected, ready = networks.reference(config), networks.ready
    sources: list[Counted] = []

    def reading(given: Any, name: str, **more: Any) -> networks.Ready:
        state = torch.get_rng_state()
        made = ready(given, name, **more)
        if name != PARTY:
            return made
        own = {split: Counted(x[:]) for split, x in made.holding.columns.items()}
        sources.extend(own.values())
        holding = made.holding.reading(own)
        torch.set_rng_state(state)
        party = build.build_party(made.config, build.make_plan(made.config, holding), holding, name)
        return replace(made, holding=holding, party=party)

    monkeypatch.setattr(networks, "ready", reading)
    networks.assert_same(networks.networked(config, tmp_path), expected)
    asked = [found for source in sources for found in source.asked]
    assert max(rows for step, rows in asked if step >= 0) == 48


def test_a_source_over_a_network_has_the_rows_that_are_held() -> None:
    made = networks.ready(networks.config(), PARTY)
    rows = len(made.holding.ids["train"])
    with pytest.raises(
        ConfigError, match=rf"source of 'train': expected as many rows as are held here, .*{rows}.*got 3"
    ):
        made.holding.reading({"train": Counted(torch.ones(3, 16))})


def test_a_model_that_normalises_and_the_setup_work_alike() -> None:
    def normed(second: Any) -> Federation:
        x = columns()
        models = [*local_models()[:1], nn.Sequential(nn.BatchNorm1d(3).double(), local_models()[1]), local_models()[2]]
        setup = Setup(wire=True)
        return federate([x[0], second, x[2]], classes(x), models, head(), training=Training(batch_size=16), setup=setup)

    runs = normed(Counted(columns()[1])), normed(columns()[1])
    assert [r.train for r in runs[0].fit(2)] == [r.train for r in runs[1].fit(2)]

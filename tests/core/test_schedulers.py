"""Warm-ups: schedulers after each other, by epoch or by step, in Python and in files, alike at both ends."""

from pathlib import Path
from typing import Any

import pytest
import torch
from problems import everything, problem, same

from efvfl import Agreement, Federation, Optimizer, SharedLabels, TopK, efvfl
from efvfl.config import user_code
from efvfl.config.run_file import RunConfig
from efvfl.errors import ConfigError
from efvfl.experiments.experiment_file import Job
from efvfl.experiments.shorter import with_epochs
from efvfl.runs.build import make_optimizer

WARM = {
    "schedulers": [
        {"name": "LinearLR", "start_factor": 0.25, "total_iters": 3},
        {"name": "CosineAnnealingLR", "T_max": 5},
    ],
    "milestones": [3],
}
FILE = {"name": "SGD", "lr": 0.5, "scheduler": {"name": "SequentialLR", "every": "step", **WARM}}


def by_torch(count: int) -> list[float]:
    """The rates as torch itself gives them."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    parts: list[Any] = [
        torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5),
    ]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])
    rates = []
    for _ in range(count):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


def made(every: str, agreement: Agreement | None = None) -> Federation:
    optimizer = Optimizer("SGD", {"lr": 0.5}, "SequentialLR", WARM, scheduler_every=every)  # type: ignore[arg-type]
    return problem(efvfl(TopK(0.5)), batch_size=16, optimizer=optimizer, agreement=agreement or Agreement())


def rates(federation: Federation, steps: int) -> list[list[float]]:
    found = []
    for _ in range(steps):
        blocks = [federation.server.block, *(party.block for party in federation.parties.values())]
        found.append([block.rate for block in blocks])
        federation.step(hold=True)
    return found


def test_a_warm_up_by_step_is_that_of_torch_at_all_participants() -> None:
    expected = by_torch(7)
    assert expected[0] == 0.125
    assert expected[3] == 0.5
    assert rates(made("step"), 7) == [[rate] * 4 for rate in expected]


def test_by_epoch_every_step_of_an_epoch_has_its_rate() -> None:
    assert rates(made("epoch"), 9) == [[rate] * 4 for rate in [r for r in by_torch(3) for _ in range(4)][:9]]


@pytest.mark.parametrize("every", ["epoch", "step"])
def test_going_on_in_the_middle_of_a_warm_up_equals_not_stopping(every: str) -> None:
    whole, stopped, resumed = (made(every, Agreement(SharedLabels(fusion="replicate"))) for _ in range(3))
    whole.fit(3)
    for _ in range(6):
        stopped.step()
    resumed.load_state_dict(stopped.state_dict())
    resumed.fit(3)
    assert same(everything(whole), everything(resumed))


def test_a_party_that_skips_steps_skips_their_rates() -> None:
    one, other = made("step").server.block, made("step").server.block
    for step in range(2, 6):
        one.end_step(step)
    other.end_steps(range(2, 6))
    assert one.rate == other.rate == by_torch(5)[4]


def test_a_file_says_the_same(tmp_path: Path) -> None:
    expected = Optimizer("SGD", {"lr": 0.5}, "SequentialLR", WARM, scheduler_every="step")
    assert make_optimizer(FILE) == expected
    short = with_epochs(RunConfig(epochs=100, optimizer=FILE), 200).optimizer["scheduler"]
    assert short["milestones"] == [6]
    assert [part.get("T_max", part.get("total_iters")) for part in short["schedulers"]] == [6, 10]
    (tmp_path / "rate_of_mine.py").write_text("def rate(count):\n    return 1 / (1 + count)\n")
    user_code.look_in(tmp_path)
    table = {"name": "SGD", "lr": 0.5, "scheduler": {"name": "LambdaLR", "lr_lambda": "rate_of_mine:rate"}}
    federation = problem(optimizer=make_optimizer(table))
    assert [row[0] for row in rates(federation, 3)] == [0.5, 0.25, 0.5 / 3]
    job = Job("a", RunConfig(optimizer=table), tmp_path)
    before = job.key
    (tmp_path / "rate_of_mine.py").write_text("def rate(count):\n    return 1 / (2 + count)\n")
    assert job.key != before
    with pytest.raises(ConfigError, match="cannot import the scheduler's function 'rate_of_mine:other'"):
        make_optimizer({**table, "scheduler": {"name": "LambdaLR", "lr_lambda": "rate_of_mine:other"}})
    with pytest.raises(ConfigError, match=r"expected 'package.module:function', got '1 / t'"):
        make_optimizer({**table, "scheduler": {"name": "LambdaLR", "lr_lambda": "1 / t"}})


@pytest.mark.parametrize(
    ("scheduler", "error"),
    [
        ({"name": "SequentialLR"}, "scheduler.schedulers: expected tables with a name"),
        ({"name": "SequentialLR", "schedulers": [{"T_max": 3}], "milestones": []}, "expected tables with a name"),
        ({"name": "SequentialLR", "schedulers": [{"name": "LineerLR"}], "milestones": []}, "Did you mean 'LinearLR'"),
        ({"name": "SequentialLR", "schedulers": [{"name": "ReduceLROnPlateau"}]}, "use it alone"),
        ({"name": "LinearLR", "every": "batch"}, "scheduler.every: got 'batch'. Known: epoch, step"),
        ({"name": "ReduceLROnPlateau", "every": "step"}, "leave `every` out"),
    ],
)
def test_a_mistake_is_named(scheduler: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        make_optimizer({"name": "SGD", "lr": 0.5, "scheduler": scheduler})


def test_options_that_a_part_does_not_take_are_refused_before_the_first_step() -> None:
    wrong = {"schedulers": [{"name": "LinearLR", "total": 3}], "milestones": []}
    with pytest.raises(ConfigError, match="scheduler SequentialLR does not take"):
        problem(optimizer=Optimizer("SGD", {"lr": 0.5}, "SequentialLR", wrong))

"""Parties that train their block in their own way (Flex-VFL) against plain loops."""

from pathlib import Path
from typing import Any

import networks
import pytest
import torch
from examples import asynchronous_on_one_page
from examples.asynchronous_on_one_page import Setting
from oracle_runs import LR, schedule, topk, trained
from problems import Labels, classes, close, columns, head, local_models, problem
from torch import nn
from torch.nn.functional import cross_entropy

from efvfl import Agreement, Optimizer, PartyTraining, Quorum, SharedLabels, TopK, Training, efvfl
from efvfl.errors import ConfigError

OWN = {"party1": PartyTraining(local_steps=4), "party3": PartyTraining(local_steps=2)}


def plain(arrivals: list[list[int]], turns: list[int]) -> list[torch.Tensor]:
    x, models, top = columns(), local_models(), head()
    setting = Setting(topk(0.2), False, LR, local_steps=turns)
    batches = schedule(16, len(arrivals))
    asynchronous_on_one_page.asynchronous(x, classes(x), models, top, batches, arrivals, setting)
    return [p.detach() for p in nn.ModuleList([top, *models]).parameters()]


@pytest.mark.parametrize("fusion", ["send", "replicate"])
@pytest.mark.parametrize("downlink", ["relay", "aggregate"])
def test_every_party_has_its_own_number_of_local_updates(downlink: Any, fusion: Any) -> None:
    labels = SharedLabels(downlink, fusion, local_steps=3)
    federation = problem(efvfl(TopK(0.2)), agreement=Agreement(labels), batch_size=16, parties=OWN)
    assert close(trained(federation, 12), plain([[0, 1, 2]] * 12, [3, 4, 3, 2]))


def test_a_slow_party_may_update_more_often() -> None:
    agreement = Agreement(SharedLabels("aggregate"), asynchronous=Quorum(2))
    speeds = {"party1": 4.0}
    federation = problem(efvfl(TopK(0.2)), agreement=agreement, batch_size=16, parties=OWN, report_seconds=speeds)
    mine = trained(federation, 20)
    arrivals = [[int(name[-1]) - 1 for name in names] for names in federation.arrivals]
    assert min(map(len, arrivals)) == 2
    assert close(mine, plain(arrivals, [1, 4, 1, 2]))


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_every_party_has_its_own_optimiser(labels: Labels) -> None:
    """Nothing is compressed, so that it equals one network with an optimiser for each block."""
    x, models, top = columns(), local_models(), head()
    y = classes(x)
    own = {
        "party1": PartyTraining(Optimizer("Adam", {"lr": 0.01}, "StepLR", {"step_size": 1, "gamma": 0.5})),
        "party3": PartyTraining(Optimizer("SGD", {"lr": 0.1, "momentum": 0.9})),
    }
    optimizers = [
        torch.optim.SGD(top.parameters(), lr=LR),
        torch.optim.Adam(models[0].parameters(), lr=0.01),
        torch.optim.SGD(models[1].parameters(), lr=LR),
        torch.optim.SGD(models[2].parameters(), lr=0.1, momentum=0.9),
    ]
    plan = torch.optim.lr_scheduler.StepLR(optimizers[1], step_size=1, gamma=0.5)
    for step, rows in enumerate(schedule(20, 9)):
        mean = torch.stack([m(v[rows]) for m, v in zip(models, x, strict=True)]).mean(0)
        for optimizer in optimizers:
            optimizer.zero_grad()
        cross_entropy(top(mean), y[rows]).backward()
        for optimizer in optimizers:
            optimizer.step()
        if (step + 1) % 3 == 0:
            plan.step()
    federation = problem(agreement=Agreement(labels), batch_size=20, parties=own)
    expected = [p.detach() for p in nn.ModuleList([top, *models]).parameters()]
    assert close(trained(federation, 9), expected, 1e-9)


def test_in_a_file_and_over_a_network_it_is_the_same(tmp_path: Path) -> None:
    own = [
        {"name": "top-left", "training": {"local_steps": 3}},
        {"name": "bottom-right", "training": {"optimizer": {"name": "Adam", "lr": 0.02}}},
    ]
    changed = networks.config(agreement={"labels": "shared", "local_steps": 2}, party=own)
    made = networks.federation(changed)
    assert [party.local_steps for party in made.parties.values()] == [3, 2, 2, 2]
    kinds = [type(party.block.optimizer).__name__ for party in made.parties.values()]
    assert kinds == ["SGD", "SGD", "SGD", "Adam"]
    networks.assert_same(networks.reference(changed), networks.networked(changed, tmp_path))


def test_what_is_no_training_of_a_party_is_refused() -> None:
    with pytest.raises(ConfigError, match="parties: expected names of the parties"):
        problem(parties={"nobody": PartyTraining()})
    with pytest.raises(ConfigError, match="another scheduler than ReduceLROnPlateau"):
        PartyTraining(Optimizer(scheduler="ReduceLROnPlateau"))
    with pytest.raises(ConfigError, match="expected an Optimizer, got 'Adam'"):
        PartyTraining("Adam")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"parties: expected PartyTraining\(\.\.\.\) for 'a', got 3"):
        Training(parties={"a": 3})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"training.local_steps of a party does not go with private labels"):
        problem(parties={"party1": PartyTraining(local_steps=2)})

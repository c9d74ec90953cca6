"""The whole against something that cannot share its bugs: central SGD, and the algorithms in plain loops."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from oracle_runs import LR, schedule, topk, trained
from problems import Labels, classes, close, columns, copies, head, local_models, problem
from reference import Setting, central_sgd, vertical

from efvfl import Agreement, Method, Optimizer, SharedLabels, TopK, cvfl, efvfl, svfl
from efvfl.config.run_file import AgreementConfig
from efvfl.core.agreement import FusionUpdates

COMBINES = ["mean", "sum", "concat"]


@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("labels", ["private", "shared"])
def test_without_compression_it_is_central_sgd(labels: Labels, combine: str, size: int) -> None:
    x = columns()
    expected = central_sgd(x, classes(x), local_models(), head(combine), combine, schedule(size, 12), LR)
    federation = problem(combine=combine, agreement=Agreement(labels=labels), batch_size=size)
    assert close(trained(federation, 12), expected)


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_error_feedback_of_the_identity_is_central_sgd_too(labels: Labels) -> None:
    from efvfl import Identity

    x = columns()
    expected = central_sgd(x, classes(x), local_models(), head(), "mean", schedule(16, 12), LR)
    method = efvfl(Identity(), down=Identity(), fusion=Identity())
    agreement = AgreementConfig(labels=labels, fusion="compress" if labels == "shared" else "send").build()
    assert close(trained(problem(method, agreement=agreement, batch_size=16), 12), expected)


MODES: list[tuple[Labels, int]] = [("private", 1), ("shared", 1), ("shared", 3)]


# Half of the product, in which every three of the four still meet.
@pytest.mark.parametrize(
    ("labels", "local_steps", "feedback", "combine", "all_rows"),
    [
        (*MODES[mode], feedback, COMBINES[combine], all_rows)
        for mode, feedback, combine, all_rows in product(range(3), (True, False), range(3), (False, True))
        if (mode + feedback + combine + all_rows) % 2
    ],
)
def test_compressed_runs_equal_the_plain_algorithm(
    labels: Labels, feedback: bool, local_steps: int, combine: str, all_rows: bool
) -> None:
    x = columns()
    setting = Setting(topk(0.2), feedback, labels == "private", LR, combine, local_steps, all_rows)
    expected = vertical(x, classes(x), local_models(), head(combine), schedule(16, 10), setting)
    method: Method = efvfl(TopK(0.2)) if feedback else cvfl(TopK(0.2))
    agreement = AgreementConfig(labels=labels, local_steps=local_steps, reports="all" if all_rows else "batch").build()
    federation = problem(method, combine=combine, agreement=agreement, batch_size=16)
    assert close(trained(federation, 10), expected)


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("labels", ["private", "shared"])
def test_compressing_the_other_direction_equals_the_plain_algorithm(labels: Labels, feedback: bool) -> None:
    """Cotangents with private labels, the fusion model with shared ones; the server itself keeps its exact x0."""
    x, private = columns(), labels == "private"
    other: dict[str, Any] = {"down": TopK(0.3)} if private else {"fusion": TopK(0.4)}
    setting = Setting(topk(0.2), feedback, private, LR)
    setting = replace(setting, compress_down=topk(0.3)) if private else replace(setting, compress_fusion=topk(0.4))
    expected = vertical(x, classes(x), local_models(), head(), schedule(16, 10), setting)
    method = (efvfl if feedback else cvfl)(TopK(0.2), **other)
    agreement = AgreementConfig(labels=labels, fusion="send" if private else "compress").build()
    assert close(trained(problem(method, agreement=agreement, batch_size=16), 10), expected)


@pytest.mark.parametrize("downlink", ["relay", "aggregate"])
@pytest.mark.parametrize(("window", "size", "local_steps"), [(2, 16, 1), (4, 16, 2), (4, 0, 1)])
def test_windows_with_replicas_equal_the_plain_algorithm(
    window: int, size: int, local_steps: int, downlink: Any
) -> None:
    x = columns()
    setting = Setting(topk(0.2), True, False, LR, "mean", local_steps, window=window)
    expected = vertical(x, classes(x), local_models(), head(), schedule(size, 14), setting)
    labels = SharedLabels(downlink=downlink, fusion="replicate", local_steps=local_steps, digest_every=1)
    federation = problem(efvfl(TopK(0.2)), agreement=Agreement(labels, pipeline=window), batch_size=size)
    assert close(trained(federation, 14), expected)


@pytest.mark.parametrize("fusion", ["send", "replicate", "compress"])
@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("method", [efvfl(TopK(0.2), fusion=TopK(0.5)), cvfl(TopK(0.2), fusion=TopK(0.5))])
def test_relay_equals_aggregate(method: Method, combine: str, fusion: FusionUpdates) -> None:
    runs = []
    for downlink in ("relay", "aggregate"):
        agreement = Agreement(SharedLabels(downlink=downlink, fusion=fusion, local_steps=2))
        federation = problem(method, combine=combine, agreement=agreement, batch_size=16)
        runs.append(trained(federation, 10))  # two and a half epochs
    assert close(runs[0], runs[1])


def test_aggregate_refuses_concatenation() -> None:
    with pytest.raises(ValueError, match=r"aggregate' does not go with combine = 'concat'.* combine = 'sum' or 'mean'"):
        problem(combine="concat", agreement=Agreement(SharedLabels(downlink="aggregate")))


def test_several_local_updates_with_private_labels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"local_steps does not go with private labels.*set labels = 'shared'"):
        AgreementConfig(labels="private", local_steps=2).build()


def test_a_label_holder_with_features_equals_central_sgd_and_sends_nothing() -> None:
    x = columns()
    named = dict(zip(("bank", "telco", "shop"), x, strict=True))
    expected = central_sgd(x, classes(x), local_models(), head(), "mean", schedule(16, 12), LR)
    federation = problem(svfl(), features=named, label_holder="bank", batch_size=16)
    assert close(trained(federation, 12), expected)
    assert {party for _, party, _ in federation.ledger.bytes} == {"telco", "shop"}


def test_the_label_holders_own_representation_is_exact_with_private_labels() -> None:
    named = dict(zip(("bank", "telco", "shop"), columns(), strict=True))
    federation = problem(efvfl(TopK(0.1)), features=named, label_holder="bank", batch_size=16)
    assert federation.parties["bank"].up.compressor.name == "identity"
    assert federation.parties["telco"].up.compressor.name == "topk"
    shared = problem(
        efvfl(TopK(0.1)), features=named, label_holder="bank", agreement=Agreement(labels="shared"), batch_size=16
    )
    assert shared.parties["bank"].up.compressor.name == "topk"
    shared.step(hold=True)
    assert all(party != "bank" for _, party, _ in shared.ledger.bytes)
    relayed = shared.parties["telco"].label_mode.peers["bank"].memory.g  # type: ignore[attr-defined]
    assert relayed.any()
    assert torch.equal(relayed, shared.parties["bank"].up.memory.g)


@pytest.mark.parametrize("labels", ["private", "shared"])
@pytest.mark.parametrize(
    ("name", "options", "scheduler", "scheduler_options"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, "", {}),
        ("Adam", {"lr": 0.01}, "StepLR", {"step_size": 1, "gamma": 0.5}),
        ("AdamW", {"lr": 0.01}, "CosineAnnealingLR", {"T_max": 3, "eta_min": 1e-4}),
    ],
)
def test_any_optimiser_and_scheduler_equals_the_same_one_in_one_place(
    labels: Labels, name: str, options: dict[str, Any], scheduler: str, scheduler_options: dict[str, Any]
) -> None:
    """Coordinate-wise optimisers do not care how parameters are cut into blocks."""
    x, models, top = columns(), local_models(), head()
    y = classes(x)
    network = torch.nn.ModuleList([top, *models])
    optimizer = getattr(torch.optim, name)(network.parameters(), **options)
    plan = getattr(torch.optim.lr_scheduler, scheduler)(optimizer, **scheduler_options) if scheduler else None
    for step, rows in enumerate(schedule(20, 9)):
        optimizer.zero_grad()
        mean = torch.stack([m(v[rows]) for m, v in zip(models, x, strict=True)]).mean(0)
        torch.nn.functional.cross_entropy(top(mean), y[rows]).backward()
        optimizer.step()
        if plan and (step + 1) % 3 == 0:
            plan.step()
    federation = problem(
        models=local_models(),
        head=head(),
        optimizer=Optimizer(name, options, scheduler, scheduler_options),
        agreement=Agreement(labels=labels),
        batch_size=20,
    )
    assert close(trained(federation, 9), [p.detach() for p in network.parameters()], 1e-9)


@pytest.mark.parametrize("labels", ["private", "shared"])
@pytest.mark.parametrize(("loss", "outputs"), [("binary_cross_entropy", 1), ("mse", 1), ("huber", 1)])
def test_binary_and_regression_losses_equal_central_sgd(labels: Labels, loss: str, outputs: int) -> None:
    from efvfl.core.losses import LOSSES

    x, models = columns(), local_models()
    target = classes(x).clamp(max=1) if loss == "binary_cross_entropy" else x[0][:, 0] + x[1][:, 0]
    torch.manual_seed(5)
    top = torch.nn.Linear(4, outputs).double()
    federation = problem(
        labels=target, models=copies(models), head=copies([top])[0], loss=loss, agreement=Agreement(labels=labels)
    )
    optimizer = torch.optim.SGD([*top.parameters(), *(p for m in models for p in m.parameters())], lr=LR)
    for _ in range(10):
        optimizer.zero_grad()
        LOSSES[loss](top(torch.stack([m(v) for m, v in zip(models, x, strict=True)]).mean(0)), target).backward()
        optimizer.step()
    expected = [p.detach() for p in torch.nn.ModuleList([top, *models]).parameters()]
    assert close(trained(federation, 10), expected)

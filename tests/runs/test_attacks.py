"""Attacks succeed where nothing is protected, and find nothing where there is nothing to find."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from attacked import BATCH, EPOCHS, KNOWS, ROWS, WIDTH, federation, fit, watched
from torch import Tensor, nn

from efvfl import Agreement, Federation, Optimizer, Protection, SharedLabels, TopK, Training, cvfl, efvfl, federate
from efvfl.core.local_model import represent
from efvfl.errors import ConfigError
from efvfl.runs.attacks import batch_inversion, bench, catalogue, scoring, views
from efvfl.runs.attacks.bench import Attacker, Subject
from efvfl.runs.attacks.completion import make_active
from efvfl.runs.attacks.generative import generative_attack
from efvfl.runs.attacks.gradients import direction_attack, norm_attack
from efvfl.runs.attacks.inverse_network import inverse_attack
from efvfl.runs.attacks.secret_labels import SecretLabels
from efvfl.runs.attacks.spectral import spectral_attack

LABELS = [
    kind
    for kind in catalogue.KINDS
    if kind.about == "labels" and kind.name not in ("active-completion", "shared-labels")
]
COLUMNS = [kind for kind in catalogue.KINDS if kind.about == "columns"]
# What each attack reaches on the tiny problem, with a margin: AUC at least, or error at most.
REACHED = {
    "norm": 0.7,
    "direction": 0.99,
    "spectral": 0.7,
    "completion": 0.7,
    "columns-alone": 0.6,
}
LEFT = {
    "inverse": 0.5,
    "generative": 0.5,
    "inverse-held-out": 0.5,
    "generative-held-out": 0.5,
}
CHANCE = 0.61  # an AUC of the best of several ways on 400 coin tosses


@cache
def subject() -> Subject:
    return watched(federation())


def coins(count: int) -> Tensor:
    return torch.randint(2, (count,), generator=torch.Generator().manual_seed(9)).float()


@pytest.mark.parametrize("name", REACHED)
def test_labels_are_told_where_nothing_is_protected(name: str) -> None:
    (found,) = bench.attack_all(subject(), catalogue.chosen([name]), KNOWS).values()
    assert isinstance(found, float)
    assert found >= REACHED[name]


@pytest.mark.parametrize("kind", LABELS, ids=lambda kind: kind.name)
def test_coin_tosses_that_nothing_depends_on_are_not_told(kind: catalogue.AttackKind) -> None:
    tossed = replace(subject(), labels=coins(ROWS))
    (found,) = bench.attack_all(tossed, [kind], KNOWS).values()
    assert isinstance(found, float)
    assert found <= CHANCE


@pytest.mark.parametrize("name", LEFT)
def test_columns_are_told_where_nothing_is_protected(name: str) -> None:
    (found,) = bench.attack_all(subject(), catalogue.chosen([name]), KNOWS).values()
    assert isinstance(found, float)
    assert found <= LEFT[name]


def test_columns_that_were_never_used_are_not_told() -> None:
    seen = subject().server_view
    assert seen is not None
    other = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(4))
    assert inverse_attack(seen.received, other, torch.arange(60), 0) > 0.9
    assert generative_attack(seen.last, seen.mean, other, nn.Linear(5, WIDTH), 0) > 0.9
    assert inverse_attack(other, other, torch.arange(60), 0) < 0.01  # the attack itself works


def test_the_active_attack_trains_another_model_and_completes_that() -> None:
    kinds = catalogue.chosen(["active-completion"])
    found = bench.train_and_attack(federation, fit, EPOCHS, kinds, KNOWS)
    assert isinstance(found.outcomes["active-completion"], float)
    assert found.outcomes["active-completion"] >= 0.7
    tossed = bench.train_and_attack(federation, fit, EPOCHS, kinds, KNOWS, coins(ROWS))
    assert isinstance(tossed.outcomes["active-completion"], float)
    assert tossed.outcomes["active-completion"] <= CHANCE
    assert found.scores["accuracy"] > 0.7


def test_longer_steps_are_longer_and_only_the_partys_own() -> None:
    honest, greedy = federation(), federation()
    before = {name: [p.clone() for p in party.block.parameters] for name, party in honest.parties.items()}
    make_active(greedy.parties["guest"])
    for made in (honest, greedy):
        for _ in range(2):
            made.step()

    def moved(made: Federation, name: str) -> float:
        pairs = zip(made.parties[name].block.parameters, before[name], strict=True)
        return sum(float((now - then).detach().norm()) for now, then in pairs)

    assert moved(greedy, "guest") > 1.05 * moved(honest, "guest")
    assert moved(greedy, "holder") == moved(honest, "holder")  # of two steps, the second starts from the same reports


def test_who_watches_changes_nothing() -> None:
    plain = federation(efvfl(TopK(0.3), TopK(0.3)))
    fit(plain)
    seen = watched(federation(efvfl(TopK(0.3), TopK(0.3)))).federation
    for one, other in zip(plain.models, seen.models, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))
    assert plain.ledger.state_dict() == seen.ledger.state_dict()


def test_a_view_has_what_was_sent() -> None:
    made = federation(efvfl(TopK(0.3)))
    found = watched(made)
    seen, sent = found.party_view, found.server_view
    assert sent is not None
    assert seen.visits.shape == (EPOCHS, ROWS, WIDTH)
    assert torch.equal(sent.last, made.server.channels["guest"].memory.g)
    assert sent.visits.tolist() == [EPOCHS] * ROWS
    # The derivative of a row's own loss is p - y times the head's weight: of one direction, and of the label's sign.
    weight = next(made.fusion.head.parameters()).detach()[0]
    last = seen.visits[-1] @ weight
    assert bool(((last < 0) == (found.labels == 1)).all())
    assert not torch.equal(represent(seen.initial, seen.columns), represent(seen.model, seen.columns))


def test_averaged_gradients_are_solved_for_cotangents_where_there_are_enough_equations() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    for rows, solved in ((5, True), (200, False)):
        x, cotangents = torch.randn(rows, 6).double(), torch.randn(rows, 3).double()
        found = batch_inversion._explained(model, parameters, x, cotangents)
        error = float((found - cotangents).norm() / cotangents.norm())
        assert (error < 1e-4) == solved
        assert error <= 1 + 1e-9  # the shortest of all explanations is no longer than the true one


def test_averaged_gradients_tell_labels_unless_there_are_too_few_of_them() -> None:
    found = {}
    for hidden in (0, 40):
        seen = watched(federation(hidden=hidden))
        (found[hidden],) = bench.attack_all(seen, catalogue.chosen(["batch-inversion"]), KNOWS).values()
        equations = sum(p.numel() for p in seen.party_view.model.parameters())
        assert (equations > BATCH * WIDTH) == bool(hidden)
    assert found[0] < 0.9 < found[40]  # type: ignore[operator]


def test_compression_without_memory_hides_more_columns_than_with_it() -> None:
    kinds = catalogue.chosen(["inverse"])
    left = {}
    for name, method in (("SVFL", None), ("CVFL", cvfl(TopK(0.1))), ("EF-VFL", efvfl(TopK(0.1)))):
        (left[name],) = bench.attack_all(watched(federation(method)), kinds, KNOWS).values()
    assert left["SVFL"] < left["EF-VFL"] < left["CVFL"]  # type: ignore[operator]


def test_labels_that_are_shared_are_not_attacked_but_columns_are() -> None:
    made = watched(federation(agreement=Agreement(SharedLabels())))
    found = bench.attack_all(made, catalogue.chosen(["direction", "completion", "inverse"]), KNOWS)
    assert found["direction"] == found["completion"] == bench.SHARED
    assert isinstance(found["inverse"], float)
    assert found["inverse"] < 0.5
    assert made.server_view is not None
    assert made.server_view.visits.tolist() == [EPOCHS] * ROWS  # peers receive through the same end


def test_labels_that_are_randomised_before_they_are_shared_are_told_as_far_as_that_says() -> None:
    kinds = catalogue.chosen(["shared-labels", "direction"])
    once = Protection(label_epsilon=1.0)
    shared = bench.attack_all(watched(federation(protect=once, agreement=Agreement(SharedLabels()))), kinds, KNOWS)
    private = bench.attack_all(watched(federation(protect=once)), kinds, KNOWS)
    assert shared["shared-labels"] == pytest.approx(math.e / (1 + math.e), abs=0.07)
    assert private["shared-labels"] == "labels are private: none was given to it"
    assert private["direction"] < 0.85  # type: ignore[operator]  # 1 without it; columns tell something as well


def test_numbers_to_predict_are_no_classes_and_rows_may_be_missing() -> None:
    x = [torch.randn(90, 3, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    y = x[0].sum(dim=1) + x[1].sum(dim=1)
    x[1][:30] = torch.nan
    made = federate(
        {"a": x[0], "b": x[1]},
        y,
        [nn.Linear(3, 2), nn.Linear(3, 2)],
        nn.Linear(2, 1),
        training=Training(Optimizer("SGD", {"lr": 0.05}), 30, "mse"),
    )
    party = views.party_of(made, "b")
    seen, sent = views.watch_party(made, party, 2), views.watch_uplink(made, party)
    made.fit(2, gradient=False)
    found = bench.attack_all(
        Subject(made, party, bench.own_labels(made, party), seen, sent), catalogue.KINDS, Attacker("b", shadow=20)
    )
    assert found["direction"] == "labels are no classes, but what 'mse' predicts"
    assert found["inverse-held-out"] == "there are no held-out rows"
    assert isinstance(found["inverse"], float)
    assert seen.visits.shape == (2, 60, 2)


def test_several_classes_are_told_by_one_against_the_rest() -> None:
    labels = torch.tensor([0, 1, 2] * 40)
    secret = SecretLabels(labels, 3, scoring.some_of_each(labels, 4, 0), 0)
    assert len(secret.known) == 12
    exact = torch.eye(3)[labels]
    assert secret.score(exact) == 1.0
    assert secret.score(torch.zeros(120, 3)) == 0.5
    assert secret.score(exact.roll(1, dims=1)) < 0.3
    assert secret.centres(exact).equal(torch.eye(3))
    assert "there are more than two classes" in str(norm_attack(exact[None], secret))
    for attack in (direction_attack, lambda heard, s: spectral_attack(heard[0], s)):
        assert attack(exact[None], secret) == 1.0
        noise = torch.randn(1, 120, 3, generator=torch.Generator().manual_seed(1))
        assert attack(noise, secret) < 0.65  # type: ignore[operator]


def test_what_an_attacker_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected one of the parties \['guest'\] that do not hold the labels"):
        views.party_of(federation(), "holder")
    with pytest.raises(ConfigError, match="known: expected a number of at least 1, got 0"):
        Attacker(known=0)
    with pytest.raises(ConfigError, match="shadow: expected a number of at least 8, got 2"):
        Attacker(shadow=2)
    with pytest.raises(ConfigError, match="all 3 rows are known"):
        scoring.others(3, torch.arange(3))
    with pytest.raises(ConfigError, match=r"are too much to remember here: set data\.subset"):
        views.watch_party(federation(), federation().parties["guest"], 10**9)

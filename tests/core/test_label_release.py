"""Labels that are randomised once: the draw in integers, what follows from it, and that nothing else is used."""

import math
from collections import Counter
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from leaks import Tap, find_leaks
from problems import classes, columns, everything, head, parameters, problem, same
from torch import Tensor, nn

from efvfl import Agreement, Federation, LabelRelease, Loss, Optimizer, Protection, SharedLabels, TopK, efvfl
from efvfl.core import label_account
from efvfl.core.label_correction import corrected
from efvfl.core.label_mechanism import STEPS, WHOLE, NoisyNumbers, RandomisedResponse, as_table, of_table
from efvfl.core.label_release import from_seed, from_system, mechanism_for
from efvfl.core.losses import LOSSES, weighted
from efvfl.errors import CheckpointError, ConfigError

TWO = Protection(label_epsilon=2.0)


def bits(*values: int) -> Any:
    return np.array(values, dtype=np.uint64)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.floats(1e-3, 16), st.integers(2, 1000))
def test_a_response_has_at_most_the_epsilon_that_was_asked_for_and_hardly_less(epsilon: float, classes: int) -> None:
    made = RandomisedResponse.within(epsilon, classes)
    assert made.same + (classes - 1) * made.other == WHOLE
    assert made.epsilon <= epsilon
    assert made.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert math.log(Fraction(made.same, made.other)) == pytest.approx(made.epsilon, rel=1e-12)
    assert of_table(as_table(made)) == made


def test_every_draw_leads_to_its_class() -> None:
    """Tried at both ends of every interval of the 2^64 draws, so its length is the weight that was announced."""
    made = RandomisedResponse.within(1.0, 3)
    for label in range(3):
        others = [k for k in range(3) if k != label]
        edges = [0, made.same - 1, made.same, made.same + made.other - 1, made.same + made.other, WHOLE - 1]
        found = made.randomise(torch.full((6,), label), bits(*edges)).tolist()
        assert found == [label, label, others[0], others[0], others[1], others[1]]
    binary = RandomisedResponse.within(1.0, 2)
    flipped = binary.randomise(torch.tensor([0.0, 1.0]), bits(WHOLE - 1, WHOLE - 1))
    assert flipped.tolist() == [1.0, 0.0]
    assert flipped.dtype == torch.float32


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 16.0])
def test_noise_on_numbers_has_the_epsilon_that_its_integers_have(epsilon: float) -> None:
    """By exact fractions, over everything that can be told of the two ends of the range and some labels between."""
    made = NoisyNumbers(-1.0, 3.0, epsilon)
    weights = [int(weight) for weight in made.weights]
    most = len(weights) - 1
    assert weights[0] + 2 * sum(weights[1:]) == WHOLE

    def told(place: int) -> dict[int, int]:
        found: Counter[int] = Counter()
        for noise in range(-most, most + 1):
            found[min(max(place + noise, STEPS - most), most)] += weights[abs(noise)]
        return found

    tables = [told(place) for place in (0, 1, STEPS // 2, STEPS - 1, STEPS)]
    assert len({frozenset(table) for table in tables}) == 1
    most_likely, least_likely = 1, 1
    for a, b in permutations(tables, 2):
        for j, weight in a.items():
            if weight * least_likely > b[j] * most_likely:  # as fractions, which would take ten times as long
                most_likely, least_likely = weight, b[j]
    assert math.log(Fraction(most_likely, least_likely)) <= made.epsilon <= epsilon
    assert made.epsilon == pytest.approx(epsilon, rel=1e-3)


def test_noise_on_numbers_is_laplace_without_bias_and_knows_no_number_outside_its_range() -> None:
    made = NoisyNumbers(0.0, 10.0, 1.0)
    draws = from_seed(3)([str(i) for i in range(200_000)])
    drawn = made.randomise(torch.full((200_000,), 3.0), draws)
    assert float(drawn.mean()) == pytest.approx(3.0, abs=0.12)
    assert float(drawn.std()) == pytest.approx(10 * math.sqrt(2), rel=0.02)
    far, near = (made.randomise(torch.full((9,), value), draws[:9]) for value in (1e9, 10.0))
    assert torch.equal(far, near)


def test_a_seed_repeats_its_draws_by_name_and_the_system_does_not() -> None:
    names = [str(i) for i in range(100)]
    assert from_seed(1)(names).tolist() == from_seed(1)(names[:50]).tolist() + from_seed(1)(names[50:]).tolist()
    assert from_seed(1)(names).tolist() != from_seed(2)(names).tolist()
    assert from_system(names).tolist() != from_system(names).tolist()


@pytest.mark.parametrize("name", ["cross_entropy", "binary_cross_entropy"])
@pytest.mark.parametrize("weigh", [False, True])
def test_the_corrected_loss_is_the_log_loss_of_what_is_told(name: str, weigh: bool) -> None:
    torch.manual_seed(0)
    count = 3 if name == "cross_entropy" else 2
    loss, made = LOSSES[name], RandomisedResponse.within(1.5, count)
    loss = weighted(loss, torch.arange(1, count + 1).double()) if weigh else loss
    output = torch.randn(8, 3 if count == 3 else 1, dtype=torch.float64) * 30  # also where a model is certain
    labels = torch.arange(8) % count if count == 3 else (torch.arange(8) % 2).double()
    p = output.softmax(1) if count == 3 else torch.cat([1 - output.sigmoid(), output.sigmoid()], 1)
    flips = torch.full((count, count), made.other / WHOLE, dtype=torch.float64).fill_diagonal_(made.same / WHOLE)
    expected = -(p @ flips).gather(1, labels.long()[:, None])[:, 0].log()
    expected = expected * (labels.long() + 1) if weigh else expected
    found = corrected(loss, made)
    assert found.each is not None
    assert torch.allclose(found.each(output, labels), expected)
    assert float(found(output, labels)) == pytest.approx(float(expected.mean()))
    assert found.on_truth is loss
    assert found.metric is loss.metric


def test_a_corrected_loss_finds_the_true_probabilities_and_the_plain_one_does_not() -> None:
    made = RandomisedResponse.within(1.0, 2)
    truth = (torch.arange(40_000) % 10 == 0).double()  # one in ten
    told = made.randomise(truth, from_seed(5)([str(i) for i in range(40_000)]))
    found = {}
    for name, loss in (
        ("corrected", corrected(LOSSES["binary_cross_entropy"], made)),
        ("plain", LOSSES["binary_cross_entropy"]),
    ):
        logit = torch.zeros(1, requires_grad=True, dtype=torch.float64)
        optimizer = torch.optim.LBFGS([logit], max_iter=50)

        def closure(loss: Loss = loss, logit: Tensor = logit, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            value = loss(logit.expand(len(told), 1), told)
            value.backward()
            return value

        optimizer.step(closure)
        found[name] = float(logit.detach().sigmoid())
    assert found["corrected"] == pytest.approx(0.1, abs=0.02)
    assert found["plain"] > 0.25


def test_a_run_without_it_is_the_run_of_before() -> None:
    runs = [problem(efvfl(TopK(0.3)), batch_size=16, protect=p) for p in (None, Protection(), TWO)]
    for run in runs:
        for _ in range(5):
            run.step()
    assert same(everything(runs[0]), everything(runs[1]))
    assert not same(parameters(runs[0]), parameters(runs[2]))


MODES = {
    "private": Agreement(),
    "relay": Agreement(SharedLabels()),
    "aggregate, local updates": Agreement(SharedLabels(downlink="aggregate", local_steps=3)),
    "subsets": Agreement(subsets="sampled"),
}


PLATEAU = Optimizer("SGD", {"lr": 0.5}, "ReduceLROnPlateau", {"patience": 0, "threshold": 0.5})


@pytest.mark.parametrize("agreement", MODES.values(), ids=list(MODES))
def test_what_is_sent_depends_on_the_randomised_labels_alone(agreement: Agreement) -> None:
    """Two label sets with one release: every byte, every parameter and all decisions are the same."""
    release = problem(batch_size=16, protect=TWO).server.release
    assert release
    truth = release.labels["train"]

    def trained(labels: Tensor, held: Tensor) -> tuple[list[tuple[str, str, bytes]], Federation, Any]:
        drawn = LabelRelease(
            release.mechanism, {**release.labels, "validation": truth}, {"train": labels, "validation": held}
        )
        options: dict[str, Any] = (
            {"validation": (columns(), held), "patience": 2, "optimizer": PLATEAU}
            if agreement is not MODES["subsets"]
            else {}
        )
        if not options:
            drawn = LabelRelease(release.mechanism, release.labels, {"train": labels})
        run = problem(batch_size=16, protect=TWO, agreement=agreement, labels=labels, release=drawn, **options)
        tap = Tap(run)
        records = run.fit(6, gradient=False)
        return tap.payloads, run, records

    labels = classes(columns())
    (one, run, records), (two, other, others) = trained(labels, labels), trained((labels + 1) % 3, (labels + 2) % 3)
    assert one == two
    assert len(one) > 50
    assert same(everything(run), everything(other))
    assert [str(r.kept) for r in records] == [str(r.kept) for r in others]
    assert [r.surrogate_loss for r in records] == [r.surrogate_loss for r in others]
    assert records[-1].train != others[-1].train  # the label holder's own metrics are about the true labels


def test_metrics_of_the_label_holder_are_about_true_labels_and_decisions_are_not() -> None:
    labels = classes(columns())
    run = problem(batch_size=16, protect=TWO, validation=(columns(), labels), patience=3)
    record = run.fit(1, gradient=True)[0]
    release, examination = run.server.release, run.driver.examination
    assert release
    assert examination
    output = examination.outputs["validation"]
    assert record.validation["accuracy"] == float((output.argmax(1) == labels).double().mean())
    assert record.validation["loss"] == pytest.approx(float(nn.functional.cross_entropy(output, labels)))
    assert examination.loss != record.validation["loss"]
    assert record.train["accuracy"] == float((run.predict(columns()).argmax(1) == labels).double().mean())


def test_shared_labels_are_the_randomised_ones_and_a_search_finds_no_true_ones() -> None:
    run = problem(batch_size=16, protect=TWO, agreement=Agreement(SharedLabels()))
    release = run.server.release
    assert release
    for party in run.parties.values():
        mode: Any = party.label_mode
        assert torch.equal(mode.targets.labels, release.labels["train"])
        assert mode.plan.loss.truth is LOSSES["cross_entropy"]  # with the known probabilities
    tap = Tap(run)
    run.fit(3)
    tap.fusion = []  # which is sent
    tap.label_batches = [release.truth["train"]] + [
        release.truth["train"][run.server.batches.rows(t)] for t in range(12)
    ]
    assert find_leaks(tap) == []
    tap.payloads.append(("down", "relay", b"x" + release.truth["train"].to(torch.uint8).numpy().tobytes()))
    assert find_leaks(tap)  # a planted one


def test_it_is_stated_before_and_recorded_after() -> None:
    run = problem(batch_size=16, protect=TWO)
    account = label_account.of(run.server)
    assert account
    assert account.accountant.epsilon(10**6) == account.accountant.once <= 2
    assert run.promises(50) == [
        "This run will spend epsilon = 2: the label of each row, towards all other participants together (each drawn "
        "once among 3 classes, kept with probability 0.787; a simulation, because the draw follows from the seed)."
    ]
    assert {record.spent["labels"]["epsilon"] for record in run.fit(3)} == {account.accountant.once}
    drawn = LabelRelease.draw(TWO, LOSSES["cross_entropy"], {"train": classes(columns())})
    (promise,) = problem(protect=TWO, release=drawn).promises(1)
    assert "simulation" not in promise


def test_regression_learns_from_clipped_and_noisy_numbers() -> None:
    labels = torch.linspace(-3, 5, 60, dtype=torch.float64)
    protect = Protection(label_epsilon=8.0, label_range=(0.0, 2.0))
    run = problem(batch_size=16, protect=protect, loss="mse", labels=labels, head=nn.Linear(4, 1).double())
    assert run.server.release
    assert isinstance(run.server.release.mechanism, NoisyNumbers)
    told = run.server.labels
    assert not torch.equal(told, labels)
    assert float((told - labels.clamp(0, 2)).abs().mean()) == pytest.approx(0.25, rel=0.4)
    assert float(run.fit(2)[-1].spent["labels"]["epsilon"]) <= 8


@pytest.mark.parametrize(
    ("protect", "options", "error"),
    [
        (TWO, {"loss": "mse", "labels": torch.rand(60)}, r"needs protect\.label_range = \[low, high\]"),
        (TWO, {"loss": "binary_cross_entropy", "labels": torch.rand(60)}, "expected classes from 0 to 1"),
        (TWO, {"loss": "binary_cross_entropy", "labels": torch.ones(60, 3)}, "expected classes from 0 to 1"),
        (Protection(label_epsilon=1.0, label_range=(0.0, 1.0)), {}, "has classes: leave it out"),
        (TWO, {"loss": Loss("own", nn.functional.cross_entropy, "zero", lambda o, t: 0.0)}, "say which labels"),
        (
            TWO,
            {"loss": Loss("own", nn.functional.cross_entropy, "zero", lambda o, t: 0.0, "classes")},
            "set label_correction to false",
        ),
        (Protection(label_epsilon=2.0, clip=1.0), {}, "protect.label_epsilon does not go with protect.clip"),
    ],
)
def test_mistakes_are_answered(protect: Protection, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        problem(protect=protect, head=head() if "loss" not in options else nn.Linear(4, 3).double(), **options)


def test_odd_numbers_and_other_labels_are_refused() -> None:
    for wrong, error in (
        ({"label_epsilon": 1e-4}, "expected 0 or at least 0.001"),
        ({"label_epsilon": 17.0}, "expected at most 16"),
        ({"label_range": (0.0, 1.0)}, "set label_epsilon"),
        ({"label_correction": False}, "set label_epsilon"),
    ):
        with pytest.raises(ConfigError, match=error):
            Protection(**wrong)
    with pytest.raises(ConfigError, match="low < high"):
        mechanism_for(Protection(label_epsilon=1.0, label_range=(1.0, 1.0)), LOSSES["mse"], 0)
    release = problem(protect=TWO).server.release
    with pytest.raises(ConfigError, match="got one of others"):
        problem(protect=TWO, release=release, labels=torch.zeros(60, dtype=torch.int64))
    for table in ({"kind": "response", "classes": 1, "other": 1}, {"kind": "numbers", "low": 0}, {"classes": 2}):
        with pytest.raises(ConfigError):
            of_table(table)


def test_a_saved_state_goes_on_with_its_own_draw_alone() -> None:
    def build(key: int, protect: Protection = TWO) -> Federation:
        truth = {"train": classes(columns())}
        release = LabelRelease.draw(TWO, LOSSES["cross_entropy"], truth, from_seed(key))
        return problem(batch_size=16, protect=protect, release=release if protect is TWO else None)

    run, again = build(1), build(1)
    run.fit(1)
    again.load_state_dict(run.state_dict())
    for going in (run, again):
        going.fit(3)
    assert same(everything(run), everything(again))
    for other in (build(2), build(1, Protection())):
        with pytest.raises(CheckpointError, match=r"restore protect\.label_epsilon"):
            other.load_state_dict(run.state_dict())
    with pytest.raises(CheckpointError, match=r"restore protect\.label_epsilon"):
        run.load_state_dict(build(1, Protection()).state_dict())


def test_sample_weights_stay_with_their_rows() -> None:
    weights = torch.rand(60)
    run = problem(batch_size=16, protect=TWO, weights=weights)
    assert run.server.targets.weights is not None
    assert torch.allclose(run.server.targets.weights, (weights / weights.mean()).double())
    run.fit(1)

"""Rows that some parties lack in Python: how they are given, who predicts without whom, and what each is worth."""

from itertools import permutations
from typing import Any

import pytest
import torch
from problems import CLASSES, ROWS, classes, columns, parameters, problem, same
from torch import Tensor

from efvfl import Agreement, Federation, Optimizer, TopK, efvfl
from efvfl.core.fusion import Fusion
from efvfl.errors import ConfigError
from efvfl.training import measure
from efvfl.training.values import ORDERS, Game, ScoredRows, party_values
from efvfl.util.rng import derive, permutation

NAMES = ("bank", "telco", "shop")
X = dict(zip(NAMES, columns(), strict=True))
Y = classes(columns())
HAS = torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(3)) < torch.tensor([1.0, 0.5, 0.3])
MASKS = {name: HAS[:, place] for place, name in enumerate(NAMES)}


def holed(x: dict[str, Tensor], has: Tensor) -> dict[str, Tensor]:
    return {n: torch.where(has[:, k, None], v, torch.nan) for k, (n, v) in enumerate(x.items())}


@pytest.fixture(scope="module")
def trained() -> Federation:
    held = columns(seed=9)
    validation = (holed(dict(zip(NAMES, held, strict=True)), HAS.flip(0)), classes(held))
    run = problem(features=X, label_holder="bank", present=MASKS, validation=validation, batch_size=20)
    run.fit(15)
    return run


def test_rows_of_nan_and_masks_are_the_same(trained: Federation) -> None:
    by_nan = problem(features=holed(X, HAS), label_holder="bank", batch_size=20)
    by_nan.fit(15)
    assert same(parameters(by_nan), parameters(trained))
    some = problem(features=X, label_holder="bank", present={"telco": HAS[:, 1]}, batch_size=20)
    assert some.server.plan.presence is not None
    assert {n: int(m.sum()) for n, m in some.server.plan.presence.masks.items()} == {
        "bank": ROWS,
        "telco": int(HAS[:, 1].sum()),
        "shop": ROWS,
    }


def test_records_are_over_those_present(trained: Federation) -> None:
    record, split = trained.record(), trained.splits["validation"]
    output = trained.predict(holed(dict(zip(NAMES, columns(seed=9), strict=True)), HAS.flip(0)))
    assert record.validation["accuracy"] == float((output.argmax(dim=1) == split.labels).double().mean())
    assert record.gradient > 0


@pytest.mark.parametrize("few", [False, True])
def test_held_out_rows_by_messages_are_over_those_present_and_saved(few: bool) -> None:
    """Of the rows that are held out parties report those they have, perhaps none; patience decides by all."""
    held = dict(zip(NAMES, columns(seed=9), strict=True))
    has = HAS.flip(0).clone()
    if few:
        has[:, 2] = False
    validation, test = (holed(held, has), classes(columns(seed=9))), (held, classes(columns(seed=9)))
    options: dict[str, Any] = {"features": X, "present": MASKS, "batch_size": 20, "combine": "concat", "patience": 3}
    run, resumed = (
        problem(efvfl(TopK(0.4)), validation=validation, test=test, label_holder="bank", wire=True, **options)
        for _ in range(2)
    )
    list(run.train(2))
    resumed.load_state_dict(run.state_dict())
    records = [each.fit(4) for each in (run, resumed)]
    assert [r.validation for r in records[0]] == [r.validation for r in records[1]]
    assert same(parameters(run), parameters(resumed))
    last, evaluation = run.record(), run.server.evaluation
    assert evaluation is not None
    for name, party in run.parties.items():
        assert party.evaluation is not None
        ours, theirs = party.evaluation.channel.memory, evaluation.channels[name].memory
        rows = int(has[:, NAMES.index(name)].sum())
        if name != "bank":  # which sits next to the server and sends exactly
            assert ours.g.shape == (rows, 4)
            assert torch.equal(ours.g, theirs.g)
    output = run.predict(*validation[:1])
    assert last.validation["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(output, validation[1])))


def test_a_head_that_is_told_who_is_present_predicts_rows_of_all(trained: Federation) -> None:
    top = torch.nn.Linear(4 + 3, CLASSES).double()
    run = problem(features=X, present=MASKS, head=top, shows_presence=True, batch_size=20)
    run.fit(1)
    parts = [model(x) for model, x in zip(run.models, X.values(), strict=True)]
    told = torch.cat([torch.stack(parts).mean(0), torch.ones(ROWS, 3)], dim=1)
    assert torch.allclose(run.predict(X), top(told))


def test_any_subset_predicts_however_it_is_named(trained: Federation) -> None:
    rows = {name: x[:5] for name, x in X.items()}
    alone = trained.predict({"bank": rows["bank"]})
    nobody_else = torch.tensor([False] * 5)
    for same_thing in (
        trained.predict(rows, present=["bank"]),
        trained.predict(rows, present={"telco": nobody_else, "shop": nobody_else}),
        trained.predict(holed(rows, torch.tensor([[True, False, False]] * 5))),
        trained.predict(list(rows.values()), present=[[True] * 5, [False] * 5, [False] * 5]),
    ):
        assert torch.equal(alone, same_thing)
    h = trained.models[0](rows["bank"])
    assert torch.allclose(alone, trained.fusion.head(h))  # a mean over one
    both = trained.predict({"bank": rows["bank"], "shop": rows["shop"]})
    assert torch.allclose(both, trained.fusion.head((h + trained.models[2](rows["shop"])) / 2))
    assert not torch.equal(both, trained.predict(rows))


@pytest.mark.parametrize(
    ("present", "error"),
    [
        (["bnak"], r"present: expected names of the parties .* got 'bnak'"),
        ("bank", "present: expected a mask for each party or a list of names, got 'bank'"),
        ([[True], [True]], "present: expected 3 masks, one for each of"),
        ({"bank": [1, 0]}, "present of 'bank': expected a bool for each of 2 rows, got torch.int64"),
        ({"bank": [True]}, r"present of 'bank': expected a bool for each of 2 rows, got torch.bool of \(1,\)"),
        ({"shoe": [True, True]}, "present: expected names of the parties"),
        ([], "every row at one party at least, got rows at none"),
    ],
)
def test_masks_that_make_no_sense_are_refused(trained: Federation, present: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        trained.predict({name: x[:2] for name, x in X.items()}, present=present)


def test_rows_at_nobody_and_parties_without_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="every row at one party at least, got 3 of 60 rows at none"):
        problem(features=X, present=[torch.arange(ROWS) > 2] * 3)
    with pytest.raises(ConfigError, match="expected party 'shop' to have some of the 60 rows, got none"):
        problem(features=X, present={"shop": torch.zeros(ROWS, dtype=torch.bool)})


def test_a_model_that_was_trained_for_all_together_refuses_subsets() -> None:
    run = problem(features=X)
    for ask in (lambda: run.predict({"bank": X["bank"]}), lambda: run.party_values("train")):
        with pytest.raises(ConfigError, match=r"trained for all parties together.*subsets='sampled'"):
            ask()
    sampled = problem(features=X, agreement=Agreement(subsets="sampled"))
    assert sampled.predict({"bank": X["bank"]}).shape == (ROWS, CLASSES)
    with pytest.raises(ConfigError, match="split: expected one of"):
        sampled.party_values()


def test_a_subset_that_nothing_was_trained_for_is_refused() -> None:
    """Without sampling that is all but those that were present together; with it, subsets of these are fine."""
    mask = torch.arange(ROWS) < 20
    never_both = {"telco": mask, "shop": ~mask}
    for subsets in ("off", "sampled"):
        run = problem(features=X, present=never_both, agreement=Agreement(subsets=subsets))
        assert run.predict(X, present=["bank", "shop"]).shape == (ROWS, CLASSES)
        with pytest.raises(ConfigError, match=r"got 60 rows that it was not trained for, .* one of bank, telco, shop"):
            run.predict(X)
        if subsets == "sampled":
            run.predict(X, present=["bank"])
        else:
            with pytest.raises(ConfigError, match="such as one of bank alone: leave these out, or train with"):
                run.predict(X, present=["bank"])


def test_what_a_report_shows_of_held_out_rows_is_over_those_present(trained: Federation) -> None:
    held = holed(dict(zip(NAMES, columns(seed=9), strict=True)), HAS.flip(0))
    assert torch.equal(trained.held_out_output("validation"), trained.predict(held))


def test_sampling_makes_subsets_predict_better_than_they_do_without() -> None:
    """Trained with all rows of all, and then asked to predict alone."""
    found = []
    for subsets in ("off", "sampled"):
        # The mask of one row makes presence known, so that both may be asked for subsets.
        present = {"shop": torch.arange(ROWS) > 0}
        options: dict[str, Any] = {"optimizer": Optimizer("Adam", {"lr": 0.02}), "batch_size": 20, "present": present}
        run = problem(features=X, agreement=Agreement(subsets=subsets), **options)
        run.fit(60, observe_every=60)
        alone = [torch.tensor([[k == place for k in range(3)]] * ROWS) for place in (0, 1)]
        outputs = [measure.predict(run.models, run.fusion, list(X.values()), mask) for mask in alone]
        found.append(sum(float(torch.nn.functional.cross_entropy(output, Y)) for output in outputs))
    assert found[1] < found[0] - 0.1


def brute_force(metric: Any, players: int) -> list[float]:
    """Shapley values as they are defined: the mean over all orders of what a party adds when it comes."""
    total, orders = [0.0] * players, list(permutations(range(players)))
    for order in orders:
        for place, player in enumerate(order):
            total[player] += metric(frozenset(order[: place + 1])) - metric(frozenset(order[:place]))
    return [value / len(orders) for value in total]


def test_values_equal_a_brute_force_computation_and_sum_to_all_less_none(trained: Federation) -> None:
    split = trained.splits["validation"]
    assert split.present is not None
    whole = trained.predict(dict(zip(NAMES, split.features, strict=True)), present=[*split.present.T])

    def accuracy(subset: frozenset[int]) -> float:
        """From single rows: the mean of those that are there, or the mean output."""
        right = 0
        for i in range(len(split.labels)):
            here = [k for k in subset if bool(split.present[i, k])]  # type: ignore[index]
            parts = [trained.models[k](split.features[k][i : i + 1]) for k in here]
            output = trained.fusion.head(torch.stack(parts).mean(0))[0] if parts else whole.mean(0)
            right += int(output.argmax()) == int(split.labels[i])
        return right / len(split.labels)

    found = trained.party_values(resamples=20)
    assert found.metric == "accuracy"
    assert [found.values[name].value for name in NAMES] == pytest.approx(brute_force(accuracy, 3), abs=1e-12)
    total = sum(estimate.value for estimate in found.values.values())
    assert total == pytest.approx(found.subsets[NAMES].value - found.subsets[()].value, abs=1e-12)
    assert len(found.subsets) == 8
    assert found.subsets["bank", "shop"].value == accuracy(frozenset({0, 2}))
    for estimate in (*found.subsets.values(), *found.values.values()):
        assert estimate.low <= estimate.high
        assert estimate.low - 0.2 < estimate.value < estimate.high + 0.2
    assert trained.party_values(resamples=20) == found
    negative = trained.party_values(metric=lambda output, target: 1.0, resamples=2)
    assert all(
        estimate == pytest.approx(0, abs=1e-12) for e in negative.values.values() for estimate in vars(e).values()
    )


def test_values_of_many_parties_are_estimated_from_orders() -> None:
    names, rows = [f"p{k}" for k in range(12)], 40
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(rows, 1, generator=generator, dtype=torch.float64) for _ in names]
    weights = torch.arange(len(names)).double()
    labels = torch.zeros(rows, dtype=torch.float64)
    fusion = Fusion(torch.nn.Identity(), "concat", [1] * len(names))
    everybody = torch.ones(rows, len(names), dtype=torch.bool)

    def additive(output: Tensor, target: Tensor) -> float:
        """A metric that is a sum over those present: a party's value is then its own share."""
        return (
            float(((output != 0).double() * weights).sum(dim=1).mean()) if bool((output[0] != output[1]).any()) else 0.0
        )

    game = Game.of(len(names), seed=0)
    assert len(game.subsets) <= ORDERS * len(names) + 1
    found = party_values(ScoredRows(fusion, parts, everybody, labels), names, additive, "sum", resamples=0)
    assert [found.values[name].value for name in names] == pytest.approx(weights.tolist())
    total = sum(estimate.value for estimate in found.values.values())
    assert total == pytest.approx(found.subsets[tuple(names)].value - found.subsets[()].value)


def test_column_values_equal_loops_over_rows(trained: Federation) -> None:
    """A column's values in the order that follows from the seed, at the rows that the party has; all else by hand."""
    split, place, seed = trained.splits["validation"], 2, 5
    assert split.present is not None
    own = split.present[:, place].nonzero().flatten().tolist()
    order = permutation(derive(seed, "column", "validation", "1"), len(own), 0, len(own)).tolist()

    def accuracy(moved: bool) -> float:
        right = 0
        for i in range(len(split.labels)):
            here = [k for k in range(3) if bool(split.present[i, k])]  # type: ignore[index]
            rows = {k: split.features[k][i].clone() for k in here}
            if moved and place in rows:
                rows[place][1] = split.features[place][own[order[own.index(i)]]][1]
            output = trained.fusion.head(torch.stack([trained.models[k](x) for k, x in rows.items()]).mean(0))
            right += int(output.argmax()) == int(split.labels[i])
        return right / len(split.labels)

    found = trained.column_values(seeds={"shop": seed}, resamples=10)
    assert {name: list(columns) for name, columns in found.items()} == {
        name: [str(i) for i in range(x.shape[1])] for name, x in X.items()
    }
    assert found["shop"]["1"].value == pytest.approx(accuracy(False) - accuracy(True), abs=1e-12)
    assert found["shop"]["1"].low <= found["shop"]["1"].high
    both = trained.column_values({"bank": {"both": [0, 1]}}, resamples=0)
    assert list(both) == ["bank"]
    assert both["bank"]["both"].value != found["bank"]["0"].value
    with pytest.raises(ConfigError, match="columns: expected names of the parties"):
        trained.column_values({"bnak": {}})

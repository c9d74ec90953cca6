"""Early stopping in one process, against runs without it: the kept model is the one that training had at that epoch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from problems import classes, columns, everything, memories, parameters, problem, same
from torch.optim.lr_scheduler import ReduceLROnPlateau

from efvfl import Agreement, Federation, Optimizer, SharedLabels, TopK, cvfl, efvfl, svfl
from efvfl.config.parsing import read
from efvfl.config.run_file import RunConfig
from efvfl.config.watching import Watching
from efvfl.errors import ConfigError
from efvfl.training import measure
from efvfl.training.record import Record
from efvfl.training.stopping import Stopping, ending

NOISE = torch.Generator().manual_seed(9)
LATER = columns(rows=30, seed=5)
VALIDATION = (LATER, torch.randint(3, (30,), generator=NOISE))  # labels are noise: no model stays good for long
TEST = (LATER, classes(LATER))
EPOCHS = 12

CASES: dict[str, dict[str, Any]] = {
    "svfl": {"method": svfl()},
    "cvfl": {"method": cvfl(TopK(0.4))},
    "efvfl": {"method": efvfl(TopK(0.3), down=TopK(0.5))},
    "exact start": {"method": efvfl(TopK(0.3), start="exact")},
    "mean start": {"method": efvfl(TopK(0.3), start="mean")},
    "bfloat16": {"method": efvfl(TopK(0.3)), "agreement": Agreement(memory_dtype="bfloat16"), "dtype": torch.float32},
    "replicate": {"method": efvfl(TopK(0.3)), "agreement": Agreement(SharedLabels(fusion="replicate", digest_every=3))},
    "pipeline": {"method": efvfl(TopK(0.3)), "agreement": Agreement(pipeline=3)},
    "label holder": {"method": efvfl(TopK(0.3)), "names": True, "label_holder": "b"},
}


def run(case: str, **more: Any) -> Federation:
    options = CASES[case] | more
    dtype = options.pop("dtype", torch.float64)
    held: dict[str, Any] = {
        split: ([x.to(dtype) for x in rows], y) for split, (rows, y) in {"validation": VALIDATION, "test": TEST}.items()
    }
    if options.pop("names", False):
        names = ("a", "b", "c")
        x = columns(dtype)
        options |= {"features": dict(zip(names, x, strict=True)), "labels": classes(x)}
        held = {split: (dict(zip(names, rows, strict=True)), y) for split, (rows, y) in held.items()}
    return problem(options.pop("method"), dtype, batch_size=16, **(held | options))


@pytest.mark.parametrize("case", CASES)
def test_the_kept_model_is_that_of_its_epoch(case: str) -> None:
    stopped = run(case, patience=2)
    records = stopped.fit(EPOCHS, gradient=False)
    last = records[-1]
    assert last.epoch - 2 == last.kept < EPOCHS - 2
    untouched = run(case)
    untouched.fit(int(last.kept), gradient=False)
    assert same(parameters(stopped), parameters(untouched))
    # It is evaluated once it is in place, on rows that arrive to a byte a number, or exactly; test rows only then.
    exact = untouched.record(gradient=False)
    for sent, found in ((last.validation, exact.validation), (last.test, exact.test)):
        assert sent == found if case == "svfl" else sent["loss"] == pytest.approx(found["loss"], rel=0.01)
    for split, scores in (("validation", last.validation), ("test", last.test)):
        output = stopped.held_out_output(split)
        assert scores == measure.scores(output, stopped.splits[split].targets, stopped.server.loss)
        there = stopped.predict(stopped.splits[split].features)
        assert torch.equal(output, there) == (case == "svfl")
        assert torch.allclose(output, there, atol=0.02)
    assert not any(record.test for record in records[:-1])
    assert stopped.ledger.total("up") > untouched.ledger.total("up")


def test_what_is_kept_is_what_a_loop_over_exact_losses_would_keep() -> None:
    """SVFL sends validation rows as they are, so its decisions are those of a loop by hand."""
    losses = [record.validation["loss"] for record in run("svfl").fit(EPOCHS, gradient=False)]
    best, epoch = float("inf"), 0
    for at, loss in enumerate(losses, start=1):
        best, epoch = (loss, at) if loss < best else (best, epoch)
        if at - epoch >= 3:
            break
    records = run("svfl", patience=3).fit(EPOCHS, gradient=False)
    assert (records[-1].epoch, records[-1].kept) == (at, epoch)
    assert [record.validation["loss"] for record in records[:-1]] == losses[: at - 1]


@pytest.mark.parametrize("case", ["efvfl", "replicate"])
def test_patience_that_is_never_used_up_still_keeps_the_best(case: str) -> None:
    whole = run(case, patience=EPOCHS)
    last = whole.fit(EPOCHS, gradient=False)[-1]
    assert last.epoch == EPOCHS
    assert last.kept < EPOCHS
    untouched = run(case)
    untouched.fit(int(last.kept), gradient=False)
    assert same(parameters(whole), parameters(untouched))


def facts(record: Record) -> tuple[Any, ...]:
    return record.epoch, record.kept, record.validation, record.test, record.ledger


@pytest.mark.parametrize("case", ["efvfl", "pipeline", "replicate"])
def test_saved_after_any_record_it_goes_on_alike(case: str) -> None:
    whole, states = run(case, patience=2), []
    records = []
    for record in whole.train(EPOCHS, gradient=False):
        records.append(record)
        states.append(whole.state_dict())
    for done, state in enumerate(states, start=1):
        again = run(case, patience=2)
        again.load_state_dict(state)
        rest = again.fit(EPOCHS, gradient=False)
        assert [(r.epoch, r.kept, r.validation) for r in rest] == [
            (r.epoch, r.kept, r.validation) for r in records[done:]
        ]
        assert same(everything(again), everything(whole))


@pytest.mark.parametrize("case", ["efvfl", "pipeline", "replicate"])
def test_more_epochs_go_on_from_the_last_model(case: str) -> None:
    """Where it had ended for a while, the kept model was in place; nothing of that is left."""
    straight, halting = run(case, patience=EPOCHS), run(case, patience=EPOCHS)
    straight.fit(EPOCHS, gradient=False)
    for epochs in range(1, EPOCHS + 1):
        halting.fit(epochs, gradient=False)
    assert same(everything(straight), everything(halting))
    assert straight.fit(EPOCHS) == []


def test_a_plateau_lowers_the_rate_as_torch_does_by_hand() -> None:
    options = {"factor": 0.3, "patience": 1, "cooldown": 1}
    lowered = run("svfl", optimizer=Optimizer("SGD", {"lr": 0.5}, "ReduceLROnPlateau", options))
    lowered.fit(EPOCHS, gradient=False)
    by_hand = run("svfl")
    number = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    plateau = ReduceLROnPlateau(number, **options)  # type: ignore[arg-type]
    for record in by_hand.train(EPOCHS, gradient=False):
        plateau.step(record.validation["loss"])
        for block in (by_hand.server.block, *(party.block for party in by_hand.parties.values())):
            block.set_rate(number.param_groups[0]["lr"])
    assert 0 < number.param_groups[0]["lr"] < 0.5
    assert lowered.server.block.rate == number.param_groups[0]["lr"]
    assert same(parameters(lowered), parameters(by_hand))


def test_replicas_of_the_fusion_model_have_the_same_rate() -> None:
    options = {"factor": 0.3, "patience": 0}
    made = run("replicate", optimizer=Optimizer("Adam", {"lr": 0.1}, "ReduceLROnPlateau", options), wire=True)
    made.fit(EPOCHS, gradient=False)
    digests = {made.server.block.digest()}
    for party in made.parties.values():
        label_mode: Any = party.label_mode
        assert label_mode.receiver.block.rate == made.server.block.rate < 0.1
        digests.add(label_mode.receiver.block.digest())
    assert len(digests) == 1


def test_both_ends_remember_the_same_of_validation_rows() -> None:
    made = run("efvfl", patience=EPOCHS)
    made.fit(3, gradient=False)
    assert made.server.evaluation is not None
    for name, party in made.parties.items():
        assert party.evaluation is not None
        assert party.evaluation.channel.digest() == made.server.evaluation.channels[name].digest()
        assert party.digests() == made.server.digests(name)
    assert len(memories(made)[0][0]) == 60  # the training rows have a memory of their own


def test_test_rows_alone_are_evaluated_once(tmp_path: Path) -> None:
    records = problem(efvfl(TopK(0.3)), evaluation="compressed", test=TEST).fit(3, gradient=False)
    assert [bool(record.test) for record in records] == [False, False, True]
    assert not any(record.validation for record in records)
    mapped = problem(efvfl(TopK(0.3)), evaluation="compressed", test=TEST, mapped=tmp_path).fit(3, gradient=False)
    assert mapped[-1].test == records[-1].test


def test_memories_of_validation_rows_may_lie_in_files(tmp_path: Path) -> None:
    mapped, plain = run("efvfl", patience=2, mapped=tmp_path), run("efvfl", patience=2)
    assert list(map(facts, mapped.fit(EPOCHS, gradient=False))) == list(map(facts, plain.fit(EPOCHS, gradient=False)))
    assert same(parameters(mapped), parameters(plain))


def test_nothing_is_decided_without_validation_rows() -> None:
    plateau = Optimizer("SGD", {"lr": 0.5}, "ReduceLROnPlateau")
    for more in ({"patience": 2}, {"optimizer": plateau}, {"patience": 2, "test": TEST}):
        with pytest.raises(ConfigError, match="expected validation rows, by which patience and ReduceLROnPlateau"):
            problem(svfl(), **more)


def test_a_plateau_watches_a_loss_and_takes_what_torch_takes() -> None:
    with pytest.raises(ConfigError, match=r"scheduler.mode: expected 'min', as it watches a loss, got 'max'"):
        Optimizer("SGD", {"lr": 0.5}, "ReduceLROnPlateau", {"mode": "max"})
    with pytest.raises(ConfigError, match=r"scheduler ReduceLROnPlateau does not take .*factor"):
        run("svfl", optimizer=Optimizer("SGD", {"lr": 0.5}, "ReduceLROnPlateau", {"factor": 2.0}))


def test_losses_that_are_no_numbers_are_never_the_best() -> None:
    stopping = Stopping(patience=2)
    assert not stopping.look(1, float("nan"))
    assert not stopping.over
    assert not stopping.look(2, float("inf"))
    assert stopping.over
    assert str(stopping.kept) == "nan"
    assert ending(Record(2, 2, 0.5), epochs=9) == "Stopped after 2 epochs: no validation loss was a number."


@pytest.mark.parametrize(
    ("epoch", "kept", "text"),
    [
        (31, 21, "Stopped after 31 epochs: no better validation loss for 10. The model of epoch 21 is kept."),
        (40, 21, "The model of epoch 21 is kept, which has the best validation loss."),
        (40, 40, ""),
        (40, float("nan"), ""),
    ],
)
def test_how_a_run_has_ended(epoch: int, kept: float, text: str) -> None:
    assert ending(Record(epoch, epoch, 0.5, kept=kept), epochs=40) == text


@pytest.mark.parametrize(
    ("file", "tables", "watching"),
    [
        ({}, False, Watching(1, 0, False)),
        ({"patience": 4}, False, Watching(1, 4, True)),
        ({"evaluation": "compressed"}, False, Watching(1, 0, True)),
        ({"optimizer": {"scheduler": {"name": "ReduceLROnPlateau"}}}, False, Watching(1, 0, True)),
        ({"epochs": 9}, True, Watching(1, 10, True)),
        ({"epochs": 100}, True, Watching(2, 10, True)),
        ({"epochs": 60, "observe_every": 1}, True, Watching(1, 10, True)),
        ({"epochs": 200, "patience": 0}, True, Watching(4, 0, True)),
        ({"epochs": 400}, True, Watching(8, 24, True)),
        ({"epochs": 150, "evaluation": "exact"}, True, Watching(3, 0, False)),
        ({"epochs": 150, "data": {"validation": 0.0}}, True, Watching(3, 0, True)),
        ({"epochs": 60, "network": {"on_missing": "stale"}}, True, Watching(1, 0, False)),
    ],
)
def test_what_a_file_means(file: dict[str, Any], tables: bool, watching: Watching) -> None:
    assert Watching.of(read(RunConfig, file, "run.toml"), tables) == watching

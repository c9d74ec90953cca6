"""A compressor of one party: its reports are as if all had it, everybody else's as before, and both ends agree."""

from pathlib import Path

import pytest
import torch
from networks import config
from problems import everything, memories, problem, same

from efvfl import QSGD, Agreement, Identity, SharedLabels, TopK, cvfl, efvfl, train
from efvfl.config.run_file import MethodConfig
from efvfl.errors import ConfigError

AGREEMENTS = {
    "private": Agreement(),
    "relay": Agreement("shared"),
    "replicate": Agreement(SharedLabels(fusion="replicate")),
}


@pytest.mark.parametrize("agreement", AGREEMENTS)
@pytest.mark.parametrize("method", [efvfl, cvfl])
def test_reports_of_each_party_are_those_of_its_own_compressor(method: object, agreement: str) -> None:
    """The first step's reports: all representations are the same then."""

    def reports(made: object) -> dict[str, dict[str, int]]:
        federation = problem(made, agreement=AGREEMENTS[agreement], batch_size=16)  # type: ignore[arg-type]
        federation.step(hold=True)
        return {name: kinds["report"] for name, kinds in federation.ledger.table()["up"].items()}  # type: ignore[misc]

    own = reports(method(TopK(0.5), parties={"party2": QSGD(4)}))  # type: ignore[operator]
    topk, qsgd = reports(method(TopK(0.5))), reports(method(QSGD(4)))  # type: ignore[operator]
    assert own == {"party1": topk["party1"], "party2": qsgd["party2"], "party3": topk["party3"]}
    assert topk["party2"] != qsgd["party2"]


@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_both_ends_remember_the_same(agreement: str) -> None:
    method = efvfl(TopK(0.3), parties={"party2": QSGD(4), "party3": Identity()})
    here, through_bytes = (
        problem(method, agreement=AGREEMENTS[agreement], batch_size=16, wire=wire) for wire in (False, True)
    )
    here.fit(3)
    through_bytes.fit(3)
    assert same(everything(here), everything(through_bytes))
    for pair in memories(through_bytes):
        assert all(torch.equal(pair[0], other) for other in pair)


def test_one_for_each_that_is_that_of_all_changes_nothing() -> None:
    plain = problem(efvfl(TopK(0.3)), batch_size=16)
    each = problem(efvfl(QSGD(8), parties={f"party{k}": TopK(0.3) for k in (1, 2, 3)}), batch_size=16)
    assert [r.train for r in plain.fit(2)] == [r.train for r in each.fit(2)]
    assert same(everything(plain), everything(each))


def test_a_file_says_it(tmp_path: Path) -> None:
    table = {"name": "efvfl", "parties": {"top-left": {"name": "qsgd", "bits": 4}}}
    [record] = train(config(epochs=1, method=table), tmp_path / "run")
    [plain] = train(config(epochs=1), tmp_path / "plain")
    sent, before = record.ledger["up"], plain.ledger["up"]
    assert sent["top-left"] != before["top-left"]
    assert sent["bottom-right"] == before["bottom-right"]
    made = MethodConfig("cvfl", parties={"bank": {"name": "topk", "ratio": 0.5}}).build()
    assert made.parties == {"bank": TopK(0.5)}
    wrong = {"name": "efvfl", "parties": {"top-leftt": {"name": "qsgd", "bits": 4}}}
    with pytest.raises(ConfigError, match=r"method.parties has 'top-leftt', which is not a party. Did you mean"):
        train(config(method=wrong), tmp_path / "wrong")
    with pytest.raises(ConfigError, match="would have no effect: leave it out"):
        problem(efvfl(TopK(0.5), parties={"party1": QSGD(4)}), label_holder="party1")
    with pytest.raises(ConfigError, match="parties: expected a compressor for 'party1', got 4"):
        efvfl(TopK(0.5), parties={"party1": 4})  # type: ignore[dict-item]

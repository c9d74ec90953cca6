"""Parties that are away for some steps, in one process."""

from functools import partial
from pathlib import Path
from typing import Any

import networks
import pytest
from absence_lab import AWAY, assert_equal_everywhere, shared_config, stale_config
from absence_runs import run
from problems import everything, problem, same

from efvfl import Agreement, Record, Setup, SharedLabels, TopK, cvfl, efvfl
from efvfl.errors import ConfigError
from efvfl.training.federation import Federation
from efvfl.util import checkpoint

GONE = {"party1": [range(3, 6), range(9, 11)], "party2": [range(10, 12)]}


def federation(labels: str = "private", **more: Any) -> Federation:
    agreement = Agreement(labels=SharedLabels()) if labels == "shared" else Agreement()
    given: dict[str, Any] = {"method": efvfl(TopK(0.3)), "away": GONE, "agreement": agreement} | more
    return problem(given.pop("method"), batch_size=16, **given)


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_steps_go_on_without_who_is_away_and_records_say_so(labels: str) -> None:
    made = federation(labels)
    records = made.fit(4)
    assert spans(records, "party1") == [[3, 5], [9, 10]]
    assert spans(records, "party2") == [[10, 11]]
    assert_equal_everywhere(made.server, dict(made.parties), made.server.step_number)
    assert not same(everything(made), everything(federation(labels, away={}, wire=True)))


def spans(records: list[Record], name: str) -> list[list[int]]:
    """The steps that went without a party, where a span that two records share is whole again."""
    found: list[list[int]] = []
    for first, last in (span for record in records for span in record.absent.get(name, [])):
        if found and found[-1][1] == first - 1:
            found[-1][1] = last
        else:
            found.append([first, last])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", ["private", "relay, replicate", "aggregate, compress"])
def test_an_absence_equals_that_over_a_network(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same party is away for the same steps: parameters, memories and losses are equal bit for bit."""
    config = stale_config() if case == "private" else shared_config(case)
    serving, parties = run(tmp_path, config, leaves_at=6, back_at=15)
    away = {AWAY: [range(first, last + 1) for first, last in spans(serving.records, AWAY)]}
    assert away[AWAY]
    monkeypatch.setattr("efvfl.runs.build.Setup", partial(Setup, away=away))
    made = networks.federation(config)
    records = made.fit(config.epochs, config.observe_every or 1, gradient=False)
    assert spans(records, AWAY) == spans(serving.records, AWAY)
    assert [r.surrogate_loss for r in records] == [r.surrogate_loss for r in serving.records]
    assert not list(networks.differences(made.server.state_dict(), serving.server.state_dict()))
    for name, party in made.parties.items():
        assert not list(networks.differences(party.state_dict(), parties[name].state_dict())), name


@pytest.mark.parametrize("labels", ["private", "shared"])
@pytest.mark.parametrize("step", [3, 5, 6, 10])
def test_a_run_that_is_restored_while_somebody_is_away_ends_alike(labels: str, step: int, tmp_path: Path) -> None:
    whole, half, rest = (federation(labels) for _ in range(3))
    whole.fit(4)

    def stop() -> None:
        if half.server.step_number == step and half.driver.between_steps:
            checkpoint.save(tmp_path / "c", half.state_dict())
            raise KeyboardInterrupt

    half.driver.pause = stop
    with pytest.raises(KeyboardInterrupt):
        half.fit(4)
    rest.load_state_dict(checkpoint.load(tmp_path / "c"))
    rest.fit(4)
    assert same(everything(whole), everything(rest))


def test_simulated_time_goes_on_in_a_run_with_absences_that_is_restored(tmp_path: Path) -> None:
    speeds = {"party1": 2.0, "party3": 5.0}
    whole, half, rest = (federation(report_seconds=speeds) for _ in range(3))
    [*_, expected] = whole.fit(4)
    half.fit(2)
    checkpoint.save(tmp_path / "c", half.state_dict())
    rest.load_state_dict(checkpoint.load(tmp_path / "c"))
    [*_, record] = rest.fit(4)
    assert record.simulated_seconds == expected.simulated_seconds > 16 * 4


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"away": {"nobody": [range(2)]}}, "away: expected names of the parties .* got 'nobody'"),
        (
            {"away": {"party1": [(0, 5)]}},
            r"expected ranges of steps such as range\(10, 20\) for 'party1', got \(0, 5\)",
        ),
        ({"away": {"party1": [range(5, 5)]}}, "expected ranges of steps"),
        (
            {"away": {f"party{k}": [range(k, 9)] for k in (1, 2, 3)}},
            "somebody to take part in step 3, but all are away",
        ),
        ({"label_holder": "party1"}, "away: expected parties that are not at the server, got 'party1'"),
        (
            {"agreement": Agreement(pipeline=True)},
            "away does not go with pipeline: a run that is restored would have to know",
        ),
        ({"method": cvfl(TopK(0.3))}, "no last surrogate"),
    ],
)
def test_what_cannot_be_simulated_is_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        federation(**given)

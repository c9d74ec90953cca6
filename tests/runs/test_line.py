"""The time of a run on a line: by hand."""

import pytest

from efvfl.errors import ConfigError
from efvfl.runs.line import Line, PartyRound, Round, round_seconds, run_seconds, shared_line_seconds, step_seconds
from efvfl.training.record import Record

LINE = Line(round_trip=0.020, up=8e6, down=16e6)  # a byte up takes 1 us, one down half of that


def test_a_round_takes_as_long_as_its_slowest_party_and_the_server() -> None:
    quick, slow = PartyRound(1_000, 1_000, 0.001), PartyRound(10_000, 20_000, 0.002)
    assert round_seconds(LINE, Round([quick], 0.0)) == pytest.approx(0.020 + 0.001 + 0.0005 + 0.001)
    assert round_seconds(LINE, Round([quick, slow], 0.003)) == pytest.approx(0.020 + 0.010 + 0.010 + 0.002 + 0.003)
    # What counts is a party's whole way, not the worst of each part.
    mixed = Round([PartyRound(10_000, 0, 0.0), PartyRound(0, 0, 0.009)], 0.0)
    assert round_seconds(LINE, mixed) == pytest.approx(0.020 + 0.010)


def test_a_window_shares_a_round_until_one_stage_is_busy() -> None:
    cost = Round([PartyRound(1_000, 2_000, 0.002)], 0.003)  # a round: 20 + 1 + 1 + 2 + 3 = 27 ms
    assert [step_seconds(LINE, cost, window) for window in (1, 2, 4)] == pytest.approx([0.027, 0.0135, 0.00675])
    assert step_seconds(LINE, cost, 64) == pytest.approx(0.003)  # the server
    for party, busiest in [((1, 1, 0.005), 0.005), ((7_000, 1, 0.0), 0.007), ((1, 18_000, 0.0), 0.009)]:
        assert step_seconds(LINE, Round([PartyRound(1, 1, 0.0), PartyRound(*party)], 0.0), 64) == busiest


def test_a_run_is_one_round_and_then_steps() -> None:
    cost = Round([PartyRound(1_000, 2_000, 0.002)], 0.003)
    assert run_seconds(LINE, cost, 1, 10) == pytest.approx(0.27)
    assert run_seconds(LINE, cost, 2, 10) == pytest.approx(0.027 + 9 * 0.0135)
    assert run_seconds(LINE, cost, 2, 0) == 0


def test_parties_that_share_a_line_wait_for_all_bytes() -> None:
    record = Record(1, 10, 0.5, bytes_up=1_000_000, bytes_down=2_000_000)
    assert shared_line_seconds(record, LINE) == pytest.approx(10 * 0.020 + 1.0 + 1.0)


@pytest.mark.parametrize("wrong", [{"round_trip": -1.0}, {"up": 0.0}, {"down": float("nan")}])
def test_lines_that_do_not_exist_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"(round trip|rate (up|down)): expected"):
        Line(**wrong)

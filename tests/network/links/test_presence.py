"""Who is here: a party that owes an answer for too long is missing, whatever its connection does."""

import time

import pytest

from efvfl.network.links.presence import Presence


def test_an_answer_is_owed_over_all_connections() -> None:
    presence = Presence(["north", "south"], "stale")
    for name in presence.names:
        presence.arrive(name)
    presence.ask("north")
    assert presence.wait([], 3.0, longest=5.0) == set()
    presence.depart("north")  # it is cut off, and dials again
    assert presence.wait([], 1.0, longest=5.0) == set()
    presence.arrive("north")
    presence.ask("north")  # the same again
    assert presence.wait(["north"], 2.0, longest=5.0) == {"north"}
    assert presence.wait(["north"], 1.0, longest=5.0) == set()  # said once
    assert presence.missing_for() == {"north": 7.0}
    assert presence.given_up(["north"], 6.0)
    assert not presence.given_up(["north"], 8.0)
    presence.answered("north")
    assert presence.missing_for() == {}
    assert presence.wait([], 100.0, longest=5.0) == set()


def test_who_takes_part_again_owes_nothing_of_before() -> None:
    presence = Presence(["north"], "stale")
    presence.arrive("north")
    presence.ask("north")
    presence.wait(["north"], 9.0, longest=5.0)
    presence.leave("north", 7)
    assert presence.rejoin("north") == 7
    assert presence.missing_for() == {}
    presence.ask("north")
    presence.wait(["north"], 4.0, longest=5.0)
    assert presence.rejoin("north") is None  # it had not left, and what it owes stays
    assert presence.wait(["north"], 2.0, longest=5.0) == {"north"}


def test_who_was_away_for_long_has_its_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 'stop' it would end the run while it computes its first answer."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    presence = Presence(["north"], "stop")
    presence.arrive("north")
    presence.ask("north")
    presence.wait(["north"], 20.0, longest=300.0)
    presence.depart("north")
    now = 3_590.0
    presence.wait([], 3_590.0, longest=300.0)
    assert presence.missing_for()["north"] >= 3_590
    presence.arrive("north")
    assert presence.missing_for() == {}
    presence.wait(["north"], 15.0, longest=300.0)
    assert presence.missing_for() == {}
    assert presence.wait(["north"], 270.0, longest=300.0) == {"north"}  # with the 20 seconds of before

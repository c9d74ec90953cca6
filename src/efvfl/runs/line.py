"""What a slow line makes of a run: its expected time, from bytes and computing seconds. Arithmetic, no measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from efvfl.errors import ConfigError, describe
from efvfl.training.record import Record


@dataclass(frozen=True)
class Line:
    """A party's line to the server.

    >>> Line(round_trip=0.1).up
    10000000.0
    """

    round_trip: float = 0.020  # seconds
    up: float = 10e6  # bits per second
    down: float = 10e6

    def __post_init__(self) -> None:
        """Refuse lines that do not exist."""
        if not (isfinite(self.round_trip) and self.round_trip >= 0):
            raise ConfigError(f"round trip: expected a time of at least 0, got {describe(self.round_trip)}.")
        for name, rate in (("up", self.up), ("down", self.down)):
            if not (isfinite(rate) and rate > 0):
                raise ConfigError(f"rate {name}: expected a number above 0, got {describe(rate)}.")


@dataclass(frozen=True)
class PartyRound:
    """What one round costs a party."""

    bytes_up: float
    bytes_down: float
    seconds: float  # of computing


@dataclass(frozen=True)
class Round:
    """What one round of training costs; every party has a line of its own."""

    parties: Sequence[PartyRound]
    server: float  # seconds of computing


def round_seconds(line: Line, cost: Round) -> float:
    """Return the time from a round's beginning to its end: the slowest party's way, and the server's computing.

    >>> round_seconds(Line(0.020, 8e6, 16e6), Round([PartyRound(10_000, 20_000, 0.002)], server=0.003))
    0.045
    """
    slowest = max(8 * p.bytes_up / line.up + 8 * p.bytes_down / line.down + p.seconds for p in cost.parties)
    return line.round_trip + slowest + cost.server


def step_seconds(line: Line, cost: Round, window: int) -> float:
    """Return the time of a step with a window of steps under way.

    So many rounds share the time of one, but whatever a round needs alone serves one step after another: a party's
    computing, the server's, an uplink, a downlink. The busiest of them is a lower bound.
    """
    stages = [cost.server]
    for party in cost.parties:
        stages += [party.seconds, 8 * party.bytes_up / line.up, 8 * party.bytes_down / line.down]
    return max(round_seconds(line, cost) / window, *stages)


def run_seconds(line: Line, cost: Round, window: int, rounds: int) -> float:
    """Return the time of so many rounds: a whole one, and a step for each of the others."""
    return round_seconds(line, cost) + (rounds - 1) * step_seconds(line, cost, window) if rounds else 0.0


def shared_line_seconds(record: Record, line: Line) -> float:
    """Return the transmission time of a run's messages if the parties share one line, such as the server's.

    The two directions take turns, because a round's reports must arrive before its answers can be sent. Computing,
    evaluation and the overhead of TLS are not included.
    """
    return record.step * line.round_trip + 8 * record.bytes_up / line.up + 8 * record.bytes_down / line.down

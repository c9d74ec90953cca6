"""A run with one party that is away for a while."""

from collections.abc import Callable
from pathlib import Path

from absence_lab import AWAY, Lab, Watched

from efvfl.config.run_file import RunConfig
from efvfl.core.party import Party
from efvfl.errors import LinkError
from efvfl.network.training.server_process import ServerProcess


def run(
    folder: Path,
    config: RunConfig,
    leaves_at: int,
    back_at: int,
    at_end: Callable[[ServerProcess], object] = lambda serving: None,
    dies_at: tuple[int, ...] = (),
) -> tuple[ServerProcess, dict[str, Party]]:
    """Train while one party is away from its request `leaves_at` until the server's step `back_at`.

    At the steps of `dies_at` the server is gone with all it has not saved, and another takes its place.
    """
    lab = Lab(folder, config)
    deaths = list(dies_at)
    left: list[int] = []

    def leave(member: Watched, number: int) -> None:
        if member.name == AWAY and member.handled == leaves_at and not left:
            left.append(number)
            lab.wait_until(number)
            lab.blocked.add(AWAY)
            raise LinkError("cut on purpose")

    def control() -> None:
        step = lab.serving.server.step_number
        if deaths and step >= deaths[0]:
            deaths.pop(0)
            lab.restart_server()
        if step >= back_at and AWAY in lab.serving.requests.presence.left:
            lab.blocked.discard(AWAY)
            lab.wait_for(AWAY)  # back at this step, however fast the others are

    lab.before = leave
    return lab.train(control, at_end), lab.parties

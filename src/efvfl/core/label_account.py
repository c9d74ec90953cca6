"""What a server's run tells others about labels, in numbers: so far, and after all steps of the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from efvfl.core.accountant import Accountant
from efvfl.core.batches import Batches
from efvfl.core.private_labels import PrivateLabelsServer
from efvfl.core.visit_noise import most_visits

if TYPE_CHECKING:
    from efvfl.core.server import Server

Spent = dict[str, dict[str, float | str]]  # by what is protected, as records have it


@dataclass(frozen=True)
class LabelAccount:
    """An accountant, how many visits there were, and how many there will be after so many steps."""

    accountant: Accountant
    visits: Callable[[], float]
    visits_after: Callable[[int], float]

    def spent(self) -> Spent:
        """Return what a record says."""
        return {"labels": self.accountant.spent(self.visits())}

    def promise(self, steps: int) -> str:
        """Return what is said before training."""
        return self.accountant.statement(self.visits_after(steps), "will spend")


def of(server: Server) -> LabelAccount | None:
    """Return the account of a server's labels; None: nothing protects them."""
    plan, mode, noise = server.plan, server.label_mode, server.noise
    if server.release:
        return LabelAccount(server.release.accountant, lambda: 1, lambda steps: 1)
    if noise:
        return LabelAccount(noise.accountant, lambda: noise.most, lambda steps: most_visits(plan, steps))
    if not isinstance(mode, PrivateLabelsServer) or not mode.protection.clip:
        return None
    # x0 learns from the labels as they are, so one label may change every later cotangent of every row: each by twice
    # the clip at most. Every row that is sent counts, in a concatenation for each party; what else is told of x0, such
    # as decisions by a validation loss, has no noise and so no bound.
    copies = 1 if server.fusion.additive else sum(name != plan.label_holder for name in plan.names)
    accountant = Accountant(
        "the label of each training row",
        "all other participants together, as long as x0 and predictions stay with the label holder",
        f"cotangents clipped at {mode.protection.clip:g}, noise {mode.protection.noise:g}; x0 learns from exact labels",
        2 * math.sqrt(copies),
        0.0 if plan.held_out else mode.protection.noise,
    )
    return LabelAccount(
        accountant,
        lambda: rows_in(plan.batches, server.step_number),
        lambda steps: rows_in(plan.batches, steps),
    )


def spent(server: Server) -> Spent:
    """Return what a record says of a server's labels; nothing where nothing protects them."""
    account = of(server)
    return account.spent() if account else {}


def rows_in(batches: Batches, steps: int) -> int:
    """Return how many rows so many steps have.

    >>> rows_in(Batches(samples=5, size=2), 4)
    7
    """
    if batches.full or batches.order == "independent":
        return steps * batches.count(0)
    epochs, rest = divmod(steps, batches.per_epoch)
    return epochs * batches.samples + rest * batches.size

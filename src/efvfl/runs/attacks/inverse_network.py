"""Columns from the uplink: a network that turns what the server holds back into columns, learnt on a shadow sample.

The attacker is the server. It knows the columns of some rows (customers of its own, or rows that leaked) beside what
it was sent of them, and nothing of the party's model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from efvfl.runs.attacks import scoring
from efvfl.util.rng import seeded

HIDDEN, STEPS, RATE, PATIENCE = 128, 300, 0.005, 40
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # times the number of shadow rows
FAR = 8.0  # spreads from the mean of the known rows: what varies elsewhere alone has no weight to be trusted with
HELD = 4  # one shadow row in so many decides which way is the best


def reconstruct(received: Tensor, columns: Tensor, shadow: Tensor, seed: int) -> Tensor:
    """Return guesses of the columns of all rows, given those of the shadow rows.

    A linear map, a network and the mean of the shadow rows are tried, and rows that are held out of the shadow sample
    decide among them.
    """
    x, y = _standard(received, received[shadow]), columns[shadow]
    centre = y.mean(dim=0)
    fit, held = _cut(shadow, seed)
    candidates = [centre.expand_as(columns), *(_linear(x, columns, fit, ridge) for ridge in RIDGES)]
    with seeded(seed):
        candidates.append(_network(x, columns, fit, held))
    return min(candidates, key=lambda guess: float((guess[held] - columns[held]).square().sum()))


def inverse_attack(received: Tensor, columns: Tensor, shadow: Tensor, seed: int) -> float:
    """Return what is left of the spread of the other rows' columns: 0 is exact, 1 is no more than their means."""
    columns = columns.flatten(1)
    hidden = scoring.others(len(columns), shadow)
    return scoring.left_over(columns[hidden], reconstruct(received, columns, shadow, seed)[hidden])


def _cut(shadow: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    order = shadow[torch.randperm(len(shadow), generator=torch.Generator().manual_seed(seed))]
    held = max(1, len(shadow) // HELD)
    return order[held:], order[:held]


def _standard(values: Tensor, known: Tensor) -> Tensor:
    """Return values with the mean and spread of the known ones taken out, none of them far from those."""
    return ((values - known.mean(dim=0)) / known.std(dim=0).clamp(min=1e-6)).clamp(-FAR, FAR)


def _linear(x: Tensor, y: Tensor, rows: Tensor, ridge: float) -> Tensor:
    inputs, targets = x[rows].double(), y[rows].double()
    centre, level = inputs.mean(dim=0), targets.mean(dim=0)
    a = inputs - centre
    weights = torch.linalg.solve(a.T @ a + ridge * len(rows) * torch.eye(a.shape[1]).double(), a.T @ (targets - level))
    guess: Tensor = (x.double() - centre) @ weights + level
    return guess.to(y.dtype)


def _network(x: Tensor, y: Tensor, fit: Tensor, held: Tensor) -> Tensor:
    """Return the guesses of a network with one hidden layer, as it was when it was best on the rows held out."""
    level, spread = y[fit].mean(dim=0), y[fit].std(dim=0).clamp(min=1e-6)
    network = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, y.shape[1])).to(y.dtype)
    optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=0.05)
    best, least, since = level.expand_as(y), float("inf"), 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        (network(x[fit]) * spread + level - y[fit]).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            error = float((network(x[held]) * spread + level - y[held]).square().mean())
        since = 0 if error < least else since + 1
        if error < least:
            least, best = error, (network(x) * spread + level).detach()
        if since > PATIENCE:
            break
    return best

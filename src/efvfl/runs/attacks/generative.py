"""Columns from the uplink without any known row: a generator whose rows the party's model maps to what was received.

It follows the generative regression network of Luo et al. (arXiv 2010.10152), with representations in place of
predictions, which say more. The attacker is the server, and it knows the party's trained local model (because it was
published, exported or leaked), what it was sent of each row, and the mean and the spread of every column; no row.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from efvfl.core.local_model import represent
from efvfl.runs.attacks import scoring
from efvfl.util.rng import seeded

HIDDEN, STEPS, RATE, BATCH = 128, 300, 0.005, 256
SMALL, LARGE = 0.02, 0.5  # weight of the spread of what is generated: how little what was received is trusted


def generate(received: Tensor, model: nn.Module, level: Tensor, spread: Tensor, prior: float, seed: int) -> Tensor:
    """Return columns of the shape of `level`, a row for each that was received, shape (rows, *columns)."""
    fixed = copy.deepcopy(model).eval().requires_grad_(False)
    scale = received.std(dim=0).clamp(min=1e-6)
    inputs = (received - received.mean(dim=0)) / scale
    with seeded(seed):
        network = nn.Sequential(nn.Linear(received.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, level.numel()))
        network = network.to(received.dtype)
        optimizer = torch.optim.Adam(network.parameters(), RATE)
        for _ in range(STEPS):
            some = torch.randint(len(inputs), (min(BATCH, len(inputs)),))
            made = network(inputs[some])
            h = fixed((level.flatten() + spread.flatten() * made).reshape(-1, *level.shape))
            unexplained = ((h - received[some]) / scale).square().mean()
            optimizer.zero_grad()
            (unexplained + prior * made.square().mean()).backward()
            optimizer.step()
    return (level.flatten() + spread.flatten() * represent(network, inputs)).reshape(-1, *level.shape)


def generative_attack(last: Tensor, mean: Tensor | None, columns: Tensor, model: nn.Module, seed: int) -> float:
    """Return what is left of the spread of the columns: 0 is exact, 1 is no more than their means.

    The best of some ways: from the last value of each row, trusted more or less, and from the mean over visits, which
    has less noise and is of models that are older.
    """
    level, spread = columns.mean(dim=0), columns.std(dim=0)
    ways = [(last, SMALL), (last, LARGE), *([] if mean is None else [(mean, LARGE)])]
    made = (generate(received, model, level, spread, prior, seed) for received, prior in ways)
    return min(scoring.left_over(columns, guess) for guess in made)

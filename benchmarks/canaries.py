"""The canary audit: rows whose labels are tossed coins, and the best attack on them beside what the guarantee allows.

`python -m benchmarks.canaries` prints the table of docs/privacy.md in half a minute. The attacker is a party that is
given everything but the labels, also x0 and all outputs at every step: more than a real one has. What it is sent of a
row is then the label and the noise, and the sum over all visits is the best test there is. A second attack compares
rows that stood at the same place of their batches, which finds noise that is drawn more than once with one key.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from efvfl import Federation, Message, Optimizer, Protection, RowProtection, Setup, Training, VisitNoise, federate
from efvfl.compress import decode
from efvfl.core.accountant import auc_within
from efvfl.experiments.tables import as_markdown

ROWS, MANY = 4_000, 40_000  # of an audit in the tests, and of one in the table
BATCH, WIDTH = 100, 4
GUEST = "guest"
DEVIATIONS = 3.5  # of the estimate: one audit in two thousand is outside by chance


@dataclass(frozen=True)
class Audit:
    """What the attacks found, and what they may find."""

    found: dict[str, float]  # AUC by attack
    allowed: float  # AUC that no attack exceeds if the guarantee holds
    deviation: float  # standard deviation of an estimated AUC

    @property
    def best(self) -> float:
        """The largest AUC."""
        return max(self.found.values())

    @property
    def holds(self) -> bool:
        """Whether the best attack is within what is allowed, up to chance."""
        return self.best - DEVIATIONS * self.deviation <= self.allowed


def canaries(noise: float, seed: int, rows: int) -> tuple[Federation, Tensor]:
    """Return a federation of two parties on rows that mean nothing, and the labels, which are tossed coins."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (rows,), generator=generator).double()
    columns = {name: torch.randn(rows, 3, generator=generator, dtype=torch.float64) for name in ("other", GUEST)}
    torch.manual_seed(seed)
    models = {name: nn.Linear(3, WIDTH).double() for name in columns}
    training = Training(Optimizer("SGD", {"lr": 0.5}), BATCH, "binary_cross_entropy", seed)
    setup = Setup(protect=Protection(visits=VisitNoise(noise)))
    run = federate(columns, labels, models, nn.Linear(WIDTH, 1).double(), training=training, setup=setup)
    return run, labels


def audit(noise: float, epochs: int, seed: int = 0, rows: int = ROWS) -> Audit:
    """Train on canaries, attack their labels, and say what the run's own statement allows."""
    run, labels = canaries(noise, seed, rows)
    told: list[tuple[Tensor, Tensor]] = []  # at every step: rows, and what was told of each, its label and noise
    honest = run.server.label_mode.answers

    def listening(context: Any, *others: Any) -> dict[str, Message]:
        messages = honest(context, *others)
        number = run.server.plan.number(GUEST)
        cotangent = torch.tensor(decode(messages[GUEST].packets[number][0]))
        head: Any = run.fusion.head
        weight, output = head.weight.detach()[0], head(context.values).detach()[:, 0]
        derivative = cotangent @ weight / weight.square().sum() * len(cotangent) * len(run.parties)
        told.append((context.rows, torch.sigmoid(output) - derivative))
        return messages

    run.server.label_mode.answers = listening  # type: ignore[method-assign]
    run.fit(epochs, gradient=False)
    noise_of = run.server.noise
    assert noise_of is not None
    return _audit(labels, told, auc_within(noise_of.accountant.mu(noise_of.most)))


def audit_rows(noise: float, epochs: int, seed: int = 0, rows: int = ROWS) -> Audit:
    """The same for a party's rows: each has one of two representations, as far apart as the clip allows."""
    generator = torch.Generator().manual_seed(seed)
    coins = torch.randint(2, (rows,), generator=generator).double()
    columns = {"other": torch.zeros(rows, 1).double(), GUEST: (2 * coins - 1)[:, None] * torch.ones(1, WIDTH).double()}
    models = {"other": nn.Linear(1, WIDTH, bias=False).double(), GUEST: nn.Identity()}
    training = Training(Optimizer("SGD", {"lr": 0.5}), BATCH, "binary_cross_entropy", seed)
    setup = Setup(protect_rows={GUEST: RowProtection(1.0, noise)})
    labels = torch.randint(2, (rows,), generator=generator).double()
    run = federate(columns, labels, models, nn.Linear(WIDTH, 1).double(), training=training, setup=setup)
    told: list[tuple[Tensor, Tensor]] = []
    honest = run.server.channels[GUEST].receive

    def listening(places: Any, *others: Any) -> Tensor:
        surrogate = honest(places, *others)
        told.append((places, surrogate.sum(dim=1)))  # along the line from the one to the other
        return surrogate

    run.server.channels[GUEST].receive = listening  # type: ignore[method-assign]
    run.fit(epochs, gradient=False)
    guest = run.parties[GUEST].noise
    assert guest is not None
    return _audit(coins, told, auc_within(guest.accountant.mu(guest.most - 1)))  # nobody has asked for a prediction


def _audit(secret: Tensor, told: list[tuple[Tensor, Tensor]], allowed: float) -> Audit:
    """Guess what is secret of each row from all that was told of it."""
    places, values = (torch.stack(parts) for parts in zip(*told, strict=True))
    scores = {"sum over visits": values, "same place": values - values.mean(dim=0)}
    ones, zeros = int(secret.sum()), int((1 - secret).sum())
    deviation = sqrt((ones + zeros + 1) / (12 * ones * zeros))
    return Audit({name: _auc(secret, places, score) for name, score in scores.items()}, allowed, deviation)


def _auc(labels: Tensor, rows: Tensor, scores: Tensor) -> float:
    total = torch.zeros(len(labels), dtype=torch.float64).index_add_(0, rows.flatten(), scores.flatten())
    return float(roc_auc_score(labels, total))


def main() -> None:
    """Print the table."""
    headings = ["", "noise", "epochs", "sum over visits", "same place", "allowed", "holds"]
    lines = []
    for noise, epochs in ((2.0, 1), (4.0, 4), (16.0, 4), (4.0, 16)):
        for what, audited in (("labels", audit), ("rows", audit_rows)):
            found = audited(noise, epochs, rows=MANY)
            numbers = [f"{auc:.3f} ± {DEVIATIONS * found.deviation:.3f}" for auc in found.found.values()]
            holds = "yes" if found.holds else "NO"
            lines.append([what, f"{noise:g}", str(epochs), *numbers, f"{found.allowed:.3f}", holds])
    print(as_markdown(headings, sorted(lines, key=lambda line: line[0])))


if __name__ == "__main__":
    main()

"""A tiny federation that leaks, for tests of attacks: a label holder and a guest, one row in four positive."""

from typing import Any

import torch
from torch import Tensor, nn

from efvfl import Federation, Method, Optimizer, Protection, RowProtection, Setup, Training, federate, svfl
from efvfl.core.party import Party
from efvfl.runs.attacks import bench, views
from efvfl.runs.attacks.bench import Attacker, Subject

ROWS, TEST, EPOCHS, BATCH, WIDTH = 400, 200, 6, 20, 4
KNOWS = Attacker("guest", known=8, shadow=60)


def rows(count: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Columns that partly determine the label, which is 1 for a quarter of the rows."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 10, generator=generator)
    score = x[:, :8].sum(dim=1) + 1.5 * torch.randn(count, generator=generator)
    return {"holder": x[:, ::2].clone(), "guest": x[:, 1::2].clone()}, (score > 2.2).float()


def federation(method: Method | None = None, hidden: int = 0, **options: Any) -> Federation:
    torch.manual_seed(0)
    layers = [nn.Linear(5, hidden), nn.Tanh(), nn.Linear(hidden, WIDTH)] if hidden else [nn.Linear(5, WIDTH)]
    models = {"holder": nn.Linear(5, WIDTH), "guest": nn.Sequential(*layers)}
    guard = options.pop("rows", RowProtection())
    return federate(
        *rows(ROWS, 1),
        models,
        nn.Linear(WIDTH, 1),
        method=method or svfl(),
        training=Training(
            Optimizer("SGD", {"lr": options.pop("rate", 0.5)}),
            BATCH,
            "binary_cross_entropy",
            evaluation="compressed" if guard.on else "exact",
        ),
        test=rows(TEST, 2),
        setup=Setup("sum", "holder", options.pop("protect", Protection()), protect_rows={"guest": guard}),
        **options,
    )


def fit(made: Federation) -> None:
    made.fit(EPOCHS, observe_every=EPOCHS, gradient=False)


def watched(made: Federation) -> Subject:
    """Train a federation with somebody watching at both ends."""
    party: Party = views.party_of(made, "guest")
    seen, sent = views.watch_party(made, party, EPOCHS), views.watch_uplink(made, party)
    fit(made)
    return Subject(made, party, bench.own_labels(made, party), seen, sent)

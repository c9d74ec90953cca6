"""Texts, a time series and attention over parties: no part of this knows what the others are.

Three parties know the same customers. One has their last message as tokens, padded, with a mask: a dict of two tensors
for a small Transformer. One has 24 hours of a sensor for a GRU. One has plain columns. Representations are put side by
side, and the head, which is the fusion model, attends over the parties. Run it: it takes some seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from efvfl import Federation, Optimizer, Setup, TopK, Training, efvfl, federate

ROWS, WORDS, LENGTH, HOURS, WIDTH = 600, 50, 12, 24, 16


class Reader(nn.Module):
    """One layer of a Transformer over tokens; the mean over those that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        self.layer = nn.TransformerEncoderLayer(WIDTH, nhead=2, dim_feedforward=32, dropout=0.0, batch_first=True)

    def forward(self, tokens: Tensor, there: Tensor) -> Tensor:
        """Return a representation of tokens, of which those are used that are there."""
        seen = self.layer(self.words(tokens) + self.places, src_key_padding_mask=~there)
        weights = there.to(seen.dtype).unsqueeze(2)
        mean: Tensor = (seen * weights).sum(1) / weights.sum(1)
        return mean


class Sensor(nn.Module):
    """A GRU over hours; its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(1, WIDTH, batch_first=True)

    def forward(self, hours: Tensor) -> Tensor:
        """Return a representation of a series of shape (rows, hours)."""
        _, last = self.cell(hours.unsqueeze(2))
        state: Tensor = last[0]
        return state


class AttentionOverParties(nn.Module):
    """A fusion model: parties' representations, side by side, become a sequence that attends to itself."""

    def __init__(self, parties: int, classes: int) -> None:
        super().__init__()
        self.parties = parties
        self.attention = nn.MultiheadAttention(WIDTH, num_heads=2, batch_first=True)
        self.last = nn.Linear(WIDTH, classes)

    def forward(self, side_by_side: Tensor) -> Tensor:
        """Return class scores from shape (rows, parties * WIDTH)."""
        parts = side_by_side.reshape(-1, self.parties, WIDTH)
        attended, _ = self.attention(parts, parts, parts, need_weights=False)
        scores: Tensor = self.last((parts + attended).mean(1))
        return scores


def customers(seed: int = 0) -> tuple[dict[str, dict[str, Tensor] | Tensor], Tensor]:
    """Return made-up columns of three parties, and labels that need all of them."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, WORDS, (ROWS, LENGTH), generator=draw)
    there = torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (ROWS, 1), generator=draw)
    hours = torch.randn(ROWS, HOURS, generator=draw).cumsum(1) / 5
    plain = torch.randn(ROWS, 4, generator=draw)
    angry = ((tokens < 10) & there).sum(1) / there.sum(1)
    score = 4 * (angry - 0.2) + hours[:, -1] - hours[:, -6] + plain[:, 0]
    return {"mail": {"tokens": tokens, "there": there}, "sensor": hours, "shop": plain}, (score > 0).long()


def build(seed: int = 0) -> tuple[Federation, dict[str, dict[str, Tensor] | Tensor], Tensor]:
    """Return the federation, and rows that it was not trained on."""
    features, labels = customers(seed)
    torch.manual_seed(seed)

    def part(rows: slice) -> dict[str, dict[str, Tensor] | Tensor]:
        return {n: {k: v[rows] for k, v in x.items()} if isinstance(x, dict) else x[rows] for n, x in features.items()}

    train, held = slice(0, 500), slice(500, ROWS)
    federation = federate(
        part(train),
        labels[train],
        {"mail": Reader(), "sensor": Sensor(), "shop": nn.Linear(4, WIDTH)},
        AttentionOverParties(3, 2),
        method=efvfl(TopK(0.25)),
        training=Training(Optimizer("Adam", {"lr": 0.005}), batch_size=50),
        test=(part(held), labels[held]),
        setup=Setup(combine="concat"),
    )
    return federation, part(held), labels[held]


if __name__ == "__main__":
    made, rows, truth = build()
    for record in made.train(epochs=10, observe_every=5, gradient=False):
        print(f"epoch {record.epoch}: test accuracy {record.test['accuracy']:.2f}, {record.bytes_up:,} bytes up")
    print("predicted:", made.predict(rows).argmax(dim=1)[:10].tolist(), "true:", truth[:10].tolist())

"""Labels by model completion (Fu et al., USENIX Security 2022): a party's own model, and a head it trains itself.

Passive: the party trained as agreed, and afterwards completes its model with the few labels that it knows. Active: in
training it also takes longer steps where its gradient keeps its sign, so that the federation leans on its columns.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efvfl.core.local_model import represent
from efvfl.core.party import Party
from efvfl.runs.attacks import scoring
from efvfl.runs.attacks.logistic import logistic_scores
from efvfl.runs.attacks.secret_labels import SecretLabels
from efvfl.util.rng import seeded

STEPS, RATE, DECAY = 150, 0.01, 0.01
UNLABELLED, SHARPER, TRUST = 256, 0.5, 0.5  # rows beside the known ones; temperature and weight of guesses about them
GREED, MOST = 1.0, 5.0  # of the active attack: how much longer a step may be


def completion_attack(model: nn.Module, columns: Tensor, secret: SecretLabels) -> float:
    """Guess by the model and a head of one's own: the better of a head alone, and of both trained together.

    Together they also learn from guesses about rows whose labels are not known, a small form of what the paper does
    with MixMatch: rows are mixed, and guesses are sharpened.
    """
    with seeded(secret.seed):
        local = copy.deepcopy(model).eval()  # batch statistics and dropout stay as they are
        alone = logistic_scores(represent(local, columns), secret)
        head = nn.Linear(represent(local, columns[:1]).shape[1], secret.classes).to(columns.dtype)
        _learn(local, head, columns, secret)
        together = head(represent(local, columns)).detach()
    return scoring.best(secret.score(scores) for scores in (alone, together))


def columns_alone(initial: nn.Module, columns: Tensor, secret: SecretLabels) -> float:
    """The same without the federation: an untrained model, or none, and the same few labels."""
    plain = secret.score(logistic_scores(columns.flatten(1), secret))
    return scoring.best([plain, completion_attack(initial, columns, secret)])


def _learn(local: nn.Module, head: nn.Linear, columns: Tensor, secret: SecretLabels) -> None:
    local.requires_grad_(True)
    slow = [p for p in local.parameters() if p.is_floating_point()]
    groups = [{"params": head.parameters(), "lr": RATE}, {"params": slow, "lr": RATE / 10}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=DECAY)
    known, truth = columns[secret.known], F.one_hot(secret.labels[secret.known], secret.classes).to(columns.dtype)
    # Of a rare class as many labels are known as of a common one; guesses are not to forget the others.
    for step in range(STEPS):
        some = torch.randint(len(columns), (min(UNLABELLED, len(columns)),))
        with torch.no_grad():
            guess = (head(local(columns[some])) / SHARPER).softmax(dim=1)
        x, y = torch.cat([known, columns[some]]), torch.cat([truth, guess])
        order, share = torch.randperm(len(x)), float(torch.distributions.Beta(0.75, 0.75).sample())
        share = max(share, 1 - share)
        output = head(local(share * x + (1 - share) * x[order])).log_softmax(dim=1)
        each = -((share * y + (1 - share) * y[order]) * output).sum(dim=1)
        trust = TRUST * step / STEPS
        optimizer.zero_grad()
        (each[: len(known)].mean() + trust * each[len(known) :].mean()).backward()
        optimizer.step()


def make_active(party: Party) -> None:
    """Let a party take longer steps from now on: each weight moves farther the more its gradient is as it was before.

    The step of its optimiser is multiplied by 1 + gradient / last gradient, between 1 and 5, entry by entry.
    """
    block, honest = party.block, party.block.update
    before: list[Tensor | None] = [None] * len(block.parameters)

    def update() -> None:
        old = [parameter.detach().clone() for parameter in block.parameters]
        slopes = [None if p.grad is None else p.grad.detach().clone() for p in block.parameters]
        honest()
        with torch.no_grad():
            for place, (parameter, slope) in enumerate(zip(block.parameters, slopes, strict=True)):
                last = before[place]
                if slope is not None and last is not None:
                    ratio = torch.where(last != 0, 1 + GREED * slope / last, torch.ones_like(slope)).clamp(1.0, MOST)
                    parameter.copy_(old[place] + ratio * (parameter - old[place]))
                before[place] = slope if slope is not None else last

    block.update = update  # type: ignore[method-assign]

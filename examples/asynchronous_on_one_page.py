"""EF-VFL with asynchronous parties on one page, in plain PyTorch loops: no packets, no messages, no parties.

    python examples/asynchronous_on_one_page.py

The paper's step waits for all parties. Here step t is taken with the reports that are there: `arrivals[t]` says whose.
A report may be on an earlier batch. It shares nothing with the library, and the tests compare the library with it.
"""

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Compress = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Setting:
    """What is left to choose."""

    compress: Compress  # C: what becomes of a block on its way
    private_labels: bool = True  # Algorithm 2; otherwise every party holds the labels: Algorithm 1
    lr: float = 0.5  # eta
    combine: str = "mean"  # or sum, concat
    compress_down: Compress | None = None  # of cotangents, with private labels
    all_rows: bool = False  # every report covers all rows, not only its batch
    local_steps: Sequence[int] = ()  # Q of the server and of every party, with shared labels; empty: 1 each


def asynchronous(
    x: list[Tensor],
    y: Tensor,
    models: list[nn.Module],
    head: nn.Module,
    batches: list[Tensor],
    arrivals: Sequence[Collection[int]],
    s: Setting,
) -> list[Tensor]:
    """Train all blocks in place, x_0 in `head` and x_k in `models[k]`; return what is remembered of the parties."""
    parties, width = range(len(models)), models[0](x[0][:1]).shape[1]
    G = [torch.zeros(len(y), width, dtype=x[0].dtype) for _ in parties]
    G_down = [torch.zeros_like(g) for g in G]
    reported = torch.zeros(len(models), len(y), dtype=torch.bool)  # which rows each party has ever reported
    asked = [0 for _ in parties]  # the step that each party's open report is on
    turns = list(s.local_steps) or [1] * (1 + len(models))
    everything = torch.arange(len(y))

    def known(rows: Tensor) -> Tensor:
        """Return which of these rows take part: those that all parties have reported; a single one does not."""
        mask = reported[:, rows].all(dim=0)
        return mask if mask.sum() > 1 else torch.zeros_like(mask)

    for t, batch in enumerate(batches):
        for k in arrivals[t]:  # what a party sends, on time or late, both ends absorb on the rows it was asked for
            rows = everything if s.all_rows else batches[asked[k]]
            h = models[k](x[k][rows]).detach()  # its model has not moved since it was asked
            G[k][rows] += s.compress(h - G[k][rows])
            reported[k, rows] = True

        updates = {}
        for k in arrivals[t]:  # a party learns from its own batch, with all else as it is now
            rows, model = batches[asked[k]], copy.deepcopy(models[k])
            take_part = known(rows)
            for _ in range(turns[1 + k]):
                h = model(x[k][rows])
                own = G[k][rows].clone().requires_grad_() if s.private_labels else h
                parts = [own if j == k else G[j][rows] for j in parties]
                if s.private_labels:
                    cotangent = torch.zeros_like(h)
                    if take_part.any():
                        loss = loss_of(head, [part[take_part] for part in parts], y[rows][take_part], s)
                        (cotangent,) = torch.autograd.grad(loss, own)
                    if s.compress_down:
                        G_down[k][rows] += s.compress_down(cotangent - G_down[k][rows])
                        cotangent = G_down[k][rows]
                    gradient = torch.autograd.grad(h, list(model.parameters()), cotangent)
                elif take_part.any():
                    loss = loss_of(head, [part[take_part] for part in parts], y[rows][take_part], s)
                    gradient = torch.autograd.grad(loss, list(model.parameters()))
                else:
                    break
                descend(model, gradient, s.lr)
            updates[k] = model

        take_part = known(batch)
        for _ in range(turns[0] if take_part.any() else 0):  # the server learns from the batch of its own step
            loss = loss_of(head, [G[k][batch][take_part] for k in parties], y[batch][take_part], s)
            descend(head, torch.autograd.grad(loss, list(head.parameters())), s.lr)
        for k, model in updates.items():
            models[k].load_state_dict(model.state_dict())
            asked[k] = t + 1
    return G


def loss_of(head: nn.Module, parts: list[Tensor], targets: Tensor, s: Setting) -> Tensor:
    """Return the loss of the head on the combined parts."""
    if s.combine == "concat":
        return cross_entropy(head(torch.cat(parts, dim=1)), targets)
    total = torch.stack(parts).sum(0)
    return cross_entropy(head(total / len(parts) if s.combine == "mean" else total), targets)


def descend(module: nn.Module, gradient: tuple[Tensor, ...], lr: float) -> None:
    """X <- x - eta g."""
    with torch.no_grad():
        for parameter, direction in zip(module.parameters(), gradient, strict=True):
            parameter -= lr * direction


def arrivals_of(seconds: list[float], quorum: int, steps: int) -> tuple[list[list[int]], list[float]]:
    """Return whose reports each step takes and when, where party k needs `seconds[k]` for a report."""
    due, taken, times = list(seconds), [], []
    for _ in range(steps):
        now = sorted(due)[quorum - 1]
        here = [k for k, moment in enumerate(due) if moment <= now]
        for k in here:
            due[k] = now + seconds[k]
        taken.append(here)
        times.append(now)
    return taken, times


def top_k(ratio: float) -> Compress:
    """Keep the largest entries of a block, and set all others to zero."""

    def compress(block: Tensor) -> Tensor:
        flat, kept = block.flatten(), max(1, int(block.numel() * ratio))
        mask = torch.zeros_like(flat).index_fill_(0, flat.abs().topk(kept).indices, 1)
        return (flat * mask).view_as(block)

    return compress


def main() -> None:
    """Three parties hold different columns of the same rows; the last one is ten times slower than the others."""
    torch.set_num_threads(1)  # the blocks are small
    torch.manual_seed(0)
    x = [torch.randn(600, columns) for columns in (5, 4, 3)]
    y = (torch.cat(x, dim=1) @ torch.randn(12, 3)).argmax(dim=1)
    network = [nn.Linear(8, 3), *(nn.Sequential(nn.Linear(part.shape[1], 8), nn.Tanh()) for part in x)]
    for name, quorum, steps in (("all wait for all", 3, 120), ("two of three are enough", 2, 1200)):
        head, *models = copy.deepcopy(network)
        torch.manual_seed(1)
        batches = [rows for _ in range(steps // 6 + 1) for rows in torch.randperm(len(y)).split(100)][:steps]
        arrivals, times = arrivals_of([1.0, 1.0, 10.0], quorum, steps)
        asynchronous(x, y, models, head, batches, arrivals, Setting(top_k(0.2)))
        output = head(torch.stack([model(part) for model, part in zip(models, x, strict=True)]).mean(0))
        print(f"{name:<24} {steps:>5} steps in {times[-1]:>5.0f} s   loss {cross_entropy(output, y):.3f}")


if __name__ == "__main__":
    main()

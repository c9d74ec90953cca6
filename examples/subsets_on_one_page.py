"""Rows that some parties lack, and subsets of parties that predict, on one page: plain PyTorch loops over single rows.

    python examples/subsets_on_one_page.py

It shares nothing with the library but the compressors, and the tests compare the library with it. Compression, memories
and the two label modes are those of algorithms_on_one_page.py.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

Compress = Callable[[Tensor], Tensor]
Orders = Sequence[Sequence[Sequence[int]]]  # for every step and row of the batch, the parties in a random order
Parts = list[Tensor | None]  # a row's representation or surrogate at every party; None: the party does not have the row


@dataclass(frozen=True)
class Setting:
    """What there is to choose."""

    compress: Compress  # C: what becomes of a block on its way
    private_labels: bool = True  # otherwise every party holds the labels
    combine: str = "mean"  # or sum, concat
    lr: float = 0.5
    all_rows: bool = False  # every report covers all rows that a party has, not only those of the batch


class Head(nn.Module):
    """The head, and what stands in for an absent party in a concatenation."""

    def __init__(self, top: nn.Module, combine: str, widths: list[int], shows_presence: bool = False) -> None:
        """Start with zeros in place of the absent."""
        super().__init__()
        self.top, self.how, self.shows_presence = top, combine, shows_presence
        dtype = next(top.parameters()).dtype
        self.stand_ins = nn.ParameterList([torch.zeros(n, dtype=dtype) for n in widths] if combine == "concat" else [])

    def forward(self, parts: Parts) -> Tensor:
        """Predict one row from the parties that are not None."""
        here = [part for part in parts if part is not None]
        if self.how == "concat":
            joined = torch.cat([self.stand_ins[k] if part is None else part for k, part in enumerate(parts)])
        else:
            joined = torch.stack(here).sum(0) / len(here) * (len(parts) if self.how == "sum" else 1)
        if self.shows_presence:
            joined = torch.cat([joined, torch.tensor([part is not None for part in parts]).to(joined)])
        output: Tensor = self.top(joined.unsqueeze(0))
        return output


def loss_of(head: Head, rows: list[Parts], targets: Tensor, orders: Sequence[Sequence[int]] | None) -> Tensor:
    """Return the mean over rows of the loss of all present; with `orders`, also of one smaller subset of each size.

    All present weigh a third; the 2^K - 2 subsets that can be smaller share two thirds, wherever they are found. Of
    what a smaller subset learns, 70 % is what all present predict, and 30 % is the label.
    """
    total = torch.zeros(())
    for i, (parts, target) in enumerate(zip(rows, targets, strict=True)):
        everybody = head(parts)
        label = one_hot(target, everybody.shape[1]).to(everybody.dtype)
        if orders is None:
            total = total + cross_entropy(everybody, label.unsqueeze(0))
            continue
        total = total + cross_entropy(everybody, label.unsqueeze(0)) / 3
        here = [k for k in orders[i] if parts[k] is not None]
        taught = 0.3 * label + 0.7 * everybody.detach().softmax(dim=1)[0]
        for size in range(1, len(here)):
            subset = [part if k in here[:size] else None for k, part in enumerate(parts)]
            weight = comb(len(here), size) * (2 / 3) / (2 ** len(parts) - 2)
            total = total + weight * cross_entropy(head(subset), taught.unsqueeze(0))
    return total / len(rows)


def train(
    x: list[Tensor],
    y: Tensor,
    has: Tensor,
    models: list[nn.Module],
    head: Head,
    batches: list[Tensor],
    s: Setting,
    orders: Orders | None = None,
) -> list[Tensor]:
    """Train all blocks in place, where has[i, k] says whether party k has row i; return the memories.

    With `orders`, subsets are sampled: a row's subset of size n is the first n parties that have it.
    """
    parties = range(len(models))
    G = [torch.zeros(len(y), model(v[:1]).shape[1], dtype=v.dtype) for model, v in zip(models, x, strict=True)]
    for step, batch in enumerate(batches):
        own = [batch[has[batch, k]] for k in parties]  # the rows of the batch that party k has
        for k in parties:  # it reports these alone
            rows = has[:, k].nonzero().flatten() if s.all_rows else own[k]
            if len(rows):
                G[k][rows] = G[k][rows] + s.compress(models[k](x[k][rows]).detach() - G[k][rows])

        drawn = orders[step] if orders else None
        gradients: list[Sequence[Tensor | None]] = []
        for k in parties:  # private labels: the cotangent is taken at the surrogate; shared ones: at the exact h
            if not len(own[k]):
                gradients.append([None for _ in models[k].parameters()])
                continue
            h = models[k](x[k][own[k]])
            leaf = (G[k][own[k]] if s.private_labels else h.detach()).clone().requires_grad_()
            (cotangent,) = torch.autograd.grad(loss_of(head, rows_with(batch, has, G, k, leaf), y[batch], drawn), leaf)
            gradients.append(torch.autograd.grad(h, list(models[k].parameters()), cotangent))
        loss = loss_of(head, rows_with(batch, has, G), y[batch], drawn)  # the server's, on surrogates alone
        of_head = torch.autograd.grad(loss, list(head.parameters()), allow_unused=True)
        for module, gradient in zip([head, *models], [of_head, *gradients], strict=True):
            descend(module, gradient, s.lr)
    return G


def rows_with(batch: Tensor, has: Tensor, G: list[Tensor], k: int = -1, h: Tensor | None = None) -> list[Parts]:
    """Return every row of a batch as surrogates, but with `h` as what party k has of it, in the order of its rows."""
    own = iter(h if h is not None else ())
    at = lambda j, i: next(own) if j == k else G[j][i]  # noqa: E731
    return [[at(j, i) if has[i, j] else None for j in range(len(G))] for i in batch.tolist()]


def descend(module: nn.Module, gradient: Sequence[Tensor | None], lr: float) -> None:
    """X <- x - eta g."""
    with torch.no_grad():
        for parameter, direction in zip(module.parameters(), gradient, strict=True):
            if direction is not None:
                parameter.sub_(lr * direction)


def main() -> None:
    """Three parties, of which two lack half of the rows: what each subset predicts, with and without sampling."""
    torch.set_num_threads(1)  # the blocks are small
    torch.manual_seed(0)
    x = [torch.randn(300, columns) for columns in (5, 3, 4)]
    y = (torch.cat(x, dim=1) @ torch.randn(12, 3)).argmax(dim=1)
    has = torch.rand(300, 3) < torch.tensor([1.0, 0.5, 0.5])
    network = [nn.Linear(8, 3), *(nn.Sequential(nn.Linear(part.shape[1], 8), nn.Tanh()) for part in x)]
    batches = [torch.randperm(len(y))[:50] for _ in range(240)]
    orders = [[torch.randperm(3).tolist() for _ in batch] for batch in batches]
    for name, drawn in (("those present", None), ("sampled subsets", orders)):
        top, *models = copy.deepcopy(network)
        head = Head(top, "mean", [8, 8, 8])
        train(x, y, has, models, head, batches, Setting(lambda block: block, lr=1.5), drawn)
        h = [model(part).detach() for model, part in zip(models, x, strict=True)]
        for subset in ((0,), (0, 1), (0, 1, 2)):
            outputs = [head([h[k][i] if k in subset else None for k in range(3)]).argmax() for i in range(len(y))]
            accuracy = (torch.stack(outputs) == y).float().mean()
            print(f"trained for {name:<16} predicted from {subset!s:<10} accuracy {100 * accuracy:.1f} %")


if __name__ == "__main__":
    main()

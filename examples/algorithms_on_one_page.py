"""Algorithms 1 and 2 of the paper on one page, in plain PyTorch loops: no packets, no messages, no parties.

    python examples/algorithms_on_one_page.py

It shares nothing with the library but the compressors, and the tests compare the library with it.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Compress = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Setting:
    """What the paper leaves to choose."""

    compress: Compress  # C: what becomes of a block on its way
    error_feedback: bool = True  # EF-VFL sends C(h - G) and adds it to G; CVFL sends C(h), and SVFL is C(h) = h
    private_labels: bool = True  # Algorithm 2; otherwise every party holds the labels: Algorithm 1
    lr: float = 0.5  # eta
    combine: str = "mean"  # or sum, concat: phi_1 of Appendix D
    local_steps: int = 1  # Q
    all_rows: bool = False  # every report covers all rows, not only the batch
    compress_down: Compress | None = None  # of cotangents, with private labels
    compress_fusion: Compress | None = None  # of x0 on its way to the parties, with shared labels
    window: int = 1  # S: steps under way at a time; reports are computed with the models of S - 1 steps before


def vertical(
    x: list[Tensor], y: Tensor, models: list[nn.Module], head: nn.Module, batches: list[Tensor], s: Setting
) -> None:
    """Train all blocks, x_0 in `head` and x_k in `models[k]`, in place."""
    parties = range(len(models))
    width = models[0](x[0][:1]).shape[1]
    G = [torch.zeros(len(y), width, dtype=x[0].dtype) for _ in parties]  # what both ends remember of party k
    G_down = [torch.zeros_like(g) for g in G]  # the same for its cotangents
    G_0 = torch.zeros_like(parameters_to_vector(head.parameters()))  # and for x_0
    head_at_parties = copy.deepcopy(head)
    past = [copy.deepcopy(models)] * s.window  # the models that the next S reports are computed with
    for batch in batches:
        rows, reporting = torch.arange(len(y)) if s.all_rows else batch, past.pop(0)

        for k in parties:  # each party reports: C_k = C(H_k(x_k) - G_k), and both ends add C_k to G_k
            h = reporting[k](x[k][rows]).detach()
            G[k][rows] = remember(G[k][rows], h, s.compress, s)
        surrogates = [G[k][batch] for k in parties]

        x_0 = parameters_to_vector(head.parameters()).detach().clone()
        if s.compress_fusion:  # parties work with G_0, the server with its exact x_0
            x_0 = G_0 = remember(G_0, x_0, s.compress_fusion, s)
        vector_to_parameters(x_0.clone(), head_at_parties.parameters())

        updates = []
        for k in parties:  # each party takes Q steps on its block; all other blocks are as they were at the start
            model = copy.deepcopy(models[k])
            for q in range(s.local_steps):
                used = reporting[k] if q == 0 else model
                h = used(x[k][batch])
                if s.private_labels:  # equation (5): the cotangent is taken at the surrogate, and sent back
                    leaf = surrogates[k].clone().requires_grad_()
                    parts = [leaf if j == k else surrogates[j] for j in parties]
                    (cotangent,) = torch.autograd.grad(loss_of(head, parts, y[batch], s), leaf)
                    if s.compress_down:
                        cotangent = G_down[k][batch] = remember(G_down[k][batch], cotangent, s.compress_down, s)
                    gradient = torch.autograd.grad(h, list(used.parameters()), cotangent)
                else:  # equation (3): at its own exact representation, and the others' surrogates
                    parts = [h if j == k else surrogates[j] for j in parties]
                    loss = loss_of(head_at_parties, parts, y[batch], s)
                    gradient = torch.autograd.grad(loss, list(used.parameters()))
                descend(model, gradient, s.lr)
            updates.append(model)

        for _ in range(s.local_steps):  # the server takes Q steps on x_0, on surrogates alone
            loss = loss_of(head, surrogates, y[batch], s)
            descend(head, torch.autograd.grad(loss, list(head.parameters())), s.lr)
        for model, updated in zip(models, updates, strict=True):
            model.load_state_dict(updated.state_dict())
        past.append(copy.deepcopy(models))


def remember(G: Tensor, value: Tensor, compress: Compress, s: Setting) -> Tensor:
    """Return what both ends hold after `value` was sent: G + C(value - G), or C(value) without error feedback."""
    return G + compress(value - G) if s.error_feedback else compress(value)


def loss_of(head: nn.Module, parts: list[Tensor], targets: Tensor, s: Setting) -> Tensor:
    """Return phi(x_0, h_1, ..., h_K): the loss of the head on the combined parts."""
    if s.combine == "concat":
        return cross_entropy(head(torch.cat(parts, dim=1)), targets)
    total = torch.stack(parts).sum(0)
    return cross_entropy(head(total / len(parts) if s.combine == "mean" else total), targets)


def descend(module: nn.Module, gradient: tuple[Tensor, ...], lr: float) -> None:
    """X <- x - eta g."""
    with torch.no_grad():
        for parameter, direction in zip(module.parameters(), gradient, strict=True):
            parameter -= lr * direction


def top_k(ratio: float) -> Compress:
    """Keep the largest entries of a block, and set all others to zero."""

    def compress(block: Tensor) -> Tensor:
        flat, kept = block.flatten(), max(1, int(block.numel() * ratio))
        mask = torch.zeros_like(flat).index_fill_(0, flat.abs().topk(kept).indices, 1)
        return (flat * mask).view_as(block)

    return compress


def main() -> None:
    """Three parties hold different columns of the same rows; the label depends on all of them."""
    torch.set_num_threads(1)  # the blocks are small
    torch.manual_seed(0)
    x = [torch.randn(600, columns) for columns in (5, 3, 4)]
    y = (torch.cat(x, dim=1) @ torch.randn(12, 3)).argmax(dim=1)
    network = [nn.Linear(8, 3), *(nn.Sequential(nn.Linear(part.shape[1], 8), nn.Tanh()) for part in x)]
    methods = {
        "SVFL, nothing compressed": Setting(lambda block: block, error_feedback=False),
        "CVFL, top-k 5 %": Setting(top_k(0.05), error_feedback=False),
        "EF-VFL, top-k 5 %, private labels": Setting(top_k(0.05)),
        "EF-VFL, top-k 5 %, shared labels": Setting(top_k(0.05), private_labels=False),
    }
    for name, setting in methods.items():
        head, *models = copy.deepcopy(network)
        batches = [rows for _ in range(40) for rows in torch.randperm(len(y)).split(100)]
        vertical(x, y, models, head, batches, setting)
        output = head(torch.stack([model(part) for model, part in zip(models, x, strict=True)]).mean(0))
        accuracy = (output.argmax(dim=1) == y).float().mean()
        print(f"{name:<36} loss {cross_entropy(output, y):.3f}   accuracy {100 * accuracy:.1f} %")


if __name__ == "__main__":
    main()

"""What saves rounds, on one page, in plain PyTorch loops: uniform rounding, first visits, cached steps, a window.

    python examples/fewer_rounds_on_one_page.py

Algorithm 2 (private labels) with everything that this library adds to it; `algorithms_on_one_page.py` has the paper's
algorithms as they are. It shares nothing with the library, and the tests compare the library with it.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from math import cos, radians

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

Compress = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Setting:
    """What there is to choose."""

    compress: Compress  # C: what becomes of a block on its way up
    error_feedback: bool = True
    start_at_mean: bool = False  # whether all rows are taken for the mean of the first report's until they are reported
    compress_down: Compress | None = None  # of cotangents, with error feedback of its own
    first: Compress | None = None  # in place of C, for the rows of a report that were never reported before
    cached_steps: int = 0  # R: further updates of every block after each round, from what is remembered
    cached_batches: int = 20  # W: of the last so many batches
    angle: float = 60.0  # degrees: a row that has turned farther weighs nothing; 180: all weigh alike
    window: int = 1  # S: rounds under way at a time
    lr: float = 0.5


def vertical(
    x: list[Tensor], y: Tensor, models: list[nn.Module], head: nn.Module, batches: list[Tensor], s: Setting
) -> None:
    """Train all blocks, x_0 in `head` and x_k in `models[k]`, in place; the head works on the mean."""
    parties = range(len(models))
    width = models[0](x[0][:1]).shape[1]
    G = [torch.zeros(len(y), width, dtype=x[0].dtype) for _ in parties]  # what both ends remember of party k
    G_down = [torch.zeros_like(g) for g in G]  # the same for its cotangents
    visited = torch.zeros(len(y), dtype=torch.bool)
    past = [copy.deepcopy(models)] * s.window  # the models that the next S reports are computed with
    ring: dict[int, tuple[Tensor, list[Tensor], list[Tensor], Tensor, Tensor]] = {}  # the work set
    for t, batch in enumerate(batches):
        reporting = past.pop(0)

        h = [reporting[k](x[k][batch]) for k in parties]
        for k in parties:  # each party reports C(h - G), and both ends add it to G
            if t == 0 and s.start_at_mean:
                G[k][:] = h[k].detach().mean(dim=0)
            residual = h[k].detach() - G[k][batch] if s.error_feedback else h[k].detach()
            sent = in_two_parts(residual, ~visited[batch], s.compress, s.first)
            G[k][batch] = G[k][batch] + sent if s.error_feedback else sent
        visited[batch] = True

        combined = torch.stack([G[k][batch] for k in parties]).mean(0).requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(head(combined), y[batch]), combined)
        cotangents = [slope / len(models) for _ in parties]  # the server answers each party
        for k in parties:
            if s.compress_down:
                G_down[k][batch] += s.compress_down(cotangents[k] - G_down[k][batch])
                cotangents[k] = G_down[k][batch]

        for k in parties:  # each party takes a step, along the gradient of the model that it reported with
            descend(models[k], torch.autograd.grad(h[k], list(reporting[k].parameters()), cotangents[k]), s.lr)
        descend(head, torch.autograd.grad(cross_entropy(head(combined), y[batch]), list(head.parameters())), s.lr)

        ring[t % s.cached_batches] = (batch, [part.detach() for part in h], cotangents, combined.detach(), slope)
        for turn in range(s.cached_steps):  # and R more, from the batches of the ring in turn
            places = sorted(ring)
            rows, h_then, cotangent, combined_then, slope_then = ring[places[(t * s.cached_steps + turn) % len(places)]]
            for k in parties:
                now = models[k](x[k][rows])
                given = cotangent[k] * weights(h_then[k], now.detach(), s.angle)
                descend(models[k], torch.autograd.grad(now, list(models[k].parameters()), given), s.lr)
            leaf = combined_then.clone().requires_grad_()
            output = head(leaf)
            of_output, now = torch.autograd.grad(cross_entropy(output, y[rows]), (output, leaf), retain_graph=True)
            given = of_output * weights(slope_then, now, s.angle)
            descend(head, torch.autograd.grad(output, list(head.parameters()), given), s.lr)
        past.append(copy.deepcopy(models))


def in_two_parts(residual: Tensor, new: Tensor, compress: Compress, first: Compress | None) -> Tensor:
    """Return what arrives of a report: the rows that are new go through `first`, the others through `compress`."""
    if first is None or not new.any():
        return compress(residual)
    arrived = torch.empty_like(residual)
    arrived[new] = first(residual[new])
    if not new.all():
        arrived[~new] = compress(residual[~new])
    return arrived


def weights(then: Tensor, now: Tensor, angle: float) -> Tensor:
    """Return the cosine between a row then and now, and zero beyond the angle; ones if the angle is 180 degrees."""
    if angle == 180:
        return torch.ones_like(now[:, :1])
    cosine = cosine_similarity(then, now, dim=1)
    return torch.where(cosine >= cos(radians(angle)), cosine, 0.0).unsqueeze(1)


def descend(module: nn.Module, gradient: tuple[Tensor, ...], lr: float) -> None:
    """X <- x - eta g."""
    with torch.no_grad():
        for parameter, direction in zip(module.parameters(), gradient, strict=True):
            parameter -= lr * direction


def uniform(levels: int) -> Compress:
    """Round every entry to the nearest of 2 L + 1 equally spaced values, up to the largest magnitude of the block."""

    def compress(block: Tensor) -> Tensor:
        top = block.abs().max()
        if top == 0:
            return block
        symbols = torch.sign(block) * torch.floor(block.abs() * (levels / top) + 0.5)
        return symbols * (top / levels)

    return compress


def top_k(ratio: float) -> Compress:
    """Keep the largest entries of a block, and set all others to zero."""

    def compress(block: Tensor) -> Tensor:
        flat, kept = block.flatten(), max(1, int(block.numel() * ratio))
        mask = torch.zeros_like(flat).index_fill_(0, flat.abs().topk(kept).indices, 1)
        return (flat * mask).view_as(block)

    return compress


def main() -> None:
    """Three parties hold different columns of the same rows; count the rounds until nine rows of ten are right."""
    torch.set_num_threads(1)  # the blocks are small
    torch.manual_seed(0)
    x = [torch.randn(2_000, columns) for columns in (5, 3, 4)]
    y = (torch.cat(x, dim=1) @ torch.randn(12, 3)).argmax(dim=1)
    network = [nn.Linear(8, 3), *(nn.Sequential(nn.Linear(part.shape[1], 8), nn.Tanh()) for part in x)]
    settings = {
        "SVFL, nothing compressed": Setting(lambda block: block, error_feedback=False),
        "EF-VFL, top-k 10 %": Setting(top_k(0.1)),
        "EF-VFL, top-k 10 %, first visits 15 levels": Setting(top_k(0.1), first=uniform(15)),
        "EF-VFL, ternary": Setting(uniform(1)),
        "EF-VFL, ternary, window of 4": Setting(uniform(1), window=4),
        "EF-VFL, ternary, 9 cached steps": Setting(uniform(1), cached_steps=9),
    }
    for name, setting in settings.items():
        head, *models = copy.deepcopy(network)
        rounds, accuracy = 0, 0.0
        batches = torch.randperm(len(y), generator=torch.Generator().manual_seed(1)).split(100)
        while accuracy < 0.9 and rounds < 400:
            rounds += 10
            trial_head, *trial = copy.deepcopy([head, *models])
            vertical(x, y, trial, trial_head, [batches[i % len(batches)] for i in range(rounds)], setting)
            output = trial_head(torch.stack([model(part) for model, part in zip(trial, x, strict=True)]).mean(0))
            accuracy = float((output.argmax(dim=1) == y).float().mean())
        print(f"{name:<44} {100 * accuracy:.1f} % after {rounds} rounds")


if __name__ == "__main__":
    main()

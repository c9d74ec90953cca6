"""Small problems that the tests share."""

import copy
from dataclasses import fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from efvfl import Agreement, Federation, Link, Method, Optimizer, Setup, TopK, Training, federate, svfl

Labels = Literal["private", "shared"]
ROWS, COLUMNS, WIDTH, CLASSES = 60, (5, 3, 4), 4, 3


def columns(dtype: torch.dtype = torch.float64, rows: int = ROWS, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, n, generator=generator, dtype=dtype) for n in COLUMNS]


def classes(x: list[Tensor], seed: int = 1) -> Tensor:
    """Labels that depend on the columns of all parties."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(sum(COLUMNS), CLASSES, generator=generator, dtype=torch.float64)
    return (torch.cat(x, dim=1).double() @ weight).argmax(dim=1)


def local_models(dtype: torch.dtype = torch.float64, seed: int = 2) -> list[nn.Module]:
    """Different for every party: one has a hidden layer."""
    _seed(seed)
    models: list[nn.Module] = [
        nn.Sequential(nn.Linear(COLUMNS[0], WIDTH), nn.Sigmoid()),
        nn.Sequential(nn.Linear(COLUMNS[1], 6), nn.Tanh(), nn.Linear(6, WIDTH)),
        nn.Linear(COLUMNS[2], WIDTH, bias=False),
    ]
    return [model.to(dtype) for model in models]


def head(combine: str = "mean", dtype: torch.dtype = torch.float64, seed: int = 3) -> nn.Module:
    _seed(seed)
    return nn.Linear(WIDTH * (3 if combine == "concat" else 1), CLASSES).to(dtype)


def problem(method: Method | None = None, dtype: torch.dtype = torch.float64, **options: Any) -> Federation:
    """A federation of three parties; any argument of `federate` may be given.

    What the agreement has no use for is left out of the method, and a compressor that it needs is put in, so that one
    method can be tried with all of them.
    """
    x = columns(dtype)
    agreement: Agreement = options.get("agreement") or Agreement()
    shared = agreement.shared
    if method and not agreement.private:
        method = replace(method, down=Link())
    if method and (shared is None or shared.fusion != "compress"):
        method = replace(method, fusion=Link())
    elif method and not method.compresses_fusion:
        method = replace(method, fusion=Link(TopK(0.5), method.up.memory))
    given: dict[str, Any] = {
        "features": x,
        "labels": classes(x),
        "models": local_models(dtype),
        "head": head(options.get("combine", "mean"), dtype),
        "method": method or svfl(),
        "optimizer": Optimizer("SGD", {"lr": 0.5}),
    }
    return federate_flat(**(given | options))


def federate_flat(**options: Any) -> Federation:
    """Call `federate` with the fields of `Training` and `Setup` given by name beside its own arguments."""
    for name, made in (("training", Training), ("setup", Setup)):
        chosen = {f.name: options.pop(f.name) for f in fields(made) if f.name in options}
        options[name] = made(**{key: value for key, value in chosen.items() if value is not None or key == "seed"})
    return federate(**options)


def parameters(federation: Federation) -> list[Tensor]:
    modules = [federation.fusion, *federation.models]
    return [p.detach().clone() for module in modules for p in module.parameters()]


def everything(federation: Federation) -> list[Tensor]:
    """Parameters, buffers and memories of all participants."""
    tensors = parameters(federation)
    tensors += [b.clone() for module in (federation.fusion, *federation.models) for b in module.buffers()]
    tensors += [g.clone() for pair in memories(federation) for g in pair]
    return tensors


def memories(federation: Federation) -> list[list[Tensor]]:
    """For every link with a memory, the copies of G that different participants hold."""
    links: list[list[Tensor]] = []

    def add(*channels: Any) -> None:
        copies = [c.memory.g for c in channels if c is not None and c.memory.keeps]
        if copies:
            links.append(copies)

    server: Any = federation.server.label_mode
    modes: dict[str, Any] = {name: party.label_mode for name, party in federation.parties.items()}
    for name, party in federation.parties.items():
        others = [mode.peers[name] for mode in modes.values() if name in getattr(mode, "peers", {})]
        add(party.up, federation.server.channels[name], *others)
        if hasattr(server, "downs"):
            add(modes[name].down, server.downs[name])
    if hasattr(getattr(server, "sender", None), "channel"):
        add(server.sender.channel, *(mode.receiver.channel for mode in modes.values()))
    return links


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    """Whether two lists of tensors are equal bit for bit."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def close(left: list[Tensor], right: list[Tensor], tolerance: float = 1e-12) -> bool:
    return len(left) == len(right) and all(
        torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(left, right, strict=True)
    )


def _seed(seed: int) -> None:
    """Seed what models are drawn from; `torch.manual_seed` notes the whole stack for each kind of device besides."""
    torch.default_generator.manual_seed(seed)


def copies(modules: list[nn.Module]) -> list[nn.Module]:
    return [copy.deepcopy(module) for module in modules]

"""Local models for images: the ResNet18 of the paper's CIFAR runs, and the per-view network of MVCNN in two sizes."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efvfl.errors import ConfigError

Norm = Literal["batch", "group", "none"]


def _norm(kind: Norm, channels: int) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        return nn.GroupNorm(min(8, channels), channels)
    raise ConfigError(f"expected norm 'batch', 'group' or 'none', got {kind!r}.")


class _Residual(nn.Module):
    """A residual block: two 3 x 3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = _norm(norm, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = _norm(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def resnet18(inputs: int, width: int, channels: int = 32, norm: Norm = "batch", stride: int = 1) -> nn.Module:
    """Return ResNet18 for small images: a 3 x 3 stem of this stride, no max-pooling, `channels` to 8 * `channels`.

    The paper's runs have half the usual channels, 32, 64, 128, 256, and a stem of stride 1; one of stride 2 leaves a
    quarter of the pixels, and of the computing.
    """
    sizes = [channels, channels, 2 * channels, 4 * channels, 8 * channels]
    layers: list[nn.Module] = [nn.Conv2d(inputs, channels, 3, stride, 1, bias=False), _norm(norm, channels), nn.ReLU()]
    for i, (before, after) in enumerate(pairwise(sizes)):
        layers += [_Residual(before, after, 1 if i == 0 else 2, norm), _Residual(after, after, 1, norm)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], width))


def mvcnn(
    shape: tuple[int, int, int],
    width: int,
    size: Literal["baseline", "small"] = "small",
    channels: int = 16,
    norm: Norm = "none",
) -> nn.Module:
    """Return the network for one view of shape (channels, height, width).

    - `baseline`: the network in C-VFL's code, for large views (convolution 11 x 11 of stride 4, then 3 x 3).
    - `small`: for views of 32 x 32 (5 x 5 of stride 2, then 3 x 3), with `channels` and 2 * `channels`, and a
      normalisation after each.
    """
    if size == "baseline":
        layers = [
            nn.Conv2d(shape[0], 64, 11, 4, 2),
            nn.ReLU(),
            nn.MaxPool2d(5, 3),
            nn.Conv2d(64, 256, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(5, 3),
        ]
    elif size == "small":
        layers = [
            nn.Conv2d(shape[0], channels, 5, 2, 2),
            _norm(norm, channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, 1, 1),
            _norm(norm, 2 * channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    else:
        raise ConfigError(f"expected mvcnn's size 'baseline' or 'small', got {size!r}.")
    try:
        flat = nn.Sequential(*layers, nn.Flatten())(torch.zeros(1, *shape)).shape[1]
    except RuntimeError as error:
        raise ConfigError(f"views of shape {shape} are too small for mvcnn's size {size!r}: {error}") from error
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, width))

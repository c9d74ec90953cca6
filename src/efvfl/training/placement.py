"""Device and precision of a local model: each participant's own choice, invisible to the others.

Everything around the model (columns, memories, codecs, the fusion model) stays on the CPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from efvfl.errors import ConfigError, describe, nearest

Devices = str | Mapping[str, str]  # of all local models, or by party: those that are left out compute on the CPU


def of_parties(devices: Devices, names: Sequence[str]) -> dict[str, str]:
    """Return the device of every party by its name."""
    if isinstance(devices, str):
        return dict.fromkeys(names, devices)
    if not isinstance(devices, Mapping):
        raise ConfigError(f"device: expected 'cuda' or {{'{names[0]}': 'cuda'}}, got {describe(devices)}.")
    for name in devices:
        if name not in names:
            raise ConfigError(f"device has {name!r}, which is not a party. {nearest(str(name), names)}")
    return {name: devices.get(name, "cpu") for name in names}


def find(name: str) -> torch.device:
    """Return the device of this name; a worker gets the GPU of its local rank."""
    if name == "cpu":
        return torch.device("cpu")
    kinds = {"cuda": torch.cuda, "mps": torch.backends.mps}
    if name not in kinds:
        raise ConfigError(f"device: got {describe(name)}. {nearest(str(name), ('cpu', *kinds))}")
    found = kinds[name]
    if not found.is_available():
        raise ConfigError(
            f"device = {name!r} is not available to torch on this machine: install a build of torch for it, or set "
            "device = 'cpu'."
        )
    if name == "mps":
        return torch.device("mps")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def place(module: nn.Module, device: str = "cpu", precision: str = "float32") -> nn.Module:
    """Return the module, changed to compute on a device, optionally in bfloat16; inputs and outputs stay on the CPU.

    Parameters, gradients and outputs are float32 in both precisions. With the CPU and float32 nothing changes.

    >>> model = place(nn.Linear(3, 2), precision="bfloat16")
    >>> model(torch.ones(1, 3)).dtype
    torch.float32
    """
    if precision not in ("float32", "bfloat16"):
        raise ConfigError(f"precision: got {describe(precision)}. {nearest(str(precision), ('float32', 'bfloat16'))}")
    if (device, precision) == ("cpu", "float32"):
        return module
    place = find(device)
    lower = precision == "bfloat16"
    plain = module.to(place).forward

    def forward(x: Tensor) -> Tensor:
        if place.type != "cpu":  # seed the device's generator for dropout, like the CPU's, with the key of this pass
            getattr(torch, place.type).manual_seed(torch.initial_seed())
        with torch.autocast(place.type, torch.bfloat16) if lower else contextlib.nullcontext():
            h: Tensor = plain(x.to(place))
        return h.to("cpu", torch.float32 if lower else h.dtype)

    module.forward = forward  # not a wrapper module, which would rename every parameter in checkpoints
    return module

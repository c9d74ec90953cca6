"""Where a local model computes, and how precisely: a participant's own choice, which no other sees or must share.

Everything around the model (columns, memories, codecs, the fusion model) stays on the CPU.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from efvfl.errors import ConfigError


def find(name: str) -> torch.device:
    """Return the device of that name; of several GPUs, a worker of a crew gets the one of its number."""
    if name == "cpu":
        return torch.device("cpu")
    found = {"cuda": torch.cuda, "mps": torch.backends.mps}[name]
    if not found.is_available():
        raise ConfigError(
            f"device = {name!r} came, but torch finds none on this machine: install a build of torch for it, or set "
            "device = 'cpu'."
        )
    if name == "mps":
        return torch.device("mps")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def place(module: nn.Module, device: str = "cpu", precision: str = "float32") -> nn.Module:
    """Have a module compute on a device, perhaps in bfloat16; it takes and gives tensors of the CPU as before.

    Parameters, gradients and what the module returns are float32 either way. A module that is to compute on the CPU in
    float32 is left as it is.
    """
    if (device, precision) == ("cpu", "float32"):
        return module
    place = find(device)
    lower = precision == "bfloat16"
    plain = module.to(place).forward

    def forward(x: Tensor) -> Tensor:
        if place.type != "cpu":  # a device draws its dropout by itself: from the key of this pass, as the CPU does
            getattr(torch, place.type).manual_seed(torch.initial_seed())
        with torch.autocast(place.type, torch.bfloat16, enabled=lower):
            h: Tensor = plain(x.to(place))
        return h.to("cpu", torch.float32 if lower else h.dtype)

    module.forward = forward  # in place of a wrapper, which would give every parameter another name in checkpoints
    return module

"""A block of variables x_k: a module, the optimiser that moves it and the schedule of its learning rate."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer as TorchOptimizer

from efvfl.core.gradients import backward
from efvfl.core.optimizer import Optimizer
from efvfl.errors import CheckpointError, ProtocolError


def _is_plain(optimizer: TorchOptimizer | None) -> bool:
    """Whether it is SGD with a rate and nothing else: its update is then one line, and bit for bit the same.

    torch's own `step` walks through options and hooks, which took a sixth of a small step.
    """
    if type(optimizer) is not torch.optim.SGD:
        return False
    return all(not value or name in ("params", "lr", "dampening") for name, value in optimizer.param_groups[0].items())


class Block:
    """x_k and how it learns."""

    def __init__(self, module: nn.Module, optimizer: Optimizer | None, steps_per_epoch: int = 1) -> None:
        """Take over the module: it trains in place. Without an optimiser it is only a copy that others write to."""
        if not module.training:
            module.train()  # parts that were frozen on purpose inside a module in training mode stay so
        self.module = module
        self._everything = list(module.parameters())
        self.parameters = [p for p in self._everything if p.requires_grad]
        self.dtype = next((p.dtype for p in self._everything), torch.get_default_dtype())
        self.period = 1 if optimizer and optimizer.scheduler_every == "step" else steps_per_epoch  # of the scheduler
        # A fusion model may have no parameters at all, and torch refuses to optimise nothing.
        self.optimizer = optimizer.build(self.parameters) if optimizer and self.parameters else None
        self.scheduler = optimizer.build_scheduler(self.optimizer) if optimizer and self.optimizer else None
        self._plain = self.scheduler is None and _is_plain(self.optimizer)

    @property
    def rate(self) -> float:
        """The learning rate; infinite where nothing is learnt."""
        return float(self.optimizer.param_groups[0]["lr"]) if self.optimizer else float("inf")

    def set_rate(self, rate: float) -> None:
        """Change the learning rate."""
        for group in self.optimizer.param_groups if self.optimizer else ():
            group["lr"] = rate

    def zero_grad(self) -> None:
        """Forget the last gradient."""
        for parameter in self.parameters:
            parameter.grad = None

    def leaves(self) -> dict[str, Tensor]:
        """Return copies of the parameters that learn, for a forward pass whose graph must outlive an update."""
        return {name: copied(p) for name, p in self.module.named_parameters() if p.requires_grad}

    def take_gradients(self, leaves: Mapping[str, Tensor]) -> None:
        """Make the gradients of such copies those of the parameters."""
        named = dict(self.module.named_parameters()) if leaves else {}
        for name, leaf in leaves.items():
            named[name].grad = leaf.grad

    def update(self) -> None:
        """Move x along its gradient, as the optimiser does."""
        if self.optimizer is None:
            return
        if not self._plain:
            self.optimizer.step()
            return
        rate = self.optimizer.param_groups[0]["lr"]
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.detach().add_(parameter.grad, alpha=-rate)

    def descend(self, loss: Tensor) -> None:
        """Take one step down a loss."""
        self.zero_grad()
        if loss.requires_grad:
            backward(loss)
        self.update()

    def descend_from(self, h: Tensor, cotangent: Tensor, leaves: Mapping[str, Tensor]) -> None:
        """Take one step down the loss whose derivative by the module's output `h` is `cotangent`.

        `leaves` are the copies of the parameters that `h` was computed with, if any.
        """
        self.zero_grad()
        if h.requires_grad:
            backward(h, cotangent)
        self.take_gradients(leaves)
        self.update()

    def end_step(self, step: int) -> None:
        """Move the learning rate at the end of an epoch, or of every step."""
        if self.scheduler is not None and (step + 1) % self.period == 0:
            self.scheduler.step()

    def end_steps(self, steps: range) -> None:
        """Move the learning rate as at the ends of these steps."""
        if self.scheduler is not None:
            first_end = steps.start + -(steps.start + 1) % self.period
            for step in range(first_end, steps.stop, self.period):
                self.end_step(step)

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of all buffers."""
        return copies_of_buffers(self.module)

    def tensors(self) -> list[Tensor]:
        """Return parameters and buffers themselves."""
        # Buffers are asked for anew: a module may replace one.
        return [*self._everything, *self.module.buffers()] if _has_buffers(self.module) else [*self._everything]

    def size(self) -> int:
        """Return the length of `vector`, without making it."""
        return sum(tensor.numel() for tensor in self.tensors())

    def exact_size(self) -> int:
        """Return the length of `exact_vector`, without making it."""
        return sum(tensor.numel() for tensor in self._all_tensors())

    def vector(self) -> Tensor:
        """Return x_k as one vector: parameters and buffers."""
        return flatten(self.tensors(), self.dtype)

    def load_vector(self, vector: Tensor) -> None:
        """Take over the values of a vector of the same layout."""
        unflatten(vector, self.tensors())

    def _all_tensors(self) -> list[Tensor]:
        tensors = self.tensors()
        if self.optimizer is not None:
            for state in (self.optimizer.state.get(parameter, {}) for parameter in self.parameters):
                tensors += [state[name] for name in sorted(state) if isinstance(state[name], Tensor)]
        return tensors

    def exact_vector(self) -> Tensor:
        """Return everything that decides the next update, optimiser state included, as float64."""
        return flatten(self._all_tensors(), torch.float64)

    def load_exact_vector(self, vector: Tensor) -> None:
        """Take over another's `exact_vector`."""
        unflatten(vector, self._all_tensors())

    def learnt(self) -> bytes:
        """Return for every parameter whether the optimiser has tensors of it: torch makes them at its first update."""
        state = self.optimizer.state if self.optimizer is not None else {}
        return bytes(bool(state.get(parameter)) for parameter in self.parameters)

    def take_over(self, vector: Tensor, learnt: bytes) -> None:
        """Take over the `exact_vector` of a copy that may have learnt more than this one, or leave all as it is."""
        before = self.state_dict()
        try:
            if learnt != self.learnt() and self.optimizer is not None:
                for parameter, has in zip(self.parameters, learnt, strict=True):
                    parameter.grad = torch.zeros_like(parameter) if has else None
                self.optimizer.step()  # which makes the tensors that are overwritten now
            self.load_exact_vector(vector)
        except ProtocolError:
            self.load_state_dict(before)
            raise

    def digest(self) -> bytes:
        """Return 8 bytes that tell two copies apart."""
        return hashlib.blake2b(self.exact_vector().numpy().tobytes(), digest_size=8).digest()

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot of module, optimiser and scheduler."""
        state = {
            "module": self.module.state_dict(),
            "buffers": self.buffers(),  # also those that torch leaves out of a module's state
            "optimizer": self.optimizer.state_dict() if self.optimizer else {},
            "scheduler": self.scheduler.state_dict() if self.scheduler else {},
        }
        return copy.deepcopy(state)  # torch hands out live tensors

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._check_learning(state)
        state = copy.deepcopy(state)  # torch would keep the caller's tensors
        self.module.load_state_dict(state["module"])
        unflatten(flatten(list(state["buffers"].values()), torch.float64), list(self.module.buffers()))
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])

    def _check_learning(self, state: dict[str, Any]) -> None:
        """Refuse the state of another optimiser: torch takes it, and fails at the next update."""
        if bool(state["scheduler"]) != (self.scheduler is not None):
            have = "has one" if self.scheduler else "has none"
            raise CheckpointError(f"the saved state is of another learning-rate scheduler: this run {have}.")
        saved = {name for group in state["optimizer"].get("param_groups", []) for name in group}
        own = {name for group in self.optimizer.param_groups for name in group} if self.optimizer else set()
        if saved != own:
            raise CheckpointError(
                "the saved state is of another optimiser or scheduler: only the saved one has the options "
                f"{sorted(saved - own)}, only this one {sorted(own - saved)}."
            )


def copies_of_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of all buffers by name: running statistics and the like."""
    return {name: buffer.clone() for name, buffer in module.named_buffers()} if _has_buffers(module) else {}


def _has_buffers(module: nn.Module) -> bool:
    """Whether there is any: most small models have none, and every step asks."""
    return bool(module._buffers) or any(_has_buffers(part) for part in module._modules.values() if part is not None)


def aside(module: nn.Module, *inputs: Tensor, values: dict[str, Tensor] | None = None) -> Tensor:
    """Run a module on copies of its buffers, or on given buffers and parameters, so that its own stay as they are."""
    if values is None:
        values = copies_of_buffers(module)
    output: Tensor = functional_call(module, values, inputs) if values else module(*inputs)
    return output


def copied(parameter: Tensor) -> Tensor:
    """Return a copy that gradients are found for, with a graph of its own."""
    return parameter.detach().clone().requires_grad_()


def flatten(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return all entries one after another."""
    return torch.cat([t.detach().reshape(-1).to(dtype) for t in tensors]) if tensors else torch.zeros(0, dtype=dtype)


def unflatten(vector: Tensor, into: list[Tensor]) -> None:
    """Copy a flat vector back into tensors of the layout it was made from."""
    expected = sum(tensor.numel() for tensor in into)
    if vector.numel() != expected:
        raise ProtocolError(
            f"the fusion model: expected {expected:,} numbers, got {vector.numel():,}: "
            "do all participants build the same fusion model and optimiser?"
        )
    start = 0
    for tensor in into:
        tensor.detach().copy_(vector[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()

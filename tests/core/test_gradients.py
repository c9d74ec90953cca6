"""Backward passes by torch's engine are those of torch, to the last bit, and what is wrong is still refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from efvfl.core.block import Block
from efvfl.core.gradients import backward, slope_by
from efvfl.core.optimizer import Optimizer


def network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3)), torch.randn(7, 5)


def gradients(module: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def test_a_slope_goes_back_as_in_torch() -> None:
    ours, x = network()
    theirs, slope = network()[0], torch.randn(7, 3)
    backward(ours(x), slope)
    theirs(x).backward(slope)
    assert len(gradients(ours)) == 4
    assert all(map(torch.equal, gradients(ours), gradients(theirs)))
    backward(ours(x), slope)  # adds up
    theirs(x).backward(slope)
    assert all(map(torch.equal, gradients(ours), gradients(theirs)))


def test_a_loss_goes_back_as_in_torch() -> None:
    (ours, x), (theirs, _), labels = network(), network(), torch.arange(7) % 3
    backward(cross_entropy(ours(x), labels))
    cross_entropy(theirs(x), labels).backward()
    assert all(map(torch.equal, gradients(ours), gradients(theirs)))


def test_the_slope_by_one_tensor_moves_no_gradient() -> None:
    (module, x), labels = network(), torch.arange(7) % 3
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(cross_entropy(module(leaf), labels), leaf)
    assert torch.equal(slope_by(cross_entropy(module(leaf), labels), leaf), expected)
    assert leaf.grad is None
    assert not gradients(module)


def test_what_does_not_fit_is_refused() -> None:
    module, x = network()
    with pytest.raises(RuntimeError, match="shape"):
        backward(module(x), torch.randn(7, 4))
    with pytest.raises(RuntimeError, match="not have been used"):
        slope_by(module(x).sum(), x.clone().requires_grad_())


def test_torch_sees_that_a_block_has_moved() -> None:
    """A graph of before an update must not be differentiated after it: torch knows by the parameters' versions."""
    module, x = network()
    block = Block(module, Optimizer("SGD", {"lr": 0.5}))
    stale, before = module(x), [parameter.detach().clone() for parameter in module.parameters()]
    block.descend(module(x).square().mean())
    assert not any(map(torch.equal, before, module.parameters()))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(stale, torch.ones(7, 3))

"""Copies of the fusion model that repeat updates: what they refuse, and how one that was away takes over another."""

import pytest
import torch
from torch import nn

from efvfl.core.block import Block
from efvfl.core.channel import Packets, send_bytes, send_exactly
from efvfl.core.fusion_replicas import MENDS, PER_NUMBER, ReplicaReceiver, ReplicaSender
from efvfl.core.optimizer import Optimizer
from efvfl.errors import ProtocolError

NUMBERS = 3 * 2 + 2


def block(seed: int, optimizer: Optimizer | None = None) -> Block:
    torch.manual_seed(seed)
    return Block(nn.Linear(3, 2), optimizer or Optimizer("Adam", {"lr": 0.1}), 4)


def learn(made: Block) -> None:
    made.descend(made.module(torch.ones(5, 3)).square().mean())


def pair() -> tuple[ReplicaSender, ReplicaReceiver]:
    """A server's copy that has learnt, and a party's that has not."""
    sender, receiver = ReplicaSender(block(0), ["a"], 2), ReplicaReceiver(block(1), 2)
    learn(sender.block)
    return sender, receiver


def test_a_copy_that_was_away_takes_over_parameters_and_what_the_optimiser_has_learnt() -> None:
    sender, receiver = pair()
    assert receiver.block.digest() != sender.block.digest()
    receiver.catch_up(sender.catch_up("a"), range(3))
    assert receiver.started
    assert receiver.mends == 0
    assert receiver.block.digest() == sender.block.digest()
    for made in (sender.block, receiver.block):
        learn(made)
    assert receiver.block.digest() == sender.block.digest()


def test_where_x0_is_sent_every_step_a_copy_is_neither_sent_nor_taken() -> None:
    sender, receiver = pair()
    copy = sender.catch_up("a")
    sender.mends["a"] = receiver.mends = MENDS + 1
    assert sender.catch_up("a") == ()
    assert not receiver.follows
    receiver.catch_up((), range(3))
    with pytest.raises(ProtocolError, match="without the fusion model"):
        receiver.catch_up(copy, range(3))
    with pytest.raises(ProtocolError, match="expected the fusion model"):
        receiver.receive(5, ())


def test_without_the_first_copy_nothing_is_repeated() -> None:
    _, receiver = pair()
    with pytest.raises(ProtocolError, match="expected the fusion model"):
        receiver.receive(0, ())
    assert not receiver.started


LEARNT, WHOLE = send_bytes(bytes([1, 1])), send_exactly(torch.zeros(3 * NUMBERS, dtype=torch.float64))


@pytest.mark.parametrize(
    ("packets", "text"),
    [
        ((), "expected 2 packets, got 0"),
        (LEARNT, "expected 2 packets, got 1"),
        ((*LEARNT, *WHOLE, *WHOLE), "expected 2 packets, got 3"),
        ((*LEARNT, *send_exactly(torch.tensor(1.0).double())), "expected at most"),
        ((*LEARNT, *send_exactly(torch.zeros(PER_NUMBER * NUMBERS + 1).double())), "expected at most"),
        ((*LEARNT, *send_exactly(torch.zeros(NUMBERS - 1).double())), r"\d"),
        ((*send_bytes(bytes([1, 0, 1])), *WHOLE), "list of parameters that have learnt"),
    ],
)
def test_a_wrong_copy_is_refused_and_changes_nothing(packets: Packets, text: str) -> None:
    _, receiver = pair()
    before = receiver.block.exact_vector()
    with pytest.raises(ProtocolError, match=text):
        receiver.catch_up(packets, range(3))
    assert torch.equal(receiver.block.exact_vector(), before)
    assert not receiver.started


def test_a_copy_without_an_optimiser_takes_over_parameters_alone() -> None:
    plain, other = (Block(nn.Linear(3, 2), None) for _ in range(2))
    other.take_over(plain.exact_vector(), plain.learnt())
    assert other.digest() == plain.digest()


def test_a_part_that_takes_no_part_in_the_loss_stays_as_it_is() -> None:
    made = block(0, Optimizer("SGD", {"lr": 0.1}))
    before = made.vector()
    made.descend(torch.zeros(()))  # depends on no parameter
    assert torch.equal(made.vector(), before)

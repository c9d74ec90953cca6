"""Runs that are saved and go on elsewhere."""

import hashlib
from pathlib import Path

import torch
from problems import CLASSES, WIDTH, everything, problem
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from efvfl import QSGD, Agreement, Federation, Message, Method, Optimizer, SharedLabels, TopK, cvfl, efvfl
from efvfl.cli import quick_start
from efvfl.util import checkpoint

STEPS = 11


CASES: dict[str, tuple[Method, Agreement]] = {
    "private": (efvfl(TopK(0.2), down=QSGD(4)), Agreement()),
    "private-direct": (cvfl(QSGD(4)), Agreement()),
    "private-all-rows": (efvfl(TopK(0.2)), Agreement(reports="all")),
    "private-exact-start": (efvfl(TopK(0.2), start="exact"), Agreement()),
    "relay-send": (efvfl(QSGD(4)), Agreement(SharedLabels(local_steps=2))),
    "relay-replicate": (efvfl(TopK(0.2)), Agreement(SharedLabels(fusion="replicate", digest_every=3))),
    "aggregate-compress": (
        efvfl(TopK(0.2), fusion=TopK(0.5)),
        Agreement(SharedLabels(downlink="aggregate", fusion="compress")),
    ),
    "direct-relay": (cvfl(TopK(0.2)), Agreement(labels="shared")),
    "pipelined": (efvfl(TopK(0.2), down=QSGD(4)), Agreement(pipeline=True)),
    "pipelined-direct": (cvfl(QSGD(4)), Agreement(pipeline=True)),
    "pipelined-all-rows": (
        efvfl(TopK(0.2)),
        Agreement(SharedLabels(downlink="aggregate"), reports="all", pipeline=True),
    ),
    "private-mean-start": (efvfl(TopK(0.2), start="mean"), Agreement()),
    "pipelined-exact-start": (efvfl(TopK(0.2), start="exact"), Agreement(labels="shared", pipeline=True)),
    "window-replicate": (efvfl(TopK(0.2)), Agreement(SharedLabels(fusion="replicate", digest_every=2), pipeline=3)),
    "pipelined-aggregate-compress": (
        efvfl(TopK(0.2), fusion=TopK(0.5)),
        Agreement(SharedLabels(downlink="aggregate", fusion="compress", local_steps=2), pipeline=True),
    ),
}


def local(inputs: int) -> nn.Module:
    linear = spectral_norm(nn.Linear(inputs, WIDTH))  # its forward pass depends on buffers that it changes
    return nn.Sequential(linear, nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.Tanh())


def federation(case: str) -> Federation:
    """Everything that has a state: running statistics, dropout, momentum, a schedule."""
    torch.manual_seed(4)
    method, agreement = CASES[case]
    return problem(
        method,
        torch.float32,
        models=[local(n) for n in (5, 3, 4)],
        head=nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES)),
        optimizer=Optimizer("Adam", {"lr": 0.02}, "ExponentialLR", {"gamma": 0.7}),
        agreement=agreement,
        batch_size=16,
        batch_order="independent" if "exact" in case else "shuffle",
    )


def fingerprint(run: Federation, start: int) -> str:
    """Go on to the end; return a digest of every message on the way and of the final state of all."""
    digest = hashlib.sha256()
    ask = run.transport._deliver

    def listen(name: str, message: Message) -> Message:
        reply: Message = ask(name, message)
        digest.update(message.to_bytes() + reply.to_bytes())
        return reply

    run.transport._deliver = listen  # type: ignore[method-assign]
    for step in range(start, STEPS):
        digest.update(str(run.step(hold=step == STEPS - 1)).encode())
    for tensor in everything(run):
        digest.update(tensor.numpy().tobytes())
    digest.update(str(sorted(run.ledger.bytes.items())).encode())
    digest.update(run.record().surrogate_loss.hex().encode())
    return digest.hexdigest()


def go_on(case: str, state: Path, start: int, out: Path) -> None:
    """Go on from a saved state in a process that has not seen the run, and leave the fingerprint."""
    quick_start.without_compiler()
    torch.set_num_threads(1)
    run = federation(case)
    run.load_state_dict(checkpoint.load(state))
    out.write_text(fingerprint(run, start))

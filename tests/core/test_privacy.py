"""Private labels: what is sent holds neither labels nor fusion parameters, and still it learns."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from benchmarks.leakage import GUEST, Setting, synthetic
from benchmarks.leakage import federation as binary_task
from leaks import Tap, find_leaks
from sklearn.metrics import roc_auc_score

from efvfl import QSGD, Compressor, Federation, Message, Protection, TopK, efvfl
from efvfl.config.run_file import AgreementConfig, MethodConfig, RunConfig
from efvfl.core.channel import send_exactly
from efvfl.core.fusion import StepContext
from efvfl.data import digits
from efvfl.runs.build import make_federation
from efvfl.wire.message import Kind
from efvfl.wire.packet import Packet

COMPRESSOR = {"name": "topk", "ratio": 0.1}


def federation(labels: str, seed: int = 0, epochs: int = 50, **method: object) -> Federation:
    config = RunConfig(
        seed=seed,
        epochs=epochs,
        method=MethodConfig("efvfl", COMPRESSOR, **method),  # type: ignore[arg-type]
        agreement=AgreementConfig(labels=labels),  # type: ignore[arg-type]
        optimizer={"name": "SGD", "lr": 4.0},
    )
    return make_federation(config, digits(seed))


@pytest.mark.slow
@pytest.mark.parametrize("compressor", [TopK(0.1), QSGD(4)])
@pytest.mark.parametrize("protect", [Protection(), Protection(label_epsilon=1.0)], ids=["exact", "randomised"])
def test_a_partys_own_checkpoint_tells_labels(compressor: Compressor, protect: Protection) -> None:
    """docs/security.md says so: where the downlink is compressed, its memory has every row's last cotangents."""
    data = synthetic(1_000, seed=0)
    run = binary_task(data, Setting("", efvfl(compressor, compressor), protect), seed=0)
    run.fit(10, gradient=False)
    memory = run.parties[GUEST].state_dict()["label_mode"]["down"]["memory"]["g"]
    direction = torch.linalg.svd(memory, full_matrices=False)[2][0]
    score = roc_auc_score(data.train.labels, memory @ direction)
    if run.server.release:  # of what was told it knows nearly all, and of the labels no more than was told
        told = roc_auc_score(data.train.labels, run.server.labels)
        assert max(score, 1 - score) <= told + 0.05 < 0.85
    else:
        assert max(score, 1 - score) > 0.98


@pytest.fixture(scope="module")
def tapped() -> Tap:
    run = federation("private")
    tap = Tap(run)
    *_, last = run.train(50, observe_every=50, gradient=False)
    assert last.test["accuracy"] > 0.9
    return tap


def test_private_labels_learn_the_digits_as_well_as_shared_ones(tapped: Tap) -> None:
    *_, shared = federation("shared").train(50, observe_every=50, gradient=False)
    private = tapped.federation.record(gradient=False)
    assert shared.test["accuracy"] > 0.9
    assert private.test["accuracy"] >= shared.test["accuracy"] - 0.01


def test_every_byte_is_accounted_for_by_a_declared_kind(tapped: Tap) -> None:
    ledger = tapped.federation.ledger
    assert sum(ledger.bytes.values()) == tapped.total() == ledger.total("up") + ledger.total("down")
    by_kind: dict[tuple[str, str], int] = {}
    for direction, kind, data in tapped.payloads:
        by_kind[direction, kind] = by_kind.get((direction, kind), 0) + len(data)
    counted: dict[tuple[str, str], int] = {}
    for (direction, _, kind), n in ledger.bytes.items():
        counted[direction, kind] = counted.get((direction, kind), 0) + n
    assert counted == by_kind
    assert set(by_kind) == {("down", "begin"), ("up", "report"), ("down", "cotangent"), ("up", "ready")}


def test_nothing_that_was_sent_holds_labels_or_fusion_parameters(tapped: Tap) -> None:
    assert len(tapped.payloads) > 1000
    assert find_leaks(tapped) == []


@pytest.mark.parametrize("secret", ["uint8", "int64", "float32", "fusion", "half a fusion"])
def test_a_planted_leak_is_found(secret: str) -> None:
    run = federation("private")
    honest = run.server.label_mode.answers

    def leaking(context: StepContext, reports: Mapping[str, Message], hold: bool) -> dict[str, Message]:
        messages = honest(context, reports, hold)
        if context.step != 7:
            return messages
        if secret.endswith("fusion"):
            vector = run.server.block.vector()
            body = send_exactly(vector[5:9] if secret.startswith("half") else vector)[0].body
        else:
            body = run.server.labels[context.rows].to(getattr(torch, secret)).numpy().tobytes()
        first = next(iter(messages))
        packet = messages[first].packets[1][0]
        # Hidden in the middle of a cotangent, at an odd place.
        hidden = Packet(
            packet.codec, packet.dtype, packet.shape, packet.body[:13] + body + packet.body[13 + len(body) :]
        )
        object.__setattr__(hidden, "decoded", torch.zeros(packet.shape).numpy())
        return messages | {first: replace(messages[first], packets={1: (hidden,)})}

    run.server.label_mode.answers = leaking  # type: ignore[method-assign]
    tap = Tap(run)
    for _ in range(12):
        run.step()
    assert any(kind == Kind.COTANGENT.name.lower() for _, kind, _ in tap.payloads)
    found = find_leaks(tap)
    assert found
    assert all(("fusion" in text) is secret.endswith("fusion") for text in found)


def test_shared_labels_do_send_the_fusion_model_and_the_search_sees_it() -> None:
    run = federation("shared")
    tap = Tap(run)
    for _ in range(5):
        run.step()
    assert any("fusion" in text for text in find_leaks(tap))

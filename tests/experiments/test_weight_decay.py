"""What divides a representation and the decay of weights do to each other: why direct compression falls with qsgd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

import numpy as np
import pytest

from efvfl.compress import REGISTRY, Compressor, base, register
from efvfl.compress.base import Shape, checked
from efvfl.config.run_file import AgreementConfig, MethodConfig, ModelConfig, RunConfig
from efvfl.data import digits
from efvfl.runs.build import make_federation
from efvfl.wire.packet import FloatArray, Packet

TAU = 65  # of 256 x 16 entries at one bit: 1 + sqrt(4096)


@pytest.fixture
def divided() -> Iterator[None]:
    """A compressor that divides by tau, as qsgd does, and does nothing else: no rounding, no chance."""

    @dataclass(frozen=True)
    class Divided(Compressor):
        def encode(self, block: FloatArray, key: int = 0) -> Packet:
            return Packet(self.code, block.dtype, block.shape, (checked(block) / block.dtype.type(TAU)).tobytes())

        @classmethod
        def read(cls, packet: Packet) -> FloatArray:
            values: FloatArray = np.frombuffer(packet.body, packet.dtype).reshape(packet.shape).copy()
            return values

        def alpha(self, shape: Shape) -> float:
            return 1 - (1 - 1 / TAU) ** 2

        def paper_bits(self, shape: Shape) -> int:
            return 0

    register("divided", 203)(Divided)
    yield
    REGISTRY.pop("divided")
    base._BY_CODE.pop(203)


def trained(method: str, compressor: str, decay: float) -> tuple[float, float]:
    """Return the test accuracy and the training loss after 100 epochs at a constant rate."""
    config = RunConfig(
        batch_size=256,
        observe_gradient=False,
        method=MethodConfig(method, {"name": compressor, **({"bits": 1} if compressor == "qsgd" else {})}),
        agreement=AgreementConfig(labels="shared"),
        optimizer={"lr": 1.0, "weight_decay": decay},
        model=ModelConfig(hidden=(32,), last="identity"),
    )
    *_, last = make_federation(config, digits()).train(100, observe_every=100)
    return last.test["accuracy"], last.train["loss"]


@pytest.mark.slow
@pytest.mark.usefixtures("divided")
def test_decay_stops_direct_compression_where_qsgd_divides_by_tau_and_nothing_else() -> None:
    cells = (("svfl", "identity"), ("efvfl", "qsgd"), ("cvfl", "qsgd"), ("cvfl", "divided"))
    strong, weak = ({cell: trained(*cell, decay) for cell in cells} for decay in (0.01, 0.0005))
    for cell in cells:
        assert weak[cell][0] > 0.75, cell
        if cell[0] == "cvfl":
            accuracy, loss = strong[cell]
            assert accuracy < 0.2, cell
            assert loss == pytest.approx(log(10), abs=0.01), cell  # every digit is as likely as any other
    assert strong["svfl", "identity"][0] > 0.8
    assert strong["efvfl", "qsgd"][0] > 0.6
    assert weak["svfl", "identity"][0] > weak["cvfl", "qsgd"][0] + 0.03

"""Codecs: time relative to `torch.topk`, error, bytes, and bytes relative to the entropy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import lgamma, log

import numpy as np
import torch

from benchmarks.lines import Line, ratio, slug
from benchmarks.timing import alternate
from efvfl import QSGD, Cast, Compressor, Packet, RandK, Sign, TopK, TopKQSGD
from efvfl.compress import decode
from efvfl.wire.packet import FloatArray

SHAPE = (60_000, 16)  # a full batch of MNIST: 960,000 entries
LEAST = 2_000  # bits; from here on there is a target relative to the entropy
TARGET = 1.08  # times the entropy
CODECS: dict[str, Compressor] = {
    "top-k 10 %": TopK(0.1),
    "top-k 1 %": TopK(0.01),
    "top-k 0.1 %": TopK(0.001),
    "random-k 10 %": RandK(0.1),
    "qsgd 4 bit": QSGD(4),
    "qsgd 2 bit": QSGD(2),
    "qsgd 1 bit": QSGD(1),
    "top-k 10 %, then qsgd 4 bit": TopKQSGD(0.1, bits=4),
    "sign": Sign(),
    "cast to half": Cast(),
}


def block(rows: int, width: int = 16) -> FloatArray:
    """Return normally distributed values."""
    drawn: FloatArray = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    return drawn


def both_ways(compressor: Compressor, values: FloatArray) -> FloatArray:
    """Return the values after compression to bytes and decoding."""
    return decode(Packet.from_bytes(compressor.encode(values, 1).to_bytes()))  # type: ignore[return-value]


def times(rounds: int) -> list[Line]:
    """Measure every codec on 960,000 entries, alternating with `torch.topk` of 10 %."""
    values = block(*SHAPE)
    magnitudes = torch.from_numpy(np.abs(values)).flatten()
    sides: dict[str, Callable[[], object]] = {"torch.topk": lambda: torch.topk(magnitudes, len(magnitudes) // 10)}
    sides |= {name: partial(both_ways, compressor, values) for name, compressor in CODECS.items()}
    found = alternate(sides, rounds)
    out = []
    for name, compressor in CODECS.items():
        size = len(compressor.encode(values, 1).to_bytes())
        error = float(np.linalg.norm(both_ways(compressor, values) - values) / np.linalg.norm(values))
        target = 0.2 if name == "top-k 10 %" else None
        what = f"{name} of 960,000: encode and decode / torch.topk of 10 %"
        note = f"{size:,} bytes of {values.nbytes:,}, relative error {error:.2g}"
        out.append(ratio(f"codec-{slug(name)}", what, found[name], found["torch.topk"], target, note))
    return out


def sizes() -> list[Line]:
    """Return the sizes of complete packets."""
    out = []
    for rows, target in ((128, 1.3), (60_000, 0.12)):
        bits = 8 * len(QSGD(4).encode(block(rows), 1).to_bytes()) / (rows * 16)
        out.append(Line(f"size-qsgd-{rows}", f"qsgd 4 bit, {rows:,} x 16", bits, "bits an entry", target))
    top = len(TopK(0.1).encode(block(128, 64)).to_bytes())
    return [*out, Line("size-topk-128", "top-k 10 %, 128 x 64", top, "bytes", 3900)]


def entropies() -> list[Line]:
    """Compare the bits of bodies with the minimum: log2 C(d, k) for positions, the empirical entropy for symbols."""
    out = []
    for rows, share in ((128, 0.1), (60_000, 0.1), (60_000, 0.01), (60_000, 0.001)):
        values = block(rows)
        k = max(1, int(values.size * share))
        least = (lgamma(values.size + 1) - lgamma(k + 1) - lgamma(values.size - k + 1)) / log(2)
        body = 8 * (len(TopK(share).encode(values).body) - values.itemsize * k)
        out.append(_entropy(f"entropy-topk-{share:g}-{rows}", f"places of top-k {100 * share:g} %", rows, body, least))
    for rows, bits in ((128, 4), (60_000, 4), (60_000, 2), (60_000, 1), (128, 8)):
        values = block(rows)
        packet = QSGD(bits).encode(values, 1)
        _, counts = np.unique(decode(packet), return_counts=True)
        share_of = counts / counts.sum()
        least = float(-(share_of * np.log2(share_of)).sum() * values.size)
        body = 8 * len(packet.body)
        out.append(_entropy(f"entropy-qsgd-{bits}-{rows}", f"symbols of qsgd {bits} bit", rows, body, least))
    return out


def _entropy(name: str, text: str, rows: int, body: int, least: float) -> Line:
    target = TARGET if least >= LEAST else None
    note = f"{body:,} of {least:,.0f} bits"
    return Line(name, f"{text}, {rows:,} x 16 / entropy", body / least, target=target, note=note)


def lines(full: bool) -> list[Line]:
    """Measure times, sizes and entropies."""
    return [*times(60 if full else 25), *entropies(), *sizes()]

"""Codecs: time against `torch.topk`, true bytes against the entropy."""

from __future__ import annotations

from math import lgamma, log

import numpy as np
import torch

from benchmarks.timing import Timing, alternate
from efvfl import QSGD, Packet, TopK
from efvfl.compress import decode


def topk_time(rounds: int) -> dict[str, Timing]:
    """Return milliseconds of top-k 10 % of 960,000 entries: to bytes and back, and one default `torch.topk`."""
    block = np.random.default_rng(0).standard_normal((60000, 16)).astype(np.float32)
    magnitudes = torch.from_numpy(np.abs(block)).flatten()
    compressor = TopK(0.1)

    def both_ways() -> None:
        decode(Packet.from_bytes(compressor.encode(block).to_bytes()))

    return alternate({"torch.topk": lambda: torch.topk(magnitudes, 96000), "encode + decode": both_ways}, rounds)


def sizes() -> list[tuple[str, float, float, str]]:
    """Return what, measured, limit and unit; every size is of the whole packet."""
    draw = np.random.default_rng(0)

    def bits(bits_: int, rows: int) -> float:
        block = draw.standard_normal((rows, 16)).astype(np.float32)
        return 8 * len(QSGD(bits_).encode(block, 1).to_bytes()) / block.size

    top = TopK(0.1).encode(draw.standard_normal((128, 64)).astype(np.float32)).to_bytes()
    return [
        ("qsgd 4 bit, 128 x 16", bits(4, 128), 1.3, "bits an entry"),
        ("qsgd 4 bit, 60,000 x 16", bits(4, 60000), 0.12, "bits an entry"),
        ("top-k 10 %, 128 x 64", len(top), 3900, "bytes"),
    ]


def entropies() -> list[tuple[str, float]]:
    """Return the ratio of body bits to the least possible: log2 C(d, k) and the empirical entropy of symbols."""
    draw = np.random.default_rng(0)
    out = []
    for rows, ratio in ((128, 0.1), (60000, 0.1), (60000, 0.01), (60000, 0.001)):
        block = draw.standard_normal((rows, 16)).astype(np.float32)
        d = block.size
        k = max(1, int(d * ratio))
        least = (lgamma(d + 1) - lgamma(k + 1) - lgamma(d - k + 1)) / log(2)
        body = 8 * (len(TopK(ratio).encode(block).body) - 4 * k)
        out.append((f"top-k {ratio:.1%} places, {rows:,} x 16", body / least))
    for rows, bits in ((128, 4), (60000, 4), (60000, 2), (60000, 1), (128, 8)):
        block = draw.standard_normal((rows, 16)).astype(np.float32)
        packet = QSGD(bits).encode(block, 1)
        _, counts = np.unique(decode(packet), return_counts=True)
        share = counts / counts.sum()
        least = -(share * np.log2(share)).sum() * block.size
        out.append((f"qsgd {bits} bit symbols, {rows:,} x 16", 8 * len(packet.body) / least))
    return out

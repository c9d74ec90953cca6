"""Searches everything that was sent for what must not be in it."""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl import Federation, Message


class Tap:
    """Keeps the bytes of every message a federation exchanges, with the secrets of that moment beside them."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.payloads: list[tuple[str, str, bytes]] = []  # direction, kind, bytes
        self.label_batches: list[Tensor] = []
        self.fusion: list[Tensor] = []
        self._exchange = federation.transport.exchange
        federation.transport.exchange = self.exchange  # type: ignore[method-assign]

    def exchange(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        server = self.federation.server
        rows = server.batches.rows(max(0, server.step_number - 1))
        self.label_batches.append(server.labels[rows])
        self.fusion.append(server.block.vector())
        replies = self._exchange(messages)
        for direction, sent in (("down", messages), ("up", replies)):
            self.payloads += [(direction, m.kind.name.lower(), m.to_bytes()) for m in sent.values()]
        return replies

    def total(self) -> int:
        return sum(len(data) for _, _, data in self.payloads)


def windows(values: Tensor, length: int = 4) -> list[bytes]:
    """The bytes of every run of `length` consecutive numbers."""
    raw, size = values.contiguous().numpy().tobytes(), values.element_size()
    return [raw[i : i + length * size] for i in range(0, len(raw) - length * size + 1, size)]


def find_leaks(tap: Tap) -> list[str]:
    """Return what was found: batches of labels, or four consecutive fusion parameters of any moment."""
    secrets: dict[bytes, str] = {}
    for vector in tap.fusion:
        secrets |= dict.fromkeys(windows(vector), "fusion parameters")
    for number, batch in enumerate(tap.label_batches):
        for dtype in (torch.uint8, torch.int64, torch.float32):
            if len(batch):
                secrets[batch.to(dtype).numpy().tobytes()] = f"labels of exchange {number} as {dtype}"
    data = b"\xfe\xdc".join(payload for _, _, payload in tap.payloads)
    return [f"{what} at byte {place:,}" for place, what in _occurrences(data, secrets)]


HEAD = 8  # bytes of a secret that are looked up before the rest is compared


def _occurrences(data: bytes, secrets: Mapping[bytes, str]) -> Iterator[tuple[int, str]]:
    """Yield where any of the secrets is: all at once, by a table of what their first bytes hash to."""
    by_head: dict[int, list[bytes]] = {}
    for secret in secrets:
        if len(secret) >= HEAD:
            by_head.setdefault(int.from_bytes(secret[:HEAD], "little"), []).append(secret)
        elif secret in data:
            yield data.index(secret), secrets[secret]
    heads = np.array(list(by_head), dtype="<u8")
    table = np.zeros(1 << 20, dtype=bool)
    table[_hashed(heads)] = True
    raw = np.frombuffer(data, dtype=np.uint8)
    for start in range(0, len(raw) - HEAD + 1, 1 << 20):
        part = raw[start : start + (1 << 20) + HEAD - 1]
        words = np.lib.stride_tricks.sliding_window_view(part, HEAD).copy().view("<u8").reshape(-1)
        places = np.flatnonzero(table[_hashed(words)])
        for place, word in zip((start + places).tolist(), words[places].tolist(), strict=True):
            for secret in by_head.get(word, ()):
                if data.startswith(secret, place):
                    yield place, secrets[secret]


def _hashed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(44)

"""One end of one direction of a link: a compressor and a memory. The sender and the receiver each hold one."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch
from torch import Tensor

from efvfl.compress import Compressor, Identity, decode
from efvfl.core.batches import Rows, take
from efvfl.core.memory import Direct, ErrorFeedback, Memory
from efvfl.errors import CompressionError, ProtocolError
from efvfl.util.rng import at_step
from efvfl.wire.packet import DTYPES, Packet

Packets = tuple[Packet, ...]

_IDENTITY = Identity()
_NUMPY_TO_TORCH = dict(zip(DTYPES, (torch.float32, torch.float64, torch.uint8), strict=True))


def unpack(packet: Packet, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> Tensor:
    """Return the block in a packet that must have this shape and dtype. It is shared: never write to it."""
    if packet.shape != shape or _NUMPY_TO_TORCH.get(packet.dtype) != dtype:
        raise ProtocolError(
            f"{what}: expected shape {shape} and {dtype}, got {packet.shape} and {packet.dtype}: do both ends run the "
            "same configuration and hold the same rows?"
        )
    return torch.from_numpy(decode(packet, limit=packet.entries))


class Channel:
    """Sends values as compressed changes, or receives them; both ends advance by the same decoded packets.

    The server and the parties of one process receive a report through the same end: the first to receive it advances
    the memory, and the others get the same surrogate.
    """

    def __init__(
        self,
        compressor: Compressor,
        memory: Memory,
        width: tuple[int, ...],
        dtype: torch.dtype,
        key: int = 0,
        what: str = "a block",
    ) -> None:
        """Carry values of shape (rows, *width). The key is private to the sender and decides its random choices."""
        self.compressor = compressor
        self.memory = memory
        self.width = width
        self.dtype = dtype
        self.key = key
        self.what = what
        self.seconds = 0.0  # spent in codecs
        self.paper_bits = 0  # the paper's count of what was sent, kept apart from the bytes really sent
        self._received: tuple[Packets, Tensor, Tensor] | None = (
            None  # the last packets, decoded, and the surrogate then
        )

    @property
    def exact(self) -> bool:
        """Whether values are sent as they are and nothing is remembered."""
        return isinstance(self.compressor, Identity) and isinstance(self.memory, Direct)

    def send(self, rows: Rows, value: Tensor, step: int) -> tuple[Packets, Tensor]:
        """Return C(value - G) as packets, and the surrogate that both ends hold after absorbing them."""
        value = value.detach()
        compressor = self.compressor.at(step)
        residual = self.memory.residual(rows, value)
        new = self.memory.first_visits(rows)
        if new is None:
            packets: Packets = (self._encode_and_count(compressor, residual, step),)
        elif bool(new.all()):
            packets = (self._encode_and_count(_IDENTITY, residual, step),)
        else:
            packets = (
                self._encode_and_count(_IDENTITY, residual[new], step),
                self._encode_and_count(compressor, residual[~new], step),
            )
        return packets, self.memory.absorb(rows, self.decode(rows, packets, len(value)))

    def _encode_and_count(self, compressor: Compressor, residual: Tensor, step: int) -> Packet:
        self.paper_bits += compressor.paper_bits(tuple(residual.shape))
        started = time.perf_counter()
        packet = self.encode(compressor, residual, step)
        self.seconds += time.perf_counter() - started
        return packet

    def encode(self, compressor: Compressor, residual: Tensor, step: int) -> Packet:
        """Return the packet that a residual becomes at a step. Nothing is counted or remembered."""
        try:
            return compressor.encode(residual.numpy(), at_step(self.key, step))
        except CompressionError as error:
            raise CompressionError(f"{self.what} cannot be sent at step {step}: {error}") from error

    def decode(self, rows: Rows, packets: Packets, count: int) -> Tensor:
        """Return the decoded change of `count` rows, or refuse the packets. Nothing is absorbed yet."""
        if self._received is not None and self._received[0] is packets:
            return self._received[1]
        new = self.memory.first_visits(rows)
        if new is not None and bool(new.all()):
            new = None  # all rows exactly, in one packet
        expected = 1 if new is None else 2  # rows reported for the first time are in a packet of their own, exactly
        if len(packets) != expected:
            raise ProtocolError(f"{self.what}: expected {expected} packet{'s' * (expected > 1)}, got {len(packets)}.")
        if new is None:
            return unpack(packets[0], (count, *self.width), self.dtype, self.what)
        decoded = torch.empty((count, *self.width), dtype=self.dtype)
        for mask, packet in zip((new, ~new), packets, strict=True):
            decoded[mask] = unpack(packet, (int(mask.sum()), *self.width), self.dtype, self.what)
        return decoded

    def receive(self, rows: Rows, packets: Packets, decoded: Tensor) -> Tensor:
        """Absorb decoded packets, G[rows] += C; return the surrogate G[rows]."""
        if self._received is None or self._received[0] is not packets:
            self._received = packets, decoded, self.memory.absorb(rows, decoded)
        return self._received[2]

    def surrogate(self, rows: Rows) -> Tensor:
        """Return G[rows] as it is; only error feedback has one."""
        assert isinstance(self.memory, ErrorFeedback), "checked when the federation was built"
        return take(self.memory.g, rows).to(self.dtype)

    def restore(self, rows: Rows, surrogate: Tensor) -> None:
        """Set G[rows] to what the other end holds."""
        assert isinstance(self.memory, ErrorFeedback), "checked when the federation was built"
        self.memory.g[rows] = surrogate.to(self.memory.g.dtype)

    def surrogate_after(self, rows: Rows, packets: Packets, count: int) -> Tensor:
        """Return the surrogate of these rows, given the last packets that were absorbed."""
        if isinstance(self.memory, ErrorFeedback):
            return take(self.memory.g, rows).to(self.dtype)
        return unpack(packets[0], (count, *self.width), self.dtype, self.what)

    def digest(self) -> str:
        """Return a text that differs for memories that differ, wherever they are kept."""
        found = hashlib.blake2b(digest_size=8)
        for name, value in sorted(self.memory.tensors().items()):
            found.update(name.encode())
            found.update(value.reshape(-1).view(torch.uint8).numpy().data)  # as it lies: it may be large
        return found.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """Return the memory and the paper's count; the randomness needs no state."""
        return {"memory": self.memory.state_dict(), "paper_bits": self.paper_bits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._received = None
        self.memory.load_state_dict(state["memory"])
        self.paper_bits = int(state["paper_bits"])


def send_bytes(data: bytes) -> Packets:
    """Return plain bytes as a packet."""
    return (Packet(Identity.code, DTYPES[2], (len(data),), data),)


def read_bytes(packets: Packets, count: int, what: str) -> bytes:
    """Return the plain bytes of a packet, or refuse anything but so many of them."""
    if len(packets) != 1 or packets[0].codec != Identity.code or packets[0].dtype != DTYPES[2]:
        raise ProtocolError(f"{what}: expected one packet of plain bytes, got {len(packets)} packets or numbers.")
    if packets[0].shape != (count,) or len(packets[0].body) != count:
        raise ProtocolError(f"{what}: expected {count:,} bytes, got shape {packets[0].shape}.")
    return packets[0].body


def send_exactly(vector: Tensor, what: str = "the fusion model") -> Packets:
    """Return a tensor as a packet without loss, for copies that must be exact."""
    try:
        return (_IDENTITY.encode(vector.detach().numpy()),)
    except CompressionError as error:
        raise CompressionError(f"{what} cannot be sent: {error}") from error

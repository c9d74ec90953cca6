"""One direction of one link: a compressor and a memory. The sender and the receiver each hold one."""

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
    """Decode a packet that must have this shape and dtype. The result is shared: read it, never write to it."""
    if packet.shape != shape or _NUMPY_TO_TORCH.get(packet.dtype) != dtype:
        raise ProtocolError(
            f"{what} came with shape {packet.shape} and dtype {packet.dtype}, but {shape} and {dtype} are expected: "
            "do both ends run the same configuration and hold the same rows?"
        )
    return torch.from_numpy(decode(packet, limit=packet.entries))


class Channel:
    """Sends values as compressed changes, or receives them; both ends advance by the same decoded packets.

    The server and the parties of one process hear a report through the same end: the first to hear it advances the
    memory, the others get what that gave.
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
        self._heard: tuple[Packets, Tensor, Tensor] | None = None  # the last packets, what they say, the surrogate then

    @property
    def exact(self) -> bool:
        """Whether values go out as they are, and nothing is remembered of them."""
        return isinstance(self.compressor, Identity) and isinstance(self.memory, Direct)

    def send(self, rows: Rows, value: Tensor, step: int) -> tuple[Packets, Tensor]:
        """Compress what the receiver does not know yet; return the packets and the surrogate both ends now hold."""
        value = value.detach()
        compressor = self.compressor.at(step)
        residual = self.memory.residual(rows, value)
        new = self.memory.first_visits(rows)
        if new is None:
            packets: Packets = (self._encode(compressor, residual, step),)
        elif bool(new.all()):
            packets = (self._encode(_IDENTITY, residual, step),)
        else:
            packets = (self._encode(_IDENTITY, residual[new], step), self._encode(compressor, residual[~new], step))
        return packets, self.memory.absorb(rows, self.decode(rows, packets, len(value)))

    def _encode(self, compressor: Compressor, residual: Tensor, step: int) -> Packet:
        self.paper_bits += compressor.paper_bits(tuple(residual.shape))
        started = time.perf_counter()
        packet = self.try_out(compressor, residual, step)
        self.seconds += time.perf_counter() - started
        return packet

    def try_out(self, compressor: Compressor, residual: Tensor, step: int) -> Packet:
        """Return the packet that a residual becomes at a step, or say what cannot be sent; nothing is counted."""
        try:
            return compressor.encode(residual.numpy(), at_step(self.key, step))
        except CompressionError as error:
            raise CompressionError(f"{self.what} cannot be sent at step {step}: {error}") from error

    def decode(self, rows: Rows, packets: Packets, count: int) -> Tensor:
        """Return what the packets of `count` rows say, or refuse them; nothing is changed yet."""
        if self._heard is not None and self._heard[0] is packets:
            return self._heard[1]
        new = self.memory.first_visits(rows)
        if new is not None and bool(new.all()):
            new = None  # all of them exactly, in one packet
        expected = 1 if new is None else 2  # rows never reported before come by themselves, exactly
        if len(packets) != expected:
            raise ProtocolError(f"{self.what} came in {len(packets)} packets, {expected} is expected.")
        if new is None:
            return unpack(packets[0], (count, *self.width), self.dtype, self.what)
        decoded = torch.empty((count, *self.width), dtype=self.dtype)
        for mask, packet in zip((new, ~new), packets, strict=True):
            decoded[mask] = unpack(packet, (int(mask.sum()), *self.width), self.dtype, self.what)
        return decoded

    def hear(self, rows: Rows, packets: Packets, decoded: Tensor) -> Tensor:
        """Advance the memory by packets and what they were decoded to; return the surrogate of these rows."""
        if self._heard is None or self._heard[0] is not packets:
            self._heard = packets, decoded, self.memory.absorb(rows, decoded)
        return self._heard[2]

    def held(self, rows: Rows) -> Tensor:
        """Return the surrogate as it stands; only error feedback has one."""
        assert isinstance(self.memory, ErrorFeedback), "checked when the federation was built"
        return take(self.memory.g, rows).to(self.dtype)

    def restore(self, rows: Rows, surrogate: Tensor) -> None:
        """Set the surrogate of these rows to the other end's."""
        assert isinstance(self.memory, ErrorFeedback), "checked when the federation was built"
        self.memory.g[rows] = surrogate.to(self.memory.g.dtype)

    def last(self, rows: Rows, packets: Packets, count: int) -> Tensor:
        """Return the surrogate that absorbing these packets, the last ones, has left."""
        if isinstance(self.memory, ErrorFeedback):
            return take(self.memory.g, rows).to(self.dtype)
        return unpack(packets[0], (count, *self.width), self.dtype, self.what)

    def digest(self) -> str:
        """Return a text that tells two memories apart, whatever holds them."""
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
        self._heard = None
        self.memory.load_state_dict(state["memory"])
        self.paper_bits = int(state["paper_bits"])


def send_bytes(data: bytes) -> Packets:
    """Return bytes that are no numbers, as a packet."""
    return (Packet(Identity.code, DTYPES[2], (len(data),), data),)


def read_bytes(packets: Packets, count: int, what: str) -> bytes:
    """Return so many of them, or refuse what came."""
    if len(packets) != 1 or packets[0].codec != Identity.code or packets[0].dtype != DTYPES[2]:
        raise ProtocolError(f"{what} must come as one packet of bytes, but something else came.")
    if packets[0].shape != (count,) or len(packets[0].body) != count:
        raise ProtocolError(f"{what} came with shape {packets[0].shape}, {count:,} bytes are expected.")
    return packets[0].body


def send_exactly(vector: Tensor, what: str = "the fusion model") -> Packets:
    """Return a vector as it is, for copies that must be exact."""
    try:
        return (_IDENTITY.encode(vector.detach().numpy()),)
    except CompressionError as error:
        raise CompressionError(f"{what} cannot be sent: {error}") from error

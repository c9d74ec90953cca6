"""One end of one direction of a link: a compressor and a memory. The sender and the receiver each hold one."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from efvfl.compress import Compressor, Identity, decode
from efvfl.core.batches import Rows
from efvfl.core.memories import Direct
from efvfl.core.memory import MemoryEnd
from efvfl.core.methods import Link
from efvfl.errors import CompressionError, ProtocolError
from efvfl.util.rng import at_step
from efvfl.wire.packet import DTYPES, Packet

Packets = tuple[Packet, ...]
Parts = list[tuple[bool, Tensor | None]]  # for every packet whether it is of first visits, and its rows; None: all

SendWatch = Callable[[int, Tensor, Tensor, Packets], None]  # step, residual, what arrives of it, packets

LARGEST = 1e12  # of a value that another participant sends; one in float32 is off by 60,000 there already

_IDENTITY = Identity()
_NUMPY_TO_TORCH = dict(zip(DTYPES, (torch.float32, torch.float64, torch.uint8), strict=True))


def blocks(packets: Mapping[int, Packets]) -> dict[int, Packets]:
    """Return the blocks of a message: those that have packets."""
    return {number: group for number, group in packets.items() if group}


def unpack(packet: Packet, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> Tensor:
    """Return the block in a packet that must have this shape and dtype. It is shared: never write to it."""
    if packet.shape != shape or _NUMPY_TO_TORCH.get(packet.dtype) != dtype:
        raise ProtocolError(
            f"{what}: expected shape {shape} and {dtype}, got {packet.shape} and {packet.dtype}: do both ends run the "
            "same configuration and hold the same rows?"
        )
    return torch.from_numpy(decode(packet, limit=packet.entries))


def refuse_huge(values: Tensor, what: str) -> None:
    """Refuse numbers that are finite but no result of training: sums and products of them would not be finite."""
    if values.numel() and not (largest := float(values.abs().max())) <= LARGEST:
        raise ProtocolError(
            f"{what}: expected values of at most {LARGEST:g}, got one of {largest:.2g}: look at its sender's model and "
            "columns, for it has diverged or sends false values."
        )


class Channel:
    """Sends values as compressed changes, or receives them; both ends advance by the same decoded packets.

    The server and the parties of one process receive a report through the same end: the first to receive it advances
    the memory, and the others get the same surrogate.
    """

    def __init__(
        self,
        link: Link,
        memory: MemoryEnd,
        width: tuple[int, ...],
        dtype: torch.dtype,
        key: int = 0,
        what: str = "a block",
    ) -> None:
        """Carry values of shape (rows, *width). The key is private to the sender and decides its random choices."""
        self.compressor = link.compressor
        self.first = link.of_first_visits or link.compressor
        self.memory = memory
        self.width = width
        self.dtype = dtype
        self.key = key
        self.what = what
        self.seconds = 0.0  # spent in codecs
        self.watch: SendWatch | None = None  # sees what is sent, and changes nothing
        self.change: Tensor | None = None  # what was decoded of the last packets that were sent or received
        # The last packets, decoded, and the surrogate then.
        self._received: tuple[Packets, Tensor, Tensor] | None = None
        self._checked: tuple[Packets, Tensor] | None = None  # what was decoded last, and is not absorbed yet
        self._firsts: tuple[bool, ...] = (False,)  # which of the last packets are of first visits

    @property
    def exact(self) -> bool:
        """Whether values are sent as they are and nothing is remembered."""
        return isinstance(self.compressor, Identity) and isinstance(self.memory.rule, Direct)

    def send(self, rows: Rows, value: Tensor, step: int, where: Tensor | None = None) -> tuple[Packets, Tensor]:
        """Return C(value - G) as packets, and the surrogate that both ends hold after absorbing them.

        Rows that are sent for the first time are in a packet of their own, where they have a compressor of their own.
        Of no rows there is no packet. With `where`, bool of the value's shape, only these entries are sent, as a
        vector, and the change is zero elsewhere.
        """
        value = value.detach()
        started, parts = time.perf_counter(), self._parts(rows)
        residual = self.memory.residual(rows, value)
        packets = self._packets(parts, residual, step) if where is None else self._entries(residual, where, step)
        self.seconds += time.perf_counter() - started
        decoded = self.change = self._decoded(parts, packets, value.shape[0], where)
        if self.watch is not None:
            self.watch(step, residual, decoded, packets)
        self.memory.sent(rows, value, decoded)
        return packets, self._absorb(rows, packets, decoded)

    def try_out(self, rows: Rows, residual: Tensor, step: int) -> Tensor:
        """Return what would arrive of a residual of these rows. Nothing is counted, sent or remembered."""
        parts = self._parts(rows)
        return self._decoded(parts, self._packets(parts, residual, step), residual.shape[0])

    def _packets(self, parts: Parts, residual: Tensor, step: int) -> Packets:
        """Return a residual as packets; the first of all has the mean, where the memory starts there."""
        mean: Packets = ()
        if not residual.shape[0]:
            return mean
        if self.memory.wants_mean:
            center = residual.mean(dim=0)
            mean, residual = send_exactly(center, self.what), residual - center
        return mean + tuple(
            self._encode(self._compressor(first, step), residual if mask is None else residual[mask], step)
            for first, mask in parts
        )

    def _entries(self, residual: Tensor, where: Tensor, step: int) -> Packets:
        """Return these entries of a residual as a packet, which is empty where there is no such entry."""
        return (self._encode(self._compressor(False, step), residual[where], step),) if len(residual) else ()

    def _mean(self, packets: Packets) -> Tensor:
        return unpack(packets[0], self.width, self.dtype, f"{self.what}, its mean")

    def _parts(self, rows: Rows) -> Parts:
        """Return how rows are divided among packets."""
        new = self.memory.first_visits(rows)
        if new is None or bool(new.all()):
            return [(new is not None, None)]
        return [(True, new), (False, ~new)]

    def _compressor(self, first: bool, step: int) -> Compressor:
        return (self.first if first else self.compressor).at(step)

    def paper_bits_received(self, packets: Packets, step: int) -> int:
        """Return the paper's count of the packets that were received last."""
        if len(packets) == 1:
            return self._compressor(self._firsts[0], step).paper_bits(packets[0].shape)
        mean, rest = packets[: len(packets) - len(self._firsts)], packets[len(packets) - len(self._firsts) :]
        parts = zip(self._firsts, rest, strict=True)
        bits = sum(self._compressor(first, step).paper_bits(packet.shape) for first, packet in parts)
        return bits + sum(_IDENTITY.paper_bits(packet.shape) for packet in mean)

    def _encode(self, compressor: Compressor, residual: Tensor, step: int) -> Packet:
        """Return the packet that a residual becomes at a step."""
        try:
            return compressor.encode(residual.numpy(), at_step(self.key, step))
        except CompressionError as error:
            raise CompressionError(f"{self.what} cannot be sent at step {step}: {error}") from error

    def decode(self, rows: Rows, packets: Packets, count: int, where: Tensor | None = None) -> Tensor:
        """Return the decoded change of `count` rows, or refuse the packets. Nothing is absorbed yet."""
        for known in (self._received, self._checked):
            if known is not None and known[0] is packets:
                return known[1]
        decoded = self._decoded(self._parts(rows), packets, count, where)
        if packets:
            self._checked = packets, decoded
        return decoded

    def _decoded(self, parts: Parts, packets: Packets, count: int, where: Tensor | None = None) -> Tensor:
        started = time.perf_counter()
        decoded = self._decode(parts, packets, count) if where is None else self._decode_entries(packets, where)
        self.seconds += time.perf_counter() - started
        return decoded

    def _decode(self, parts: Parts, packets: Packets, count: int) -> Tensor:
        if not count:
            return self._nothing(packets)
        wants_mean = self.memory.wants_mean
        expected = len(parts) + wants_mean
        if len(packets) != expected:
            raise ProtocolError(f"{self.what}: expected {expected} packet{'s' * (expected > 1)}, got {len(packets)}.")
        if wants_mean:  # the memory is still zero
            return self._mean(packets) + self._decode_parts(parts, packets[1:], count)
        return self._decode_parts(parts, packets, count)

    def _decode_entries(self, packets: Packets, where: Tensor) -> Tensor:
        if not len(where):
            return self._nothing(packets)
        if len(packets) != 1:
            raise ProtocolError(f"{self.what}: expected 1 packet, got {len(packets)}.")
        decoded = torch.zeros(where.shape, dtype=self.dtype)
        decoded[where] = unpack(packets[0], (int(where.sum()),), self.dtype, self.what)
        return decoded

    def _nothing(self, packets: Packets) -> Tensor:
        if packets:
            raise ProtocolError(f"{self.what}: expected no packet for a batch without rows, got {len(packets)}.")
        return torch.empty((0, *self.width), dtype=self.dtype)

    def _decode_parts(self, parts: Parts, packets: Packets, count: int) -> Tensor:
        if len(parts) == 1:
            return unpack(packets[0], (count, *self.width), self.dtype, self.what)
        decoded = torch.empty((count, *self.width), dtype=self.dtype)
        for (_, mask), packet in zip(parts, packets, strict=True):
            assert mask is not None, "two packets have rows of their own"
            decoded[mask] = unpack(packet, (int(mask.sum()), *self.width), self.dtype, self.what)
        return decoded

    def receive(self, rows: Rows, packets: Packets, decoded: Tensor) -> Tensor:
        """Absorb decoded packets, G[rows] += C; return the surrogate G[rows]."""
        if self._received is None or self._received[0] is not packets:
            self._firsts = tuple(first for first, _ in self._parts(rows))
            self.change = decoded
            self._received = packets, decoded, self._absorb(rows, packets, decoded)
        return self._received[2]

    def _absorb(self, rows: Rows, packets: Packets, decoded: Tensor) -> Tensor:
        self._checked = None
        if not packets:
            return decoded  # of no rows
        if self.memory.wants_mean:
            self.memory.start_at(self._mean(packets), rows)
        return self.memory.absorb(rows, decoded)

    def refuse_surrogate(self, rows: Rows, decoded: Tensor, what: str) -> None:
        """Refuse a change whose surrogate would be no result of training; nothing is absorbed."""
        if not self.memory.stays_within(LARGEST, rows, decoded):
            refuse_huge(self.memory.after(rows, decoded), what)

    def surrogate(self, rows: Rows) -> Tensor:
        """Return G[rows] as it is; not every memory has one."""
        return self.memory.surrogate(rows)

    def restore(self, rows: Rows, surrogate: Tensor) -> None:
        """Set G[rows] to what the other end holds."""
        self._checked = None
        self.memory.restore(rows, surrogate)

    def surrogate_after(self, rows: Rows, packets: Packets, count: int) -> Tensor:
        """Return the surrogate of these rows, given the last packets that were absorbed."""
        if self.memory.keeps:
            return self.memory.surrogate(rows)
        if not count:
            return self._nothing(packets)
        return unpack(packets[0], (count, *self.width), self.dtype, self.what)

    def digest(self) -> str:
        """Return a text that differs where what both ends remember does, wherever it is kept."""
        found = hashlib.blake2b(digest_size=8)
        for name, value in sorted(self.memory.tensors().items()):
            found.update(name.encode())
            found.update(value.reshape(-1).view(torch.uint8).numpy().data)  # as it lies: it may be large
        return found.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """Return the memory; the randomness needs no state."""
        return {"memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._received = self._checked = None
        self.memory.load_state_dict(state["memory"])


def codec_seconds(channels: Iterable[Channel]) -> float:
    """Return the time that was spent in codecs, where a channel may be named by several who use it."""
    return sum(channel.seconds for channel in {id(channel): channel for channel in channels}.values())


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
    return send_alone(vector, what, _IDENTITY)


def send_alone(vector: Tensor, what: str, compressor: Compressor) -> Packets:
    """Return a tensor as a packet, of which nothing is remembered."""
    try:
        return (compressor.encode(vector.detach().numpy()),)
    except CompressionError as error:
        raise CompressionError(f"{what} cannot be sent: {error}") from error

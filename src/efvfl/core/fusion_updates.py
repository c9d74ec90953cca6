"""How the fusion model x0 reaches the parties when labels are shared: exactly or compressed. Else: fusion_replicas.py.

A party's gradient at step t uses x0 as it was *before* the server's own update of step t. Each way is a pair: a sender
at the server, and a receiver around a party's copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from efvfl.core.batches import ALL
from efvfl.core.block import Block
from efvfl.core.channel import Channel, Packets, send_exactly, unpack
from efvfl.errors import ProtocolError
from efvfl.wire.packet import Packet


class FusionSender(Protocol):
    """The server's half."""

    def check(self, step: int, name: str, digest: Packets) -> None:
        """Refuse what a report says of the copy of the fusion model, where it does not belong."""

    def send(self, step: int, digests: Mapping[str, Packets]) -> dict[str, Packets]:
        """Return x0 for every party that has reported, empty where nothing is sent; `digests` were in their reports."""

    def catch_up(self, name: str) -> Packets:
        """Return what a party that was away needs of x0 before the next step, if anything."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what was saved."""


class FusionReceiver(Protocol):
    """A party's half, around its copy of the fusion model."""

    block: Block

    def receive(self, step: int, packets: Packets) -> None:
        """Bring the copy to x0 of this step."""

    @property
    def follows(self) -> bool:
        """Whether the party must repeat the server's update on its copy."""

    def catch_up(self, packets: Packets, steps: range) -> None:
        """Bring the copy to where it would be if these steps had not been missed, or refuse the packets."""

    def digest(self, step: int, at: int) -> Packets:
        """Return what the report on this step says of the copy, which has repeated all updates below `at`."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what was saved."""


class ExactSender:
    """Sends x0 itself, to everyone, every step."""

    def __init__(self, block: Block) -> None:
        """Send the server's fusion model."""
        self.block = block

    def check(self, step: int, name: str, digest: Packets) -> None:
        """Refuse any digest: none is ever due."""
        refuse_digest(name, digest)

    def send(self, step: int, digests: Mapping[str, Packets]) -> dict[str, Packets]:
        """Return the same packet for all."""
        return dict.fromkeys(digests, send_exactly(self.block.vector()))

    def catch_up(self, name: str) -> Packets:
        """Return nothing: the next step overwrites the copy."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is nothing to restore."""


class ExactReceiver:
    """Overwrites its copy with x0 at every step."""

    follows = False

    def __init__(self, block: Block) -> None:
        """Write to this copy."""
        self.block = block

    def receive(self, step: int, packets: Packets) -> None:
        """Overwrite the copy."""
        load_vector(self.block, packets)

    def catch_up(self, packets: Packets, steps: range) -> None:
        """Refuse any packet: the next step overwrites the copy."""
        refuse_fusion(packets)

    def digest(self, step: int, at: int) -> Packets:
        """Return nothing: there is nothing to compare."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: every step overwrites the copy."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is nothing to restore."""


class CompressedSender:
    """Sends the compressed change of x0 against its memory G0, the paper's block 0."""

    def __init__(self, block: Block, channel: Channel) -> None:
        """Send the server's fusion model through this channel."""
        self.block = block
        self.channel = channel

    def check(self, step: int, name: str, digest: Packets) -> None:
        """Refuse any digest: none is ever due."""
        refuse_digest(name, digest)

    def send(self, step: int, digests: Mapping[str, Packets]) -> dict[str, Packets]:
        """Return C(x0 - G0), the same for all. The server itself continues with its exact x0."""
        packets, _ = self.channel.send(ALL, self.block.vector(), step)
        return dict.fromkeys(digests, packets)

    def catch_up(self, name: str) -> Packets:
        """Return G0 itself."""
        return send_exactly(self.channel.surrogate(ALL))

    def state_dict(self) -> dict[str, Any]:
        """Return the memory."""
        return self.channel.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved memory."""
        self.channel.load_state_dict(state)


class CompressedReceiver:
    """Works with G0 in place of x0."""

    follows = False

    def __init__(self, block: Block, channel: Channel) -> None:
        """Write to this copy what the channel gives."""
        self.block = block
        self.channel = channel

    def receive(self, step: int, packets: Packets) -> None:
        """G0 <- G0 + C0; use it as the copy."""
        decoded = self.channel.decode(ALL, packets, self.block.size())
        self.block.load_vector(self.channel.receive(ALL, packets, decoded))

    def catch_up(self, packets: Packets, steps: range) -> None:
        """Take over G0; the next step brings the copy to it."""
        vector = unpack(only_packet(packets), (self.block.size(),), self.block.dtype, "the fusion model")
        self.channel.restore(ALL, vector)

    def digest(self, step: int, at: int) -> Packets:
        """Return nothing to compare: both memories absorb the same packets."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return the memory."""
        return self.channel.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved memory."""
        self.channel.load_state_dict(state)


def only_packet(packets: Packets) -> Packet:
    """Return the one packet of the fusion model."""
    if len(packets) != 1:
        raise ProtocolError(f"the fusion model: expected 1 packet, got {len(packets)}.")
    return packets[0]


def load_vector(block: Block, packets: Packets) -> None:
    """Overwrite a copy of the fusion model."""
    block.load_vector(unpack(only_packet(packets), (block.size(),), block.dtype, "the fusion model"))


def refuse_digest(name: str, packets: Packets) -> None:
    """Refuse the digest of a copy of the fusion model in a report where none is due."""
    if packets:
        raise ProtocolError(f"{name}: expected a report without block 0, got one with the digest of a fusion model.")


def refuse_fusion(packets: Packets) -> None:
    """Refuse a fusion model in SYNC where the next step brings it."""
    if packets:
        raise ProtocolError("expected SYNC without the fusion model, which the next step brings, got one with it.")

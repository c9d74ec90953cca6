"""How the fusion model x0 reaches the parties when labels are shared: sent or compressed here, else see replicate.py.

A party's gradient at step t uses x0 as it was *before* the server's own update of step t. Each way has a server's half,
which tells, and a party's half, which hears.
"""

from __future__ import annotations

from typing import Any, Protocol

from efvfl.core.batches import ALL
from efvfl.core.block import Block
from efvfl.core.channel import Channel, Packets, send_exactly, unpack
from efvfl.errors import ProtocolError
from efvfl.wire.packet import Packet


class Teller(Protocol):
    """The server's half."""

    def check(self, step: int, party: int, digest: Packets) -> None:
        """Refuse block 0 of a report that does not belong there."""

    def tell(self, step: int, digests: list[Packets | None]) -> list[Packets]:
        """Return block 0 for every party, empty where nothing is said.

        `digests` is block 0 of their reports, None for a party that is away.
        """

    def resume(self, party: int) -> Packets:
        """Return block 0 for a party (from 0) that was away, empty where it needs nothing before the next step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""


class Hearer(Protocol):
    """A party's half, around its copy of the fusion model."""

    block: Block

    def hear(self, step: int, packets: Packets) -> None:
        """Bring the copy to x0 of this step."""

    @property
    def follows(self) -> bool:
        """Whether the party must repeat the server's update on its copy."""

    def resume(self, packets: Packets, steps: range) -> None:
        """Bring the copy to where it would be if these steps had not been missed, or refuse what came."""

    def digest(self, step: int) -> Packets:
        """Return block 0 of the report on this step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""


def one(packets: Packets) -> Packet:
    """Return the packet of the fusion model."""
    if len(packets) != 1:
        raise ProtocolError(f"the fusion model came in {len(packets)} packets, 1 is expected.")
    return packets[0]


def refuse_digest(party: int, packets: Packets) -> None:
    """Refuse block 0 in the report of a party (from 0) where no digest is due."""
    if packets:
        raise ProtocolError(f"party {party + 1} sent block 0 with its report, but no digest of a fusion model is due.")


def refuse_any(packets: Packets) -> None:
    """Refuse a fusion model where none is due."""
    if packets:
        raise ProtocolError("the fusion model came with SYNC, but the next step brings it.")


def hear_vector(block: Block, packets: Packets) -> None:
    """Overwrite a copy of the fusion model."""
    block.load_vector(unpack(one(packets), (block.size(),), block.dtype, "the fusion model"))


class SendTeller:
    """x0 itself, to everyone, every step."""

    def __init__(self, block: Block, parties: int) -> None:
        """Tell of the server's fusion model."""
        self.block = block
        self.parties = parties

    def check(self, step: int, party: int, digest: Packets) -> None:
        """No digest is ever due."""
        refuse_digest(party, digest)

    def tell(self, step: int, digests: list[Packets | None]) -> list[Packets]:
        """Return the same packet for all."""
        return [send_exactly(self.block.vector())] * self.parties

    def resume(self, party: int) -> Packets:
        """The next step overwrites the copy."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """There is nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load."""


class SendHearer:
    """Takes x0 as it comes."""

    follows = False

    def __init__(self, block: Block) -> None:
        """Write to this copy."""
        self.block = block

    def hear(self, step: int, packets: Packets) -> None:
        """Overwrite the copy."""
        hear_vector(self.block, packets)

    def resume(self, packets: Packets, steps: range) -> None:
        """The next step overwrites the copy."""
        refuse_any(packets)

    def digest(self, step: int) -> Packets:
        """Nothing to compare."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Every step overwrites the copy: there is nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load."""


class CompressTeller:
    """The compressed change of x0 against its memory G0, the paper's block 0."""

    def __init__(self, block: Block, parties: int, channel: Channel) -> None:
        """Tell of the server's fusion model through this channel."""
        self.block = block
        self.parties = parties
        self.channel = channel

    def check(self, step: int, party: int, digest: Packets) -> None:
        """No digest is ever due."""
        refuse_digest(party, digest)

    def tell(self, step: int, digests: list[Packets | None]) -> list[Packets]:
        """Return the same packet for all. The server itself goes on with its exact x0."""
        packets, _ = self.channel.send(ALL, self.block.vector(), step)
        return [packets] * self.parties

    def resume(self, party: int) -> Packets:
        """Return G0 itself."""
        return send_exactly(self.channel.held(ALL))

    def state_dict(self) -> dict[str, Any]:
        """Return the memory."""
        return self.channel.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved memory."""
        self.channel.load_state_dict(state)


class CompressHearer:
    """Works with G0 instead of x0."""

    follows = False

    def __init__(self, block: Block, channel: Channel) -> None:
        """Write to this copy what the channel gives."""
        self.block = block
        self.channel = channel

    def hear(self, step: int, packets: Packets) -> None:
        """Advance G0 and use it."""
        decoded = self.channel.decode(ALL, packets, self.block.size())
        self.block.load_vector(self.channel.hear(ALL, packets, decoded))

    def resume(self, packets: Packets, steps: range) -> None:
        """Take over G0; the next step brings the copy to it."""
        self.channel.restore(ALL, unpack(one(packets), (self.block.size(),), self.block.dtype, "the fusion model"))

    def digest(self, step: int) -> Packets:
        """Nothing to compare: both memories absorb the same packets."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return the memory."""
        return self.channel.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved memory."""
        self.channel.load_state_dict(state)

"""How the fusion model x0 reaches the parties when labels are shared: sent, compressed, or recomputed by everyone.

A party's gradient at step t uses x0 as it was *before* the server's own update of step t. Each way has a server's half,
which tells, and a party's half, which hears.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import torch

from efvfl.batches import ALL
from efvfl.block import Block
from efvfl.channel import Channel, Packets, send_exactly, unpack
from efvfl.compress import Identity
from efvfl.errors import ProtocolError
from efvfl.packet import DTYPES, Packet

DIGEST = 8  # bytes
MENDS = 2  # exact copies a replica gets; at the next mismatch it is sent every step


class Teller(Protocol):
    """The server's half."""

    def check(self, step: int, party: int, digest: Packets) -> None:
        """Refuse block 0 of a report that does not belong there."""

    def tell(self, step: int, digests: list[Packets]) -> list[Packets]:
        """Return block 0 for every party, empty where nothing is said; `digests` is block 0 of their reports."""

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

    def digest(self, step: int) -> Packets:
        """Return block 0 of the report on this step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""


def _one(packets: Packets) -> Packet:
    if len(packets) != 1:
        raise ProtocolError(f"the fusion model came in {len(packets)} packets, 1 is expected.")
    return packets[0]


def refuse_digest(party: int, packets: Packets) -> None:
    """Refuse block 0 in the report of a party (from 0) where no digest is due."""
    if packets:
        raise ProtocolError(f"party {party + 1} sent block 0 with its report, but no digest of a fusion model is due.")


def _digest_in(packets: Packets, name: str) -> bytes:
    """Return the 8 bytes of a digest that is due."""
    if len(packets) != 1 or packets[0].codec != Identity.code or packets[0].dtype != DTYPES[2]:
        raise ProtocolError(f"party {name!r} must send one digest of its fusion model now, but something else came.")
    if packets[0].shape != (DIGEST,) or len(packets[0].body) != DIGEST:
        raise ProtocolError(f"a digest of shape {packets[0].shape} came from {name!r}, {DIGEST} bytes are expected.")
    return packets[0].body


def _hear_vector(block: Block, packets: Packets) -> None:
    block.load_vector(unpack(_one(packets), (block.size(),), block.dtype, "the fusion model"))


class SendTeller:
    """x0 itself, to everyone, every step."""

    def __init__(self, block: Block, parties: int) -> None:
        """Tell of the server's fusion model."""
        self.block = block
        self.parties = parties

    def check(self, step: int, party: int, digest: Packets) -> None:
        """No digest is ever due."""
        refuse_digest(party, digest)

    def tell(self, step: int, digests: list[Packets]) -> list[Packets]:
        """Return the same packet for all."""
        return [send_exactly(self.block.vector())] * self.parties

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
        _hear_vector(self.block, packets)

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

    def tell(self, step: int, digests: list[Packets]) -> list[Packets]:
        """Return the same packet for all. The server itself goes on with its exact x0."""
        packets, _ = self.channel.send(ALL, self.block.vector(), step)
        return [packets] * self.parties

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

    def digest(self, step: int) -> Packets:
        """Nothing to compare: both memories absorb the same packets."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return the memory."""
        return self.channel.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved memory."""
        self.channel.load_state_dict(state)


class ReplicateTeller:
    """Nothing but the first copy, as long as the parties' digests agree with the server's."""

    def __init__(self, block: Block, names: list[str], every: int) -> None:
        """Compare every so many steps."""
        self.block = block
        self.names = names
        self.every = every
        self.mends = [0] * len(names)

    def tell(self, step: int, digests: list[Packets]) -> list[Packets]:
        """Return exact copies where they are needed."""
        due = step > 0 and step % self.every == 0
        expects = [self._expects(step, party) for party in range(len(self.names))]
        theirs = [_digest_in(d, n) if e else b"" for e, d, n in zip(expects, digests, self.names, strict=True)]
        if step == 0:
            return [send_exactly(self.block.exact_vector())] * len(self.names)
        own = self.block.digest() if due else b""
        return [self._tell_one(party, expects[party] and theirs[party] != own) for party in range(len(self.names))]

    def _expects(self, step: int, party: int) -> bool:
        return step > 0 and step % self.every == 0 and self.mends[party] <= MENDS

    def check(self, step: int, party: int, digest: Packets) -> None:
        """A digest must be there when it is due, and only then."""
        if self._expects(step, party):
            _digest_in(digest, self.names[party])
        else:
            refuse_digest(party, digest)

    def _tell_one(self, party: int, mismatch: bool) -> Packets:
        self.mends[party] += mismatch
        if self.mends[party] > MENDS:
            if mismatch:
                warnings.warn(
                    f"party {self.names[party]!r} computed another fusion model than the server for the third time: it "
                    "is sent every step from now on. Other processors or versions may do that; set fusion = 'send'.",
                    stacklevel=2,
                )
            return send_exactly(self.block.vector())
        return send_exactly(self.block.exact_vector()) if mismatch else ()

    def state_dict(self) -> dict[str, Any]:
        """Return how often each party was mended."""
        return {"mends": list(self.mends)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved counts."""
        self.mends = [int(count) for count in state["mends"]]


class ReplicateHearer:
    """Repeats the server's updates on its own copy, optimiser state and buffers included."""

    def __init__(self, block: Block, every: int) -> None:
        """Hold a copy that learns."""
        self.block = block
        self.every = every
        self.started = False
        self.mends = 0

    @property
    def follows(self) -> bool:
        """Until it went wrong once too often."""
        return self.mends <= MENDS

    def hear(self, step: int, packets: Packets) -> None:
        """Take over an exact copy, if one came."""
        if not packets:
            if not self.started or not self.follows:
                raise ProtocolError(f"the server's reply to step {step} lacks the fusion model.")
            return
        mends = self.mends + (self.started and self.follows)
        if mends > MENDS:
            _hear_vector(self.block, packets)
        else:
            shape = (self.block.exact_size(),)
            self.block.load_exact_vector(unpack(_one(packets), shape, torch.float64, "the fusion model's exact copy"))
        self.started, self.mends = True, mends

    def digest(self, step: int) -> Packets:
        """Return the digest when it is due."""
        if step == 0 or step % self.every or not self.follows:
            return ()
        return (Packet(Identity.code, DTYPES[2], (DIGEST,), self.block.digest()),)

    def state_dict(self) -> dict[str, Any]:
        """Return the copy and how it fared."""
        return {"block": self.block.state_dict(), "started": self.started, "mends": self.mends}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved copy."""
        self.block.load_state_dict(state["block"])
        self.started, self.mends = bool(state["started"]), int(state["mends"])

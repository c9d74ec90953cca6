"""The fusion model at parties that recompute it: they repeat the server's updates, and digests are compared.

Nothing is sent but the first copy, until a digest differs. That is mended with an exact copy, and after a few mends the
fusion model is sent every step.

With a pipeline the copy is some steps behind the report that its digest is in: a byte after the digest says how many.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from efvfl.core.block import Block
from efvfl.core.channel import Packets, read_bytes, send_bytes, send_exactly, unpack
from efvfl.core.fusion_updates import load_vector, only_packet, refuse_digest, refuse_fusion
from efvfl.errors import ProtocolError

DIGEST = 8  # bytes
PER_NUMBER = 5  # numbers of an exact copy for each number of the model, at most: optimisers keep up to four tensors
MENDS = 2  # exact copies a replica gets; at the next mismatch it is sent every step


class ReplicaSender:
    """Sends nothing but the first copy, as long as the parties' digests agree with the server's."""

    def __init__(self, block: Block, names: list[str], every: int, window: int = 1) -> None:
        """Compare digests every so many steps; `window` steps are under way at a time."""
        self.block = block
        self.every = every
        self.window = window
        self.mends = dict.fromkeys(names, 0)
        self.mended = dict.fromkeys(names, 0)  # the last step whose answer had an exact copy
        self._digests: dict[int, bytes] = {}  # of the server's own copy, before the updates of the last steps

    def check(self, step: int, name: str, digest: Packets) -> None:
        """Want a digest when it is due, and refuse it otherwise."""
        if not _is_due(step, self.every) or (self._sends(name) and not digest):
            refuse_digest(name, digest)
        elif _read_digest(digest, step, self.window, name)[0] > self.mended[name] and self._sends(name):
            refuse_digest(name, digest)  # one of a report that was on its way when x0 was sent at first is fine

    def send(self, step: int, digests: Mapping[str, Packets]) -> dict[str, Packets]:
        """Return exact copies where they are needed."""
        if step == 0:
            return dict.fromkeys(digests, send_exactly(self.block.exact_vector()))
        if -step % self.every < self.window:  # a report that may be about this copy has a digest
            self._digests = {at: own for at, own in self._digests.items() if at > step - self.window}
            self._digests[step] = self.block.digest()
        differs = {name: self._differs(step, name, digest) for name, digest in digests.items()}
        return {name: self._copy_for(step, name, mismatch) for name, mismatch in differs.items()}

    def catch_up(self, name: str) -> Packets:
        """Return an exact copy, unless x0 is sent every step anyway."""
        if self._sends(name):
            return ()
        return (*send_bytes(self.block.learnt()), *send_exactly(self.block.exact_vector()))

    def _sends(self, name: str) -> bool:
        """Whether a party is sent x0 every step."""
        return self.mends[name] > MENDS

    def _differs(self, step: int, name: str, digest: Packets) -> bool:
        """Whether a report shows that a copy has gone wrong since it was last sent."""
        if not _is_due(step, self.every) or self._sends(name):
            return False
        at, theirs = _read_digest(digest, step, self.window, name)
        return at > self.mended[name] and theirs != self._digests[at]

    def _copy_for(self, step: int, name: str, mismatch: bool) -> Packets:
        if mismatch:
            self.mends[name] += 1
            self.mended[name] = step
        if self._sends(name):
            if mismatch:
                warnings.warn(
                    f"party {name!r} computed another fusion model than the server for the third time: it is sent "
                    "every step from now on. Other processors or versions may do that; set fusion = 'send'.",
                    stacklevel=2,
                )
            return send_exactly(self.block.vector())
        return send_exactly(self.block.exact_vector()) if mismatch else ()

    def state_dict(self) -> dict[str, Any]:
        """Return how often each party was mended and when, and the digests that reports may still be about."""
        digests = [[at, own] for at, own in self._digests.items()]
        return {"mends": dict(self.mends), "mended": dict(self.mended), "digests": digests}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.mends = {name: int(count) for name, count in state["mends"].items()}
        self.mended = {name: int(step) for name, step in state["mended"].items()}
        self._digests = {int(at): bytes(own) for at, own in state["digests"]}


def _is_due(step: int, every: int) -> bool:
    """Whether a report on this step has a digest."""
    return step > 0 and step % every == 0


def _read_digest(packets: Packets, step: int, window: int, name: str) -> tuple[int, bytes]:
    """Return the step before whose update a copy was like that, and its digest; or refuse the packets."""
    found = read_bytes(packets, DIGEST + (window > 1), f"the digest of {name}'s fusion model, which is due now")
    behind = found[DIGEST] if window > 1 else 0
    if behind > min(window - 1, step):
        raise ProtocolError(
            f"{name}: expected the digest of a fusion model at most {min(window - 1, step)} steps before step {step}, "
            f"got one of {behind} steps before."
        )
    return step - behind, found[:DIGEST]


class ReplicaReceiver:
    """Repeats the server's updates on its own copy, optimiser state and buffers included."""

    def __init__(self, block: Block, every: int, window: int = 1) -> None:
        """Hold a copy that learns, and give its digest every so many steps."""
        self.block = block
        self.every = every
        self.window = window
        self.started = False
        self.mends = 0

    @property
    def follows(self) -> bool:
        """Whether it repeats updates: until it went wrong once too often."""
        return self.mends <= MENDS

    def receive(self, step: int, packets: Packets) -> None:
        """Take over an exact copy, if there is one."""
        if not packets:
            if not self.started or not self.follows:
                raise ProtocolError(f"expected the fusion model in the server's answer to step {step}, got none.")
            return
        mends = self.mends + (self.started and self.follows)
        if mends > MENDS:
            load_vector(self.block, packets)
        else:
            shape = (self.block.exact_size(),)
            vector = unpack(only_packet(packets), shape, torch.float64, "the fusion model's exact copy")
            self.block.load_exact_vector(vector)
        self.started, self.mends = True, mends

    def catch_up(self, packets: Packets, steps: range) -> None:
        """Take over an exact copy; it does not count as a mend."""
        if not self.follows:
            refuse_fusion(packets)
            return
        if len(packets) != 2:
            raise ProtocolError(f"the fusion model: expected 2 packets, got {len(packets)}.")
        learnt = read_bytes(packets[:1], len(self.block.parameters), "the list of parameters that have learnt")
        most = self.block.size() * PER_NUMBER
        if not packets[1].shape or packets[1].shape[0] > most:
            raise ProtocolError(f"the fusion model: expected at most {most:,} numbers, got shape {packets[1].shape}.")
        vector = unpack(packets[1], packets[1].shape[:1], torch.float64, "the fusion model's exact copy")
        self.block.take_over(vector, learnt)
        self.block.end_steps(steps)
        self.started = True

    def digest(self, step: int, at: int) -> Packets:
        """Return the digest when it is due."""
        if not _is_due(step, self.every) or not self.follows:
            return ()
        return send_bytes(self.block.digest() + (bytes([step - at]) if self.window > 1 else b""))

    def state_dict(self) -> dict[str, Any]:
        """Return the copy, and how often it was mended."""
        return {"block": self.block.state_dict(), "started": self.started, "mends": self.mends}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved copy."""
        self.block.load_state_dict(state["block"])
        self.started, self.mends = bool(state["started"]), int(state["mends"])

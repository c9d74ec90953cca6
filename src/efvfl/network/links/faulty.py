"""A wire that loses, repeats, reorders and corrupts frames on purpose, to test a deployment against.

Whatever it does, a run over it must end with the same bits as a run over a reliable wire.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from random import Random

from efvfl.errors import ConfigError, LinkError
from efvfl.network.links.wire import Wire


@dataclass(frozen=True)
class Faults:
    """The probability of each fault of an outgoing frame; otherwise it is sent unchanged."""

    drop: float = 0.0  # it never arrives
    repeat: float = 0.0  # it arrives twice
    delay: float = 0.0  # it is held back until the next one has been sent
    truncate: float = 0.0  # its end is lost
    corrupt: float = 0.0  # up to three of its bytes are altered
    cut: float = 0.0  # the wire breaks, and the frame with it

    def __post_init__(self) -> None:
        """Refuse values that are not probabilities of exclusive events."""
        shares = astuple(self)
        if min(shares) < 0 or sum(shares) > 1:
            raise ConfigError(f"expected probabilities from 0 that add up to at most 1, got {self}.")

    def draw(self, rng: Random) -> str:
        """Return the name of the fault that a frame meets, '' for none."""
        value = rng.random()
        for fault in fields(self):
            value -= getattr(self, fault.name)
            if value < 0:
                return fault.name
        return ""


class FaultyWire:
    """A wire with faults in what it sends. For faults in both directions, wrap the other end too."""

    def __init__(self, wire: Wire, faults: Faults, rng: Random) -> None:
        """Send through `wire`; the generator decides which frames meet a fault."""
        self._wire = wire
        self._faults = faults
        self._rng = rng
        self._delayed: list[bytes] = []

    def send(self, data: bytes) -> None:
        """Send a frame, or what the fault leaves of it."""
        fault, delayed = self._faults.draw(self._rng), self._delayed
        self._delayed = []
        match fault:
            case "drop":
                sent = []
            case "repeat":
                sent = [data, data]
            case "delay":
                sent, self._delayed = [], [data]
            case "truncate":
                sent = [data[: self._rng.randrange(len(data))]] if data else []
            case "corrupt":
                sent = [self._corrupted(data)]
            case "cut":
                self.close()
                raise LinkError("the wire was cut on purpose.")
            case _:
                sent = [data]
        for frame in (*sent, *delayed):
            self._wire.send(frame)

    def _corrupted(self, data: bytes) -> bytes:
        corrupted = bytearray(data)
        for place in self._rng.sample(range(len(data)), min(len(data), self._rng.randint(1, 3))):
            corrupted[place] ^= self._rng.randint(1, 255)
        return bytes(corrupted)

    def receive(self, timeout: float | None) -> bytes:
        """Return the next frame's bytes, unchanged."""
        return self._wire.receive(timeout)

    def close(self) -> None:
        """Close the wire. A delayed frame is lost."""
        self._wire.close()

    def trust(self) -> None:
        """Receive frames as long as agreed from now on."""
        self._wire.trust()

    @property
    def settled(self) -> bool:
        """Whether all that was sent, and not lost on purpose, has left this process."""
        return self._wire.settled

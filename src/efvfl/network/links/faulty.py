"""A bad network on purpose: a wire that loses, repeats, reorders and spoils frames, to try a deployment against.

Whatever it does, a run over it must end with the same bits as a run over a good wire.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from random import Random

from efvfl.errors import ConfigError, LinkError
from efvfl.network.links.wire import Wire


@dataclass(frozen=True)
class Faults:
    """What happens to an outgoing frame, as probabilities; in all other cases it is sent as it is."""

    drop: float = 0.0  # it never arrives
    repeat: float = 0.0  # it arrives twice
    delay: float = 0.0  # it is held back until the next one has been sent
    truncate: float = 0.0  # its end is lost
    corrupt: float = 0.0  # up to three of its bytes are altered
    cut: float = 0.0  # the wire breaks, and the frame with it

    def __post_init__(self) -> None:
        """Refuse what are no probabilities of things that exclude each other."""
        shares = astuple(self)
        if min(shares) < 0 or sum(shares) > 1:
            raise ConfigError(f"{self} came: probabilities from 0 that add up to at most 1 are expected.")

    def draw(self, rng: Random) -> str:
        """Return what happens to a frame, '' for nothing."""
        value = rng.random()
        for fault in fields(self):
            value -= getattr(self, fault.name)
            if value < 0:
                return fault.name
        return ""


class FaultyWire:
    """A wire around a wire. What comes in is left alone: wrap the other end too for faults in both directions."""

    def __init__(self, wire: Wire, faults: Faults, rng: Random) -> None:
        """Send through `wire`, as the generator decides."""
        self._wire = wire
        self._faults = faults
        self._rng = rng
        self._held: list[bytes] = []

    def send(self, data: bytes) -> None:
        """Hand over a frame, or what becomes of it."""
        fault, held = self._faults.draw(self._rng), self._held
        self._held = []
        match fault:
            case "drop":
                sent = []
            case "repeat":
                sent = [data, data]
            case "delay":
                sent, self._held = [], [data]
            case "truncate":
                sent = [data[: self._rng.randrange(len(data))]] if data else []
            case "corrupt":
                sent = [self._corrupted(data)]
            case "cut":
                self.close()
                raise LinkError("the wire was cut on purpose.")
            case _:
                sent = [data]
        for frame in (*sent, *held):
            self._wire.send(frame)

    def _corrupted(self, data: bytes) -> bytes:
        spoilt = bytearray(data)
        for place in self._rng.sample(range(len(data)), min(len(data), self._rng.randint(1, 3))):
            spoilt[place] ^= self._rng.randint(1, 255)
        return bytes(spoilt)

    def receive(self, timeout: float | None) -> bytes:
        """Return the next frame's bytes, as they came."""
        return self._wire.receive(timeout)

    def close(self) -> None:
        """Cut the wire. What was held back is lost."""
        self._wire.close()

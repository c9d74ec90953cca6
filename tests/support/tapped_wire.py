"""A wire that keeps what is sent or received on it."""

from collections.abc import Callable
from dataclasses import dataclass

from efvfl.network.links.wire import Wire


def _drop(data: bytes) -> None:
    """Keep nothing."""


@dataclass(eq=False)
class TappedWire:
    """Another wire, of which somebody is shown every frame."""

    wire: Wire
    sent: Callable[[bytes], None] = _drop
    received: Callable[[bytes], None] = _drop

    def send(self, data: bytes) -> None:
        self.sent(data)
        self.wire.send(data)

    def receive(self, timeout: float | None) -> bytes:
        data = self.wire.receive(timeout)
        self.received(data)
        return data

    def close(self) -> None:
        self.wire.close()

    def trust(self) -> None:
        self.wire.trust()

    @property
    def settled(self) -> bool:
        return self.wire.settled

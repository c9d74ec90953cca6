"""Places for connections: how many there may be in all and from one address, and which one makes room for another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from efvfl.network.links.origin import origin_of


@dataclass(frozen=True)
class PlaceLimits:
    """How many connections clients may have, and how long they may take."""

    in_all: int = 512
    by_address: int = 128
    kept_free: int = 32  # of all, for addresses that have no connection
    handshake: float = 5.0  # seconds from the TCP connection to the end of the TLS handshake
    head: float = 5.0  # seconds to a request's complete headers, from the handshake or the last response
    closing: float = 1.0  # seconds for the client to confirm the end of TLS


@dataclass(eq=False)
class Place:
    """The place of one connection."""

    origin: str
    close: Callable[[], object]  # cuts the connection
    busy: bool = False  # a request is being answered
    trusted: bool = False  # somebody with credentials has asked on it: it is cut after all others, and not while busy


class Places:
    """All places. A connection that finds them taken gets that of another, unless all have clients to answer."""

    def __init__(self, limits: PlaceLimits) -> None:
        """Have as many as the limits say."""
        self.limits = limits
        self._by_origin: dict[str, list[Place]] = {}  # the oldest first

    def __len__(self) -> int:
        return sum(map(len, self._by_origin.values()))

    def take(self, address: str, close: Callable[[], object]) -> Place | None:
        """Return a place for a connection from this address; None if there is none for it."""
        origin = origin_of(address)
        held = self._by_origin.get(origin, [])
        if len(held) >= self.limits.by_address:
            made = self._cut(held)
        elif len(self) >= self.limits.in_all - (self.limits.kept_free if held else 0):
            made = self.make_room()
        else:
            made = True
        if not made:
            return None
        place = Place(origin, close)
        self._by_origin.setdefault(origin, []).append(place)
        return place

    def make_room(self) -> bool:
        """Cut a connection of the address that has most of them; return False if all have clients to answer."""
        return any(self._cut(held) for held in sorted(self._by_origin.values(), key=len, reverse=True))

    def release(self, place: Place) -> None:
        """Give a place back; no harm if it was given back before."""
        held = self._by_origin.get(place.origin, [])
        if place in held:
            held.remove(place)
        if not held:
            self._by_origin.pop(place.origin, None)

    def _cut(self, held: Iterable[Place]) -> bool:
        idle = sorted((place for place in held if not (place.busy and place.trusted)), key=lambda place: place.trusted)
        for place in idle[:1]:
            self.release(place)
            place.close()
        return bool(idle)

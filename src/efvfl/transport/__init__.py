"""How messages travel."""

from efvfl.transport.base import Handler, Transport
from efvfl.transport.local import LocalTransport

__all__ = ["Handler", "LocalTransport", "Transport"]

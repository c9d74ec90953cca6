"""Certificates: the identity of a participant on the network."""

from efvfl.util.extras import optional

with optional("network", "a federation over a network"):
    import cryptography  # noqa: F401  (here once for all modules of this package, which import it as usual)

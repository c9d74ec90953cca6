"""Certificates: the identity of a participant on the network."""

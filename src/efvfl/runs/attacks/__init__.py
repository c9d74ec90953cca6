"""Attacks on a federation in one process: what a curious party, and the server, make of what they are sent."""

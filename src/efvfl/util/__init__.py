"""Utilities: randomness, files, saved states, compiled kernels."""

"""Attacks on labels and columns: data, methods and defences, each beside its price in accuracy."""

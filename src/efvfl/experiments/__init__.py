"""Experiments of many runs: those of the paper, their tables and figures."""

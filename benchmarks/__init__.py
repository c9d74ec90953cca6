"""Benchmarks: ratios measured in one run with both sides alternating, so that a busy machine slows down both."""

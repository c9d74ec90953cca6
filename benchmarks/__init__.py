"""Ratios taken in one run, both sides alternating, so that a busy machine slows both."""

"""Runs: from a file to a trained federation, what a run leaves in its folder, and pages about it."""

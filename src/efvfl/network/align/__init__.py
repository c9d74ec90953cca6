"""Alignment: finding the rows that all participants share."""

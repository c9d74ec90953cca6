"""Certificates: who may speak."""

"""Predictions for clients, over HTTPS."""

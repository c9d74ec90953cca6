"""The wire format: packets, messages, and a ledger of their bytes."""

"""What travels: packets, messages, and a count of their bytes."""

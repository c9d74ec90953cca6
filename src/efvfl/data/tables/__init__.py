"""Tables of parties: reading, ids, splits, encoding as numbers, and inspection."""

"""What would go wrong: files, tables, keys, disk, clock and the line, looked at before a federation starts."""

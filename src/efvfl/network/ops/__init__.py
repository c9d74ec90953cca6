"""What an operator sees: the audit log, the status line, locks, signals."""

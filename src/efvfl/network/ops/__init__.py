"""Operations: the audit log, the status line, locks and signals."""

"""The paper: parties, the server, what they remember and what they send. No transport, no files."""

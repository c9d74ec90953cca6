"""A federation over a network: one connection for each party, and recovery from the crash of any participant."""

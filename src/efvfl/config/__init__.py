"""The run file: its keys, how they are read, and what cannot be combined."""

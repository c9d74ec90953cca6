"""A participant as a process: the label holder and the parties."""

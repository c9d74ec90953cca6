"""Training in one process: `federate`, the loop, records, and what they measure."""

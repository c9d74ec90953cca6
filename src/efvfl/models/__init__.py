"""Local models and fusion models that a run file can name."""

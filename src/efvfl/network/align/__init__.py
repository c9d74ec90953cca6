"""Which rows all participants share."""

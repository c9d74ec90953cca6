"""One run: built from a file, trained, saved, measured, shown."""

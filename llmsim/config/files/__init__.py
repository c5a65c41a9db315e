"""Reads the files that a run is made of, and remembers what was read."""

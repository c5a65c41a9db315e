"""Reads and checks the cluster file: pydantic models, dialects, positions of errors."""

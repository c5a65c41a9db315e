"""Writes results to files; every file appears whole or not at all."""

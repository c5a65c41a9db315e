"""Writes the timeline of a run for Perfetto."""

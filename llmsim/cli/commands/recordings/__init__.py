"""Verbs about recordings of real engines: comparison, calibration, conformance."""

"""Fits calibration constants to a log of a real server."""

"""Renders comparisons and calibrations as tables and plots."""

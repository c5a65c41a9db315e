"""Trace formats that providers published."""

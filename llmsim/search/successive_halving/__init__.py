"""Successive halving: which points a rung runs, leaves out by their bounds, or stops above their
ceilings.
"""

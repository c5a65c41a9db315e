"""Reads profiles that others measured and writes them as bundles: one module per format, one report
for all.
"""

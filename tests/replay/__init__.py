"""Runs whose results a change of structure must keep: every bundled cluster, and each option with a
path of its own.
"""

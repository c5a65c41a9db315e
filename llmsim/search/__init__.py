"""Searches deployments: many runs over a space of cluster files and options, and which of them are
best.
"""

"""Verbs about files that a run reads: clusters, traces and operator times."""

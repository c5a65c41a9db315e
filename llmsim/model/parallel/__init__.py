"""Transforms operators for parallel layouts: tensor, sequence, context and expert parallelism."""

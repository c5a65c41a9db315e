"""Lowers a group's layout: ranks, pipeline stages, context parallelism, adapters, overlap."""

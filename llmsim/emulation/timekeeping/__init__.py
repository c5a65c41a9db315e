"""Keeps virtual time: actors, barriers, messages under way, KV moves."""

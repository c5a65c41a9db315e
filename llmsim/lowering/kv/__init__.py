"""Lowers KV transfers between groups, KV tiers and hybrid KV caches."""

"""Collectives on links that other groups, or KV, use too: who meets, and what moves."""

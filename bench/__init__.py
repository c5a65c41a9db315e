"""Benchmarks: every claim about speed or memory is a line here."""

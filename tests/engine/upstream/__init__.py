"""Strict rules against an ASTRA-sim of yours, on random cases: `make fuzz-strict UPSTREAM=PATH`."""

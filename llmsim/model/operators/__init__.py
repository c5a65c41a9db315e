"""Builds the operators of a decoder: GEMMs, attention variants, experts, state-space layers."""

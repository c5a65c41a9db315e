"""Samples the loads of experts by routing policy."""

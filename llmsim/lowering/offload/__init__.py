"""Lowers weights, operators and attention that are kept outside of the device."""

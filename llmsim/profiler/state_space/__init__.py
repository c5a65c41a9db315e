"""Kernels of layers that keep a state."""

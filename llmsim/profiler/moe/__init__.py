"""Kernels of experts."""

"""Computes the device memory of a model: weights, activations, KV cache and states."""

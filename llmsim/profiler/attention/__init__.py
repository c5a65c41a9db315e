"""Attention kernels: paged, latent (MLA), sparse."""

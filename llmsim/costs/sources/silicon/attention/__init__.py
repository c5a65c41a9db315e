"""Times of attention kernels from the silicon database: dense, latent, sparse and linear."""

"""What NCCL, and vLLM's own all-reduce, take for a collective: by protocol, algorithm and place."""

"""vLLM's own scheduler beside ours, on the same requests and step times."""

"""Data-parallel ranks of the installed vLLM that share experts, each with its own loop."""

"""llmsim simulates LLM serving clusters: schedulers, KV caches, operators and networks, without a GPU."""

__version__ = "0.1.0"

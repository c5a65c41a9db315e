"""llmsim simulates LLM serving clusters: schedulers, KV caches, operators and networks, without a GPU."""

from llmsim.native_build import install_finder

__version__ = "0.1.0"

install_finder()

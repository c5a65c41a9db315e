"""Names of what vLLM's OffloadingConnector may do."""

from llmsim import _native

EVICTIONS = {"lru": _native.OffloadingEviction.LRU, "arc": _native.OffloadingEviction.ARC}
"""`eviction_policy` -> which chunks a full pool of host memory gives up."""

"""Names of what vLLM's OffloadingConnector may do."""

from llmsim import _native
from llmsim.config.engine.profile import EngineProfile

EVICTIONS = {
    _native.OffloadingEviction.LRU: "lru",
    _native.OffloadingEviction.LRU_BY_CHUNK: "lru",
    _native.OffloadingEviction.ARC: "arc",
}
"""Which chunks a full pool of host memory gives up -> its `eviction_policy`."""


def eviction_of(name: str, profile: EngineProfile) -> "_native.OffloadingEviction":
    """What a release does by an `eviction_policy`."""
    if name == "arc":
        return _native.OffloadingEviction.ARC
    if profile.schedules_by("ages_requests"):
        return _native.OffloadingEviction.LRU
    return _native.OffloadingEviction.LRU_BY_CHUNK

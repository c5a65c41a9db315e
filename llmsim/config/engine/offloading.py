"""Names of what vLLM's OffloadingConnector may do."""

from llmsim import _native
from llmsim.config.engine.profile import EngineProfile
from llmsim.config.engine.version_rules import set_rules

EVICTIONS = {
    _native.OffloadingEviction.LRU: "lru",
    _native.OffloadingEviction.LRU_BY_CHUNK: "lru",
    _native.OffloadingEviction.ARC: "arc",
    _native.OffloadingEviction.TOUCHED_LRU: "lru",
    _native.OffloadingEviction.TOUCHED_ARC: "arc",
}
"""Which chunks a full pool of host memory gives up -> its `eviction_policy`."""


def eviction_of(name: str, profile: EngineProfile) -> "_native.OffloadingEviction":
    """What a release does by an `eviction_policy`."""
    if not profile.schedules_by("uses_once"):
        kinds = _native.OffloadingEviction
        return kinds.TOUCHED_ARC if name == "arc" else kinds.TOUCHED_LRU
    if name == "arc":
        return _native.OffloadingEviction.ARC
    if profile.schedules_by("ages_requests"):
        return _native.OffloadingEviction.LRU
    return _native.OffloadingEviction.LRU_BY_CHUNK


def follow_release(
    native: "_native.OffloadingConfig", eviction: str, profile: EngineProfile
) -> None:
    """Makes a pool of this `eviction_policy` follow the rules of a release."""
    native.eviction = eviction_of(eviction, profile)
    set_rules(native.rules, profile.rules)

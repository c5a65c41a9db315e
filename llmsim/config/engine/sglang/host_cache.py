"""What SGLang's options of a hierarchical cache (HiCache) are to the core."""

from llmsim import _native
from llmsim.config.engine.options import HICACHE_PREFETCH_POLICIES, HICACHE_WRITE_POLICIES

HOST_WRITES = dict(
    zip(
        HICACHE_WRITE_POLICIES,
        (
            _native.HostCacheWrite.THROUGH,
            _native.HostCacheWrite.THROUGH_SELECTIVE,
            _native.HostCacheWrite.BACK,
        ),
        strict=True,
    )
)
"""`hicache_write_policy` -> when pages are copied to the host."""

PREFETCHES = dict(
    zip(
        HICACHE_PREFETCH_POLICIES,
        (
            _native.StoragePrefetch.TIMEOUT,
            _native.StoragePrefetch.WAIT_COMPLETE,
            _native.StoragePrefetch.BEST_EFFORT,
        ),
        strict=True,
    )
)
"""`hicache_storage_prefetch_policy` -> when requests no longer wait for storage."""


def host_pages(tokens: int, page_size: int) -> int:
    """Pages of a host pool for so many tokens: one more than fit (SGLang 0.5.23: HostKVCache)."""
    return tokens // page_size + 1

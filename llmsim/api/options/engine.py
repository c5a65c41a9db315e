"""Options of `llmsim run`: the engine's: vLLM's names for its settings, and the scheduler's
policies.
"""

from typing import Annotated

from llmsim.api.options.option import option

PANEL = "Engine (vLLM's names)"

QueueOrder = Annotated[
    str | None,
    option(
        PANEL,
        "--queue-order",
        text="Orders the waiting queue by a Python class, given as module:Class.",
    ),
]
PreemptionVictim = Annotated[
    str | None,
    option(
        PANEL,
        "--preemption-victim",
        text="Chooses the requests that vllm_v1 preempts by a Python class, given as module:Class.",
    ),
]
CacheEviction = Annotated[
    str | None,
    option(
        PANEL,
        "--cache-eviction",
        text="Chooses the cached blocks to evict by a Python class, given as module:Class.",
    ),
]
Admission = Annotated[
    str | None,
    option(
        PANEL,
        "--admission",
        text=(
            "Turns requests away by QUEUE_LIMIT:requests=N or by a Python class, given as "
            "module:Class."
        ),
    ),
]
PrefixSharing = Annotated[
    bool,
    option(
        PANEL,
        "--enable-prefix-sharing",
        text=(
            "Shares one KV pool among the instances of a node (CPU, SSD) or of the cluster (CXL, "
            "NVMEOF)."
        ),
    ),
]
PrefixStorage = Annotated[
    str | None,
    option(
        PANEL,
        "--prefix-storage",
        text="Lists the KV tiers below the devices: None, or CPU, CXL, SSD, NVMEOF joined by +.",
    ),
]
KvTierWrite = Annotated[
    str | None,
    option(
        PANEL,
        "--kv-tier-write",
        text=(
            "Sets when KV tiers are written: write-through, write-through-selective or write-back."
        ),
    ),
]
KvTierEviction = Annotated[
    str | None,
    option(
        PANEL,
        "--kv-tier-eviction",
        text=(
            "Sets the eviction of KV tiers: lru, lfu or cost; one for all tiers, or one per tier "
            "joined by +."
        ),
    ),
]
KvTierRecall = Annotated[
    str | None,
    option(
        PANEL,
        "--kv-tier-recall",
        text=(
            "Sets how KV is recalled: sync makes the batch wait, async parks the recalling "
            "request alone."
        ),
    ),
]
KvChunkSize = Annotated[
    int | None,
    option(
        PANEL, "--kv-chunk-size", text="Sets the tokens of a chunk in KV tiers; 256 if not given."
    ),
]

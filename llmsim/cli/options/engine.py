"""Options of `llmsim run`: the engine's: vLLM's names for its settings, and the scheduler's policies."""

from typing import Annotated

from llmsim.cli.options.panel import option

PANEL = "Engine (vLLM's names)"

EngineProfile = Annotated[
    str | None, option(PANEL, "--engine-profile", text="Applies the defaults of an engine version, such as vllm-0.24.")
]
MaxNumSeqs = Annotated[
    int | None, option(PANEL, "--max-num-seqs", "--max-batch", text="Limits the sequences of a step; 0 sets no limit.")
]
MaxNumBatchedTokens = Annotated[
    int | None, option(PANEL, "--max-num-batched-tokens", text="Limits the tokens of a step.")
]
LongPrefill = Annotated[
    int | None,
    option(PANEL, "--long-prefill-token-threshold", text="Limits the tokens of one prompt in a step; 0 sets no limit."),
]
MaxNumScheduledTokens = Annotated[
    int | None,
    option(
        PANEL,
        "--max-num-scheduled-tokens",
        text="Limits the tokens that the scheduler puts into a step, at most --max-num-batched-tokens.",
    ),
]
MaxNumActiveSeqs = Annotated[
    int | None, option(PANEL, "--max-num-active-seqs", text="Limits the running sequences (vllm-0.33).")
]
AdaptiveThreshold = Annotated[
    bool | None,
    option(
        PANEL,
        "--long-prefill-token-threshold-adaptive/--no-long-prefill-token-threshold-adaptive",
        text="Raises --long-prefill-token-threshold to each request's share of the token budget (vllm-0.33).",
    ),
]
PrefillInterval = Annotated[
    int | None,
    option(
        PANEL,
        "--prefill-schedule-interval",
        text="Schedules prompts in every N-th step only while other requests decode.",
    ),
]
MaxQueuedReqs = Annotated[
    int | None, option(PANEL, "--max-num-queued-reqs", text="Turns requests away when N requests wait (vllm-0.33).")
]
MaxQueuedTokens = Annotated[
    int | None,
    option(
        PANEL, "--max-num-queued-tokens", text="Turns requests away when waiting prompts hold N tokens (vllm-0.33)."
    ),
]
CudagraphMode = Annotated[
    str | None,
    option(
        PANEL,
        "--cudagraph-mode",
        text="Sets the CUDA graph mode: NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE.",
    ),
]
CudagraphSizes = Annotated[
    str | None,
    option(PANEL, "--cudagraph-capture-sizes", text="Lists the token counts that have a CUDA graph, such as 1,2,4,8."),
]
EnforceEager = Annotated[
    bool | None,
    option(PANEL, "--enforce-eager/--no-enforce-eager", text="Runs without CUDA graphs and without compilation."),
]
Launch = Annotated[
    float | None,
    option(PANEL, "--launch-ns", text="Sets the host time of one kernel launch in steps without a CUDA graph."),
]
Speculative = Annotated[
    str | None,
    option(
        PANEL,
        "--speculative-config",
        text='vLLM\'s JSON, with how many drafts hold: {"method": "eagle", "num_speculative_tokens": 3, '
        '"acceptance_rate": 0.7} (docs/explanation/speculation.md).',
    ),
]
Chunked = Annotated[
    bool | None,
    option(
        PANEL, "--enable-chunked-prefill/--no-enable-chunked-prefill", text="Lets a prompt spread over several steps."
    ),
]
PrefixCaching = Annotated[
    bool | None,
    option(
        PANEL,
        "--enable-prefix-caching/--no-enable-prefix-caching",
        text="Lets requests with equal prefixes share KV blocks.",
    ),
]
ReserveFullIsl = Annotated[
    bool | None,
    option(
        PANEL,
        "--reserve-full-isl/--no-reserve-full-isl",
        text="Admits a request only when its whole prompt fits into the KV cache.",
    ),
]
Async = Annotated[
    bool | None,
    option(PANEL, "--async-scheduling/--no-async-scheduling", text="Schedules a step while the previous one runs."),
]
BlockSize = Annotated[int | None, option(PANEL, "--block-size", text="Sets the tokens of a KV block.")]
Utilization = Annotated[
    float | None,
    option(
        PANEL,
        "--gpu-memory-utilization",
        "--npu-memory-utilization",
        text="Sets the share of device memory that the engine uses.",
    ),
]
NumBlocks = Annotated[
    int | None,
    option(
        PANEL,
        "--num-gpu-blocks-override",
        text="Sets the number of KV blocks, the null block included, instead of what fits.",
    ),
]
MaxModelLen = Annotated[
    int | None, option(PANEL, "--max-model-len", text="Limits the tokens of prompt and output together.")
]
Dtype = Annotated[
    str | None,
    option(PANEL, "--dtype", text="Sets the type of weights: auto, bfloat16, float16, float32, fp8 or int8."),
]
KvDtype = Annotated[
    str | None,
    option(PANEL, "--kv-cache-dtype", text="Sets the type of the KV cache: auto, fp8, bfloat16 or another type."),
]
Watermark = Annotated[
    float | None, option(PANEL, "--watermark", text="Sets the share of KV blocks that admission keeps free.")
]
Scheduler = Annotated[
    str | None,
    option(
        PANEL,
        "--scheduler",
        text="Chooses the scheduler: vllm_v1, vllm (the installed one), sarathi, orca, static, sglang, mlfq, or "
        "module:Class.",
    ),
]
QueueOrder = Annotated[
    str | None,
    option(PANEL, "--queue-order", text="Orders the waiting queue by a Python class, given as module:Class."),
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
        PANEL, "--cache-eviction", text="Chooses the cached blocks to evict by a Python class, given as module:Class."
    ),
]
Admission = Annotated[
    str | None,
    option(
        PANEL,
        "--admission",
        text="Turns requests away by QUEUE_LIMIT:requests=N or by a Python class, given as module:Class.",
    ),
]
Policy = Annotated[
    str | None,
    option(PANEL, "--scheduling-policy", text="Orders the waiting queue: fcfs, priority, sjf or slack."),
]
TtftTarget = Annotated[
    float | None, option(PANEL, "--ttft-target-ns", text="Sets the time to first token that the policy slack aims at.")
]
PrefixSharing = Annotated[
    bool,
    option(
        PANEL,
        "--enable-prefix-sharing",
        text="Shares one KV pool among the instances of a node (CPU, SSD) or of the cluster (CXL, NVMEOF).",
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
        text="Sets when KV tiers are written: write-through, write-through-selective or write-back.",
    ),
]
KvTierEviction = Annotated[
    str | None,
    option(
        PANEL,
        "--kv-tier-eviction",
        text="Sets the eviction of KV tiers: lru, lfu or cost; one for all tiers, or one per tier joined by +.",
    ),
]
KvTierRecall = Annotated[
    str | None,
    option(
        PANEL,
        "--kv-tier-recall",
        text="Sets how KV is recalled: sync makes the batch wait, async parks the recalling request alone.",
    ),
]
KvChunkSize = Annotated[
    int | None, option(PANEL, "--kv-chunk-size", text="Sets the tokens of a chunk in KV tiers; 256 if not given.")
]

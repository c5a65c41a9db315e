"""Options of `llmsim run`: the engine's: vLLM's names for its settings, and the scheduler's policies."""

from typing import Annotated

from llmsim.cli.options.panel import option

PANEL = "Engine (vLLM's names)"

EngineProfile = Annotated[
    str | None, option(PANEL, "--engine-profile", text="Engine version whose defaults apply, such as vllm-0.24.")
]
MaxNumSeqs = Annotated[
    int | None, option(PANEL, "--max-num-seqs", "--max-batch", text="Most sequences in a step; 0: no limit.")
]
MaxNumBatchedTokens = Annotated[int | None, option(PANEL, "--max-num-batched-tokens", text="Token budget of a step.")]
LongPrefill = Annotated[
    int | None, option(PANEL, "--long-prefill-token-threshold", text="Most tokens of one prompt in a step; 0: off.")
]
MaxNumScheduledTokens = Annotated[
    int | None, option(PANEL, "--max-num-scheduled-tokens", text="Of them, those that the scheduler fills.")
]
MaxNumActiveSeqs = Annotated[
    int | None, option(PANEL, "--max-num-active-seqs", text="Most sequences that run (vllm-0.33).")
]
AdaptiveThreshold = Annotated[
    bool | None,
    option(
        PANEL,
        "--long-prefill-token-threshold-adaptive/--no-long-prefill-token-threshold-adaptive",
        text="The threshold is at least the budget's share of each request (vllm-0.33).",
    ),
]
PrefillInterval = Annotated[
    int | None,
    option(PANEL, "--prefill-schedule-interval", text="Prompts run every so many steps while others decode."),
]
MaxQueuedReqs = Annotated[
    int | None, option(PANEL, "--max-num-queued-reqs", text="Waiting requests; more are turned away (vllm-0.33).")
]
MaxQueuedTokens = Annotated[
    int | None,
    option(PANEL, "--max-num-queued-tokens", text="Tokens of waiting prompts; more are turned away (vllm-0.33)."),
]
CudagraphMode = Annotated[
    str | None,
    option(PANEL, "--cudagraph-mode", text="NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE."),
]
CudagraphSizes = Annotated[
    str | None, option(PANEL, "--cudagraph-capture-sizes", text="Token counts with a graph, as 1,2,4,8.")
]
EnforceEager = Annotated[
    bool | None, option(PANEL, "--enforce-eager/--no-enforce-eager", text="No graphs and no compilation.")
]
Launch = Annotated[
    float | None, option(PANEL, "--launch-ns", text="Host time of one launch, where no graph is replayed.")
]
Speculative = Annotated[
    str | None,
    option(
        PANEL,
        "--speculative-config",
        text='vLLM\'s JSON, with how many drafts hold: {"method": "eagle", "num_speculative_tokens": 3, '
        '"acceptance_rate": 0.7} (docs/speculation.md).',
    ),
]
Chunked = Annotated[
    bool | None,
    option(PANEL, "--enable-chunked-prefill/--no-enable-chunked-prefill", text="Prompts may spread over steps."),
]
PrefixCaching = Annotated[
    bool | None,
    option(PANEL, "--enable-prefix-caching/--no-enable-prefix-caching", text="Equal prefixes share KV blocks."),
]
ReserveFullIsl = Annotated[
    bool | None,
    option(PANEL, "--reserve-full-isl/--no-reserve-full-isl", text="Admit only when the whole prompt fits."),
]
Async = Annotated[
    bool | None,
    option(PANEL, "--async-scheduling/--no-async-scheduling", text="Schedule a step while the previous one runs."),
]
BlockSize = Annotated[int | None, option(PANEL, "--block-size", text="Tokens per KV block.")]
Utilization = Annotated[
    float | None,
    option(PANEL, "--gpu-memory-utilization", "--npu-memory-utilization", text="Share of device memory to use."),
]
NumBlocks = Annotated[
    int | None,
    option(PANEL, "--num-gpu-blocks-override", text="KV blocks (with the null block) instead of what fits."),
]
MaxModelLen = Annotated[int | None, option(PANEL, "--max-model-len", text="Longest prompt and output together.")]
Dtype = Annotated[str | None, option(PANEL, "--dtype", text="auto, bfloat16, float16, float32, fp8, int8.")]
KvDtype = Annotated[str | None, option(PANEL, "--kv-cache-dtype", text="auto, fp8, bfloat16, ...")]
Watermark = Annotated[float | None, option(PANEL, "--watermark", text="Share of KV blocks that admission keeps free.")]
Scheduler = Annotated[
    str | None,
    option(
        PANEL,
        "--scheduler",
        text="vllm_v1, vllm (the installed one), sarathi, orca, static, sglang, mlfq, or module:Class.",
    ),
]
QueueOrder = Annotated[
    str | None,
    option(PANEL, "--queue-order", text="module:Class that orders the waiting queue."),
]
PreemptionVictim = Annotated[
    str | None, option(PANEL, "--preemption-victim", text="module:Class that chooses whom vllm_v1 preempts.")
]
CacheEviction = Annotated[
    str | None, option(PANEL, "--cache-eviction", text="module:Class that chooses which cached blocks to drop.")
]
Admission = Annotated[
    str | None,
    option(PANEL, "--admission", text="QUEUE_LIMIT:requests=N, or module:Class, which may turn requests away."),
]
Policy = Annotated[
    str | None,
    option(PANEL, "--scheduling-policy", text="Order of the waiting queue: fcfs, priority, sjf or slack."),
]
TtftTarget = Annotated[
    float | None, option(PANEL, "--ttft-target-ns", text="Time to first token that the slack policy aims at.")
]
PrefixSharing = Annotated[
    bool, option(PANEL, "--enable-prefix-sharing", text="One pool of KV per node (CPU, SSD) or cluster.")
]
PrefixStorage = Annotated[
    str | None,
    option(PANEL, "--prefix-storage", text="KV below the devices: None, or CPU, CXL, SSD, NVMEOF joined by +."),
]
KvTierWrite = Annotated[
    str | None, option(PANEL, "--kv-tier-write", text="write-through, write-through-selective or write-back.")
]
KvTierEviction = Annotated[
    str | None, option(PANEL, "--kv-tier-eviction", text="lru, lfu or cost; one for all, or one each joined by +.")
]
KvTierRecall = Annotated[
    str | None, option(PANEL, "--kv-tier-recall", text="sync: the batch waits. async: who recalls is parked alone.")
]
KvChunkSize = Annotated[int | None, option(PANEL, "--kv-chunk-size", text="Tokens of a chunk of KV below; 256.")]

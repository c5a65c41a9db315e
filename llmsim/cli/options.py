"""The options of `llmsim run`, declared once; panels group them in the help."""

from pathlib import Path
from typing import Annotated

import typer

PANELS = _INPUT, _ENGINE, _COST, _OUTPUT, _PEER = (
    "Input",
    "Engine (vLLM's names)",
    "Costs and network",
    "Output",
    "LLMServingSim",
)
"""In the order of the help."""


def _option(panel: str, *names: str, text: str, default: bool = False, metavar: str | None = None) -> object:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=default, metavar=metavar)


def _path(text: str) -> Path:
    """A path that was given: `Path` itself takes an empty one for the current directory."""
    if not text:
        raise typer.BadParameter("the path is empty; name a JSON file, such as those in cluster_config/")
    return Path(text)


Cluster = Annotated[
    Path,
    typer.Option(
        "--cluster-config", help="Cluster JSON.", rich_help_panel=_INPUT, show_default=False, parser=_path,
        metavar="PATH",
    ),
]  # fmt: skip
Dataset = Annotated[
    str,
    _option(
        _INPUT,
        "--dataset",
        text="Trace, told by its content: LLMServingSim JSONL, Mooncake, Bailian, Azure, BurstGPT, Vidur, vLLM bench, "
        "aiperf, TraceLab, Weka, ShareGPT, Baseten (also .gz, .zst), or trace:FILE,speedup=2,...; a generator such as "
        "synthetic:n=1000,rate=10,input=lognormal:220,output=lognormal:190.",
    ),
]
NumReqs = Annotated[int, _option(_INPUT, "--num-reqs", "--num-req", text="Lines of the trace to use; 0: all.")]
MaxConcurrency = Annotated[
    int, _option(_INPUT, "--max-concurrency", text="Requests (or sessions) in progress at most; 0: no limit.")
]
ThinkTime = Annotated[
    str | None,
    _option(_INPUT, "--think-time", text="ms a client waits before it asks again, as 500 or exponential:2000."),
]
RequestTimeout = Annotated[
    float | None, _option(_INPUT, "--request-timeout", text="Seconds after which a client gives up.")
]
Horizon = Annotated[
    float | None, _option(_INPUT, "--horizon", text="Simulated seconds after which the run ends, whatever is left.")
]
Seed = Annotated[int, _option(_INPUT, "--seed", text="Seed of random routing and of think times.", default=True)]

EngineProfile = Annotated[
    str | None, _option(_ENGINE, "--engine-profile", text="Engine version whose defaults apply, such as vllm-0.24.")
]
MaxNumSeqs = Annotated[
    int | None, _option(_ENGINE, "--max-num-seqs", "--max-batch", text="Most sequences in a step; 0: no limit.")
]
MaxNumBatchedTokens = Annotated[
    int | None, _option(_ENGINE, "--max-num-batched-tokens", text="Token budget of a step.")
]
LongPrefill = Annotated[
    int | None, _option(_ENGINE, "--long-prefill-token-threshold", text="Most tokens of one prompt in a step; 0: off.")
]
MaxNumScheduledTokens = Annotated[
    int | None, _option(_ENGINE, "--max-num-scheduled-tokens", text="Of them, those that the scheduler fills.")
]
MaxNumActiveSeqs = Annotated[
    int | None, _option(_ENGINE, "--max-num-active-seqs", text="Most sequences that run (vllm-0.33).")
]
AdaptiveThreshold = Annotated[
    bool | None,
    _option(
        _ENGINE,
        "--long-prefill-token-threshold-adaptive/--no-long-prefill-token-threshold-adaptive",
        text="The threshold is at least the budget's share of each request (vllm-0.33).",
    ),
]
PrefillInterval = Annotated[
    int | None,
    _option(_ENGINE, "--prefill-schedule-interval", text="Prompts run every so many steps while others decode."),
]
MaxQueuedReqs = Annotated[
    int | None, _option(_ENGINE, "--max-num-queued-reqs", text="Waiting requests; more are turned away (vllm-0.33).")
]
MaxQueuedTokens = Annotated[
    int | None,
    _option(_ENGINE, "--max-num-queued-tokens", text="Tokens of waiting prompts; more are turned away (vllm-0.33)."),
]
CudagraphMode = Annotated[
    str | None,
    _option(_ENGINE, "--cudagraph-mode", text="NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or FULL_AND_PIECEWISE."),
]
CudagraphSizes = Annotated[
    str | None, _option(_ENGINE, "--cudagraph-capture-sizes", text="Token counts with a graph, as 1,2,4,8.")
]
EnforceEager = Annotated[
    bool | None, _option(_ENGINE, "--enforce-eager/--no-enforce-eager", text="No graphs and no compilation.")
]
Launch = Annotated[
    float | None, _option(_ENGINE, "--launch-ns", text="Host time of one launch, where no graph is replayed.")
]
Speculative = Annotated[
    str | None,
    _option(
        _ENGINE,
        "--speculative-config",
        text='vLLM\'s JSON, with how many drafts hold: {"method": "eagle", "num_speculative_tokens": 3, '
        '"acceptance_rate": 0.7} (docs/speculation.md).',
    ),
]
Chunked = Annotated[
    bool | None,
    _option(_ENGINE, "--enable-chunked-prefill/--no-enable-chunked-prefill", text="Prompts may spread over steps."),
]
PrefixCaching = Annotated[
    bool | None,
    _option(_ENGINE, "--enable-prefix-caching/--no-enable-prefix-caching", text="Equal prefixes share KV blocks."),
]
ReserveFullIsl = Annotated[
    bool | None,
    _option(_ENGINE, "--reserve-full-isl/--no-reserve-full-isl", text="Admit only when the whole prompt fits."),
]
Async = Annotated[
    bool | None,
    _option(_ENGINE, "--async-scheduling/--no-async-scheduling", text="Schedule a step while the previous one runs."),
]
BlockSize = Annotated[int | None, _option(_ENGINE, "--block-size", text="Tokens per KV block.")]
Utilization = Annotated[
    float | None,
    _option(_ENGINE, "--gpu-memory-utilization", "--npu-memory-utilization", text="Share of device memory to use."),
]
NumBlocks = Annotated[
    int | None,
    _option(_ENGINE, "--num-gpu-blocks-override", text="KV blocks (with the null block) instead of what fits."),
]
MaxModelLen = Annotated[int | None, _option(_ENGINE, "--max-model-len", text="Longest prompt and output together.")]
Dtype = Annotated[str | None, _option(_ENGINE, "--dtype", text="auto, bfloat16, float16, float32, fp8, int8.")]
Fp = Annotated[int | None, _option(_PEER, "--fp", text="Bits per element: 16, 32 or 8; the older form of --dtype.")]
KvDtype = Annotated[str | None, _option(_ENGINE, "--kv-cache-dtype", text="auto, fp8, bfloat16, ...")]
Watermark = Annotated[
    float | None, _option(_ENGINE, "--watermark", text="Share of KV blocks that admission keeps free.")
]
Scheduler = Annotated[
    str | None,
    _option(
        _ENGINE,
        "--scheduler",
        text="vllm_v1, vllm (the installed one), sarathi, orca, static, sglang, mlfq, or module:Class.",
    ),
]
QueueOrder = Annotated[
    str | None,
    _option(_ENGINE, "--queue-order", text="module:Class that orders the waiting queue."),
]
PreemptionVictim = Annotated[
    str | None, _option(_ENGINE, "--preemption-victim", text="module:Class that chooses whom vllm_v1 preempts.")
]
CacheEviction = Annotated[
    str | None, _option(_ENGINE, "--cache-eviction", text="module:Class that chooses which cached blocks to drop.")
]
Admission = Annotated[
    str | None,
    _option(_ENGINE, "--admission", text="QUEUE_LIMIT:requests=N, or module:Class, which may turn requests away."),
]
Policy = Annotated[
    str | None,
    _option(_ENGINE, "--scheduling-policy", text="Order of the waiting queue: fcfs, priority, sjf or slack."),
]
TtftTarget = Annotated[
    float | None, _option(_ENGINE, "--ttft-target-ns", text="Time to first token that the slack policy aims at.")
]

Routing = Annotated[
    str,
    _option(
        _INPUT,
        "--request-routing-policy",
        text="NAME[:key=value,...]: LOAD, RR, RAND, LOR, P2C, SESSION, VLLM_DP, PREFIX, WEIGHTED, or module:Class.",
        default=True,
    ),
]
DecodeRouting = Annotated[
    str,
    _option(
        _INPUT,
        "--decode-routing-policy",
        text="Where a disaggregated request is decoded; the same choices.",
        default=True,
    ),
]
KvTransfer = Annotated[
    str | None,
    _option(
        _COST,
        "--kv-transfer",
        text="Between pd_type prefill and decode: whole (prompts) or layerwise; whole if not given.",
    ),
]
KvTransferMode = Annotated[
    str | None,
    _option(
        _COST,
        "--kv-transfer-mode",
        text="pull (decode reads when the prefill has ended) or push (decode reserves first); layerwise is push.",
    ),
]
ExpertRouting = Annotated[
    str,
    _option(
        _COST,
        "--expert-routing-policy",
        text="Loads of experts: BALANCED, RR, RAND, ZIPF:s=1, POWER_LAW:alpha=1.2, TRACE:file or module:Class.",
        default=True,
    ),
]
ProfileDir = Annotated[
    list[Path] | None,
    _option(
        _COST,
        "--profile-dir",
        text="Folder of profile bundles <hardware>/<model>/<variant>/tp<N>/; repeatable.",
        metavar="<path>",
    ),
]
CostSource = Annotated[
    str,
    _option(
        _COST,
        "--cost-source",
        text="auto, bundle, external, silicon or roofline; module:Class; blackbox:FILE.json.",
        default=True,
    ),
]
CostTable = Annotated[
    list[Path] | None,
    _option(
        _COST,
        "--cost-table",
        text="Table of an external simulator (docs/external_simulators.md); repeatable.",
        metavar="<path>",
    ),
]
Require = Annotated[
    str | None,
    _option(_COST, "--require", text="measured, interpolated, extrapolated or scaled: refuse times known less well."),
]
Collectives = Annotated[str, _option(_COST, "--collective-costs", text="auto, measured or links.", default=True)]
Network = Annotated[
    str,
    _option(
        _COST,
        "--network-backend",
        text="congestion-unaware, congestion-aware, fair-share, or analytical: fair-share where the cluster file names "
        "a topology, else congestion-unaware.",
        default=True,
    ),
]
Exact = Annotated[
    bool, _option(_COST, "--exact", text="Evaluate every rank's nodes in the engine instead of the folded program.")
]

DisableTerm = Annotated[
    list[str] | None,
    _option(
        _COST,
        "--disable-term",
        text="Switch off a fidelity term (decode_skew, ...; docs/calibration.md); repeatable.",
        metavar="<str>",
    ),
]
Calibration = Annotated[
    Path | None, _option(_COST, "--calibration", text="Constants of one machine, written by `llmsim calibrate`.")
]
Arrivals = Annotated[
    Path | None,
    _option(_INPUT, "--arrivals", text="Recorded log whose true arrival times replace the trace's."),
]

Output = Annotated[Path | None, _option(_OUTPUT, "--output", text="CSV with one row per request, ns.")]
RunDir = Annotated[Path | None, _option(_OUTPUT, "--run-dir", text="Folder for manifest, summary and Parquet tables.")]
Timeline = Annotated[
    Path | None, _option(_OUTPUT, "--timeline", text="Trace file for ui.perfetto.dev: steps, requests, counters.")
]
Json = Annotated[bool, _option(_OUTPUT, "--json", text="One JSON object on stdout instead of the text.")]
LogInterval = Annotated[
    float, _option(_OUTPUT, "--log-interval", text="Simulated seconds between rows of the series.", default=True)
]
LogLevel = Annotated[
    str, _option(_OUTPUT, "--log-level", text="WARNING, or INFO or DEBUG (heartbeat lines).", default=True)
]

PrioritizePrefill = Annotated[
    bool, _option(_PEER, "--prioritize-prefill", text="A step is all prompts while there are any.")
]
PrefixSharing = Annotated[
    bool, _option(_ENGINE, "--enable-prefix-sharing", text="One pool of KV per node (CPU, SSD) or cluster.")
]
PrefixStorage = Annotated[
    str | None,
    _option(_ENGINE, "--prefix-storage", text="KV below the devices: None, or CPU, CXL, SSD, NVMEOF joined by +."),
]
KvTierWrite = Annotated[
    str | None, _option(_ENGINE, "--kv-tier-write", text="write-through, write-through-selective or write-back.")
]
KvTierEviction = Annotated[
    str | None, _option(_ENGINE, "--kv-tier-eviction", text="lru, lfu or cost; one for all, or one each joined by +.")
]
KvTierRecall = Annotated[
    str | None, _option(_ENGINE, "--kv-tier-recall", text="sync: the batch waits. async: who recalls is parked alone.")
]
CheckEveryStep = Annotated[
    bool, _option(_OUTPUT, "--check-every-step", text="Recount the KV blocks of all tiers at every step (slow).")
]
KvChunkSize = Annotated[int | None, _option(_ENGINE, "--kv-chunk-size", text="Tokens of a chunk of KV below; 256.")]
LocalOffloading = Annotated[
    bool,
    _option(
        _PEER,
        "--enable-local-offloading",
        text="Reads of weights take at least what npu_mem's latency and bandwidth say (docs/memory.md).",
    ),
]
AttnOffloading = Annotated[
    bool, _option(_PEER, "--enable-attn-offloading", text="Decodes attend in the node's memory (docs/pim.md).")
]
SubBatch = Annotated[
    bool,
    _option(
        _PEER,
        "--enable-sub-batch-interleaving",
        text="Two halves of a batch alternate between device and memory (docs/pim.md).",
    ),
]
AttnPrediction = Annotated[
    bool, _option(_PEER, "--enable-attn-prediction", text="A bundle's attention by a regressor fitted on it.")
]
Gen = Annotated[bool, _option(_PEER, "--gen", text="The older form of --skip-prefill.")]
SkipPrefill = Annotated[
    bool, _option(_PEER, "--skip-prefill", text="Decode-only: requests arrive with the KV of their prompts.")
]
BlockCopy = Annotated[
    bool | None,
    _option(
        _PEER, "--enable-block-copy/--no-enable-block-copy", text="No effect: equal blocks are always priced once."
    ),
]

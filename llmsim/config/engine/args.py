"""The engine's arguments with every default filled in, each with its origin."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from llmsim.config.engine.defaults import (
    Positions,
    StepLimits,
    check_version,
    settle_batch,
    settle_frontend,
    settle_graphs,
    settle_host,
    settle_limits,
    settle_mode,
    settle_sequences,
    settle_speculation,
)
from llmsim.config.engine.options import EngineOptions, scheduler_parameters
from llmsim.config.engine.profile import EngineProfile, load_profile
from llmsim.config.engine.quick_reduce import check_quick_reduce
from llmsim.config.engine.scheduler_kinds import TENSORRT_LLM
from llmsim.config.engine.schedulers import KINDS, OWN_DEFAULTS, check_scheduler
from llmsim.config.engine.speculative import Speculation
from llmsim.config.errors import InputError, NotYetError
from llmsim.config.units import ns_to_ps

COMMAND_LINE = "command line"
CLUSTER_FILE = "cluster file"


_SHOWN_APART = ("origin", "limits", "scheduler_parameters", "wanted_profile", "host_ranks_ps")
_SHOWN_IF_SET = (
    "prefill_graph_sizes",
    "host_sequence_ps",
    "prepare_sequence_ps",
    "kv_read_ps",
    "kv_descriptor_ps",
    "native_sampler",
    "endpoint",
    "api_server_count",
    "api_request_ps",
    "api_prompt_token_ps",
    "api_chunk_ps",
    "quick_reduce_quantization",
    "quick_reduce_cast_bf16_to_fp16",
    "quick_reduce_min_size_bytes_mb",
    "quick_reduce_max_size_bytes_mb",
    "quick_reduce_quantization_min_size_kb",
    "prefix_match_unit",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "fully_sharded_loras",
    "kv_load_failure_policy",
    "kv_load_failure_rate",
    "kv_offloading_size",
    "kv_offloading_blocks_per_chunk",
    "kv_offloading_eviction_policy",
    "kv_offloading_prompt_only",
    "kv_offloading_store_threshold",
    "kv_offloading_sync_load_budget_bytes",
    "max_num_encoder_input_tokens",
    "encoder_cache_size",
    "disable_chunked_mm_input",
    "enable_hierarchical_cache",
    "hicache_ratio",
    "hicache_size",
    "hicache_write_policy",
    "swa_full_tokens_ratio",
    "mamba_full_memory_ratio",
    "max_mamba_cache_size",
    "mamba_radix_cache_strategy",
    "mamba_track_interval",
    "hicache_storage_backend",
    "hicache_storage_prefetch_policy",
    "hicache_prefetch_threshold",
    "hicache_prefetch_timeout_base",
    "hicache_prefetch_timeout_per_ki_token",
    "hicache_storage_prefetch_retry_poll_interval",
    "hicache_storage_prefetch_retry_max_attempts",
)
"""Options of later versions, which runs that do not use them do not show."""


_IN_PS = (
    "api_latency",
    "api_request",
    "api_prompt_token",
    "api_chunk",
    "host_gap",
    "host_sequence",
    "ttft_target",
    "launch",
    "fused_moe",
    "prepare",
    "prepare_sequence",
    "kv_read",
    "kv_descriptor",
)


class EngineArgs(Struct, frozen=True):
    """What a group's engine runs with; immutable. None leaves a value to the model."""

    engine_profile: str
    wanted_profile: str
    """The version that was asked for, for which `engine_profile` may stand in."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_scheduled_tokens: int
    """Tokens of `max_num_batched_tokens` that the scheduler may use; the rest is reserved for draft
    tokens.
    """
    long_prefill_token_threshold: int
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    prefix_cache_retention_interval: int
    """Tokens between ends of cached prefixes of layers with a window; -1: they end anywhere."""
    prefix_match_unit: int | None
    """Tokens between places inside of blocks where hits may end; None: they end with blocks."""
    reserve_full_isl: bool
    watermark: float
    block_size: int
    gpu_memory_utilization: float
    num_gpu_blocks_override: int | None
    max_model_len: int | None
    dtype: str | None
    """Short name ("bf16", "fp16", "fp32", "fp8", "int8"); None: the model's."""
    kv_cache_dtype: str
    """"auto" (as dtype) or a short name."""
    scheduler: str
    """A name of `llmsim.config.engine.schedulers.SCHEDULERS`."""
    scheduler_parameters: tuple[tuple[str, int], ...]
    """Parameters of the scheduler's own, by the names and in the units of the core."""
    scheduling_policy: str
    ttft_target_ps: int
    """What scheduling_policy "slack" aims at."""
    prioritize_prefill: bool
    skip_prefill: bool
    async_scheduling: bool
    cuda_graph_sizes: tuple[int, ...]
    cudagraph_mode: str
    """"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY" or "FULL_AND_PIECEWISE"."""
    enforce_eager: bool
    launch_ps: int
    """Host time of one launch."""
    fused_moe_ps: int
    """What each layer of experts takes the host beside its launches."""
    prepare_ps: int
    """Host time of a step before its first launch, and (`prepare_sequence_ps`) for each sequence of
    the step.
    """
    prepare_sequence_ps: int
    kv_read_ps: int
    """Host time before a step for each rank that a worker begins to read a prompt's KV from, and
    (`kv_descriptor_ps`) for each piece of it.
    """
    kv_descriptor_ps: int
    api_latency_ps: int
    endpoint: str | None
    """What clients ask: "completions" or "chat"; None: the engine itself."""
    api_server_count: int | None
    """Processes of its API server; None: one."""
    api_request_ps: int | None
    """Work of a process for each request, prompt token and chunk of an answer; None: what the
    profile says of the endpoint.
    """
    api_prompt_token_ps: int | None
    api_chunk_ps: int | None
    host_gap_ps: int
    """Idle time of the device between two steps, and (`host_sequence_ps`) for each sequence."""
    host_sequence_ps: int
    native_sampler: bool
    """FlashInfer is not installed."""
    dp_sync_interval: int
    """Steps between two agreements of data-parallel ranks on whether anyone has work."""
    lockstep_dense_dp: bool
    """Whether data-parallel ranks of a dense model run in lock-step, too."""
    enable_eplb: bool
    """Experts are placed by their load instead of in their order."""
    num_redundant_experts: int
    expert_placement_strategy: str
    """"linear" or "round_robin", without EPLB."""
    speculation: Speculation | None
    limits: StepLimits
    max_loras: int | None
    """LoRA adapters of a step, and slots for them on each device; None: any number, and none."""
    max_lora_rank: int | None
    max_cpu_loras: int | None
    """Adapters that host memory keeps; None: as many as slots."""

    fully_sharded_loras: bool
    """Of each slot; None: vLLM's default, 16."""
    kv_load_failure_policy: str | None
    """A name of `KV_LOAD_FAILURE_POLICIES`; None: the first."""
    kv_load_failure_rate: float
    kv_offloading_size: float | None
    """GiB of host memory for offloaded KV of all ranks; None: nothing is offloaded."""
    kv_offloading_blocks_per_chunk: int | None
    """None: one."""
    kv_offloading_eviction_policy: str | None
    """A name of `KV_OFFLOADING_EVICTIONS`; None: the first."""
    kv_offloading_prompt_only: bool | None
    """None: true, as in vLLM."""
    kv_offloading_store_threshold: int | None
    """None: 0, with which chunks are stored at once."""
    kv_offloading_sync_load_budget_bytes: int | None
    """None: 0, with which no step waits for a load."""
    max_num_encoder_input_tokens: int | None
    """Tokens of encoder inputs of a step; None: max_num_batched_tokens."""
    encoder_cache_size: int | None
    """Tokens of encoder outputs that are kept; None: max_num_batched_tokens."""
    disable_chunked_mm_input: bool
    """No step computes a part of an encoder input alone."""
    enable_hierarchical_cache: bool
    """SGLang's HiCache: KV stays in host memory when it leaves the device."""
    hicache_ratio: float | None
    """Tokens of the host pool for each of the device's; None: hicache_size, or what fits up to
    2.
    """
    hicache_size: int
    """GB of the host pool of each device; 0: by the ratio."""
    hicache_write_policy: str | None
    """A name of `HICACHE_WRITE_POLICIES`; None: the first."""
    swa_full_tokens_ratio: float | None
    """Tokens of SGLang's pool of windows for each of the other layers' pool; None: 0.8."""
    mamba_full_memory_ratio: float | None
    """Bytes of SGLang's states for each byte of KV; None: 0.9."""
    max_mamba_cache_size: int | None
    """States in SGLang's pool of them; None: what `mamba_full_memory_ratio` leaves."""
    mamba_radix_cache_strategy: str | None
    """A name of `MAMBA_STRATEGIES`; None: by release and model."""
    mamba_track_interval: int | None
    """Tokens of an answer between states that SGLang's prefix cache can get; None: 256."""
    hicache_storage_backend: str | None
    hicache_storage_prefetch_policy: str | None
    """A name of `HICACHE_PREFETCH_POLICIES`; None: the first."""
    hicache_prefetch_threshold: int | None
    """Tokens; None: SGLang's default, as of the five below."""
    hicache_prefetch_timeout_base: float | None
    """Seconds, as of the next."""
    hicache_prefetch_timeout_per_ki_token: float | None
    hicache_storage_prefetch_retry_poll_interval: int | None
    hicache_storage_prefetch_retry_max_attempts: int | None
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    pipeline_extra_batches: int
    """Batches in flight beyond one for each pipeline stage."""
    ignore_eos: bool
    """Answers end by their length; false: with a stop token, behind which asynchronous scheduling
    computes another.
    """
    use_v2_model_runner: bool | None
    """How asynchronous pipeline stages get their tokens; None: the model decides, or it makes no
    difference.
    """
    enable_sequence_parallelism: bool
    decode_context_parallel_size: int
    all_reduce_implementation: str | None
    """Algorithm of all-reduces on links, or one per dimension, separated by commas; None: rings."""
    all_gather_implementation: str | None
    """The same of all-gathers."""
    reduce_scatter_implementation: str | None
    """The same of reduce-scatters."""
    all_to_all_implementation: str | None
    """The same of exchanges of rows; None: each rank sends rows through its ports."""
    quick_reduce_quantization: str | None
    """VLLM_ROCM_QUICK_REDUCE_QUANTIZATION; None is as good as NONE."""
    quick_reduce_cast_bf16_to_fp16: bool | None
    """The other variables of the quick all-reduce; None: the engine's default."""
    quick_reduce_min_size_bytes_mb: int | None
    quick_reduce_max_size_bytes_mb: int | None
    quick_reduce_quantization_min_size_kb: int | None
    all2all_backend: str
    """How tokens reach experts of other data-parallel ranks; a name of
    `model.parallel.expert_parallel.BACKENDS`.
    """
    origin: Mapping[str, str]
    """Field -> "command line", "cluster file" or "engine profile vllm-0.24 (H100)"; "model" where
    it is None.
    """
    prefill_graph_sizes: tuple[int, ...] = ()
    """Sizes of graphs that only steps with prompts replay; empty: those of `cuda_graph_sizes` are
    for any batch.
    """
    host_ranks_ps: int = 0
    """The part of `host_gap_ps` that talking to the processes of several devices takes."""

    def shown(self) -> dict[str, Any]:
        """Every option by name as plain values, without the origins."""
        values = {
            name: value
            for name, value in asdict(self).items()
            if name not in _SHOWN_APART and (value or name not in _SHOWN_IF_SET)
        }
        values["speculation"] = None if self.speculation is None else asdict(self.speculation)
        return values | asdict(self.limits) | dict(self.scheduler_parameters)

    def is_default(self, field: str) -> bool:
        """Whether nobody gave the field: the engine's profile, or the model, decided."""
        return self.origin[field] not in (COMMAND_LINE, CLUSTER_FILE)


class Given(Struct, frozen=True):
    """One layer of options: where they come from, what they say, and how an error refers to one of
    them.
    """

    origin: str
    profile: str | None
    values: Mapping[str, Any]
    position: Callable[[str], str]
    """Field -> `cluster.json:12: nodes[0].instances[0].max_num_seqs` or `--max-num-seqs`; only
    called for an error.
    """


def resolve_engine(
    layers: list[Given], profile: EngineProfile, hardware: str, memory_bytes: int
) -> EngineArgs:
    """Fills in one group's arguments; the first layer that gives a field wins, the profile comes
    last.
    """
    values: dict[str, Any] = {**OWN_DEFAULTS, **profile.defaults}
    origin = dict.fromkeys(values, f"engine profile {profile.name}") | dict.fromkeys(
        OWN_DEFAULTS, "default"
    )
    batch = profile.device_class(hardware, memory_bytes)
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        values[name] = getattr(batch, name)
        origin[name] = f"engine profile {profile.name} ({hardware})"
    for name in ("num_gpu_blocks_override", "max_model_len"):
        values[name], origin[name] = (
            None,
            "model" if name == "max_model_len" else f"engine profile {profile.name}",
        )
    positions: Positions = {}
    for layer in reversed(layers):
        values.update(layer.values)
        origin.update(dict.fromkeys(layer.values, layer.origin))
        positions.update(dict.fromkeys(layer.values, layer.position))
    for name, value in KINDS[values["scheduler"]].defaults.items():
        if name not in positions:
            values[name], origin[name] = value, f"scheduler {values['scheduler']}"
    check_scheduler(values, positions)
    values["scheduler_parameters"] = _own_parameters(values, origin)
    check_version(values, positions, profile)
    check_quick_reduce(values, positions, profile)
    _refuse_what_does_not_run_yet(values, positions)
    settle_sequences(values, origin, positions, profile)
    settle_batch(values, origin, positions)
    settle_speculation(values, origin, positions, profile)
    settle_limits(values, origin, profile)
    settle_mode(values, origin, positions, profile)
    settle_graphs(values, origin, profile)
    settle_host(values, origin, positions, profile)
    if values["dtype"] == "auto":
        values["dtype"], origin["dtype"] = None, "model"
    settle_frontend(values, positions, profile)
    for name in _IN_PS:
        given = values.pop(f"{name}_ns")
        values[f"{name}_ps"] = None if given is None else ns_to_ps(given)
        origin[f"{name}_ps"] = origin.pop(f"{name}_ns")
    named = [layer for layer in layers if layer.profile is not None]
    origin["prefill_graph_sizes"] = f"engine profile {profile.name}"
    origin["engine_profile"] = origin["wanted_profile"] = named[0].origin if named else "default"
    return EngineArgs(
        engine_profile=profile.name,
        wanted_profile=(named[0].profile if named else None) or profile.name,
        origin=MappingProxyType(origin),
        **values,
    )


def _own_parameters(values: dict[str, Any], origin: dict[str, str]) -> tuple[tuple[str, int], ...]:
    """Takes the parameters of schedulers out of the options, and gives those of the chosen one."""
    origin["scheduler_parameters"] = "default"
    own = {}
    for name, mark in scheduler_parameters().items():
        given, given_by = values.pop(name, None), origin.pop(name, "default")
        if mark.scheduler != values["scheduler"]:
            continue
        value = mark.default
        if given is not None:
            value = ns_to_ps(given) if name.endswith("_ns") else mark.parameter(given)
            origin["scheduler_parameters"] = given_by
        own[f"{mark.scheduler}_{mark.name}"] = value
    return tuple(own.items())


def _refuse_what_does_not_run_yet(values: Mapping[str, Any], positions: Positions) -> None:
    if values["max_num_batched_tokens"] == 0:
        position = positions["max_num_batched_tokens"]("max_num_batched_tokens")
        raise NotYetError(
            f"{position} is 0, and a budget of the model's whole context does not run in this "
            "version; remove it, or give the number of tokens"
        )


def with_model_limits(
    args: EngineArgs,
    model_max_len: int,
    field: str,
    architectures: Iterable[str] = (),
    *,
    blackwell: bool = False,
) -> EngineArgs:
    """The arguments once the model's context length (tokens) and architectures (names in
    config.json) are known, and whether the card has compute capability 10 (`blackwell`); `field`
    names the group in errors.

    Source: vLLM's `_set_default_max_num_seqs_and_batched_tokens_args` and
    `SchedulerConfig.verify_max_model_len`. Without chunked prefill a defaulted token budget grows
    to hold the longest prompt, and a given one that cannot is an error; a defaulted budget never
    exceeds max_num_seqs * max_model_len. Raises InputError also for a max_model_len beyond the
    model's.
    """
    max_len = args.max_model_len or model_max_len
    if max_len > model_max_len:
        raise InputError(
            f"{field}: max_model_len is {max_len} ({args.origin['max_model_len']}), beyond the "
            f"model's {model_max_len}; lower it"
        )
    tokens = args.max_num_batched_tokens
    if (
        not args.enable_chunked_prefill
        and tokens < max_len
        and not args.is_default("max_num_batched_tokens")
    ):
        raise InputError(
            f"{field}: max_num_batched_tokens is {tokens} "
            f"({args.origin['max_num_batched_tokens']}), below max_model_len {max_len}, but "
            "enable_chunked_prefill is false; raise it, lower max_model_len, or allow chunked "
            "prefill"
        )
    _check_whole_blocks(args, field)
    origin = dict(args.origin)
    if args.is_default("max_num_batched_tokens"):
        if not args.enable_chunked_prefill:
            tokens = max(tokens, max_len)
        tokens = min(tokens, args.max_num_seqs * max_len)
        if tokens != args.max_num_batched_tokens:
            origin["max_num_batched_tokens"] += ", adjusted to max_model_len"
    if args.max_model_len is None:
        origin["max_model_len"] = "model"
    return replace(
        args,
        max_num_batched_tokens=tokens,
        max_num_scheduled_tokens=args.max_num_scheduled_tokens
        + tokens
        - args.max_num_batched_tokens,
        max_model_len=max_len,
        limits=_with_budget(args.limits, tokens),
        cuda_graph_sizes=_graph_sizes(args, tokens, architectures, blackwell=blackwell),
        origin=MappingProxyType(origin),
    )


def _with_budget(limits: StepLimits, tokens: int) -> StepLimits:
    """The limits with max_num_batched_tokens as second budget, in versions that have one."""
    return replace(limits, input_budget=tokens) if limits.input_budget else limits


def _graph_sizes(
    args: EngineArgs, tokens: int, architectures: Iterable[str], *, blackwell: bool
) -> tuple[int, ...]:
    """The sizes of graphs with a budget of so many tokens."""
    if not args.is_default("cuda_graph_sizes"):
        return args.cuda_graph_sizes
    if args.cudagraph_mode == "NONE":
        return ()
    drafts, profile = args.speculation, load_profile(args.engine_profile)
    query, method = (1, "") if drafts is None else (drafts.verified, drafts.method)
    sizes = profile.cuda_graphs.sizes_of(
        architectures, args.max_num_seqs, tokens, query, blackwell=blackwell
    )
    if args.cudagraph_mode == "PIECEWISE":
        return sizes
    return profile.whole_graphs(sizes, query, method)


def _check_whole_blocks(args: EngineArgs, field: str) -> None:
    if args.scheduler != TENSORRT_LLM or not args.enable_chunked_prefill:
        return
    if args.max_num_batched_tokens < args.block_size:
        raise InputError(
            f"{field}: max_num_batched_tokens is {args.max_num_batched_tokens} "
            f"({args.origin['max_num_batched_tokens']}), but the scheduler {TENSORRT_LLM} cuts "
            f"prompts to whole blocks of {args.block_size}; raise it, or lower block_size"
        )


def with_memory(args: EngineArgs, hardware: str, memory_bytes: int) -> EngineArgs:
    """The arguments on devices of another memory, where the engine has other batch defaults."""
    profile = load_profile(args.engine_profile)
    batch = profile.device_class(hardware, memory_bytes)
    by_device = f"engine profile {profile.name} ("
    tokens, sequences = args.max_num_batched_tokens, args.max_num_seqs
    if args.origin["max_num_batched_tokens"].startswith(by_device):
        tokens = batch.max_num_batched_tokens
    if args.origin["max_num_seqs"].startswith(by_device):
        sequences = batch.max_num_seqs
    return replace(
        args,
        max_num_batched_tokens=tokens,
        max_num_seqs=min(sequences, tokens),
        limits=_with_budget(args.limits, tokens),
    )


def stand_in_notes(engines: Iterable[EngineArgs]) -> tuple[str, ...]:
    """One sentence for each version that was asked for and has no profile of its own."""
    notes = [
        f"engine_profile {one.wanted_profile} has no profile of its own: {one.engine_profile} "
        "stands in as the nearest version"
        for one in engines
        if one.wanted_profile != one.engine_profile
    ]
    return tuple(dict.fromkeys(notes))


OTHER_NAMES = MappingProxyType(
    {
        "api_latency_ns": "api_latency_ps",
        "api_request_ns": "api_request_ps",
        "api_prompt_token_ns": "api_prompt_token_ps",
        "api_chunk_ns": "api_chunk_ps",
        "cudagraph_capture_sizes": "cuda_graph_sizes",
        "host_gap_ns": "host_gap_ps",
        "host_sequence_ns": "host_sequence_ps",
        "launch_ns": "launch_ps",
        "fused_moe_ns": "fused_moe_ps",
        "prepare_ns": "prepare_ps",
        "prepare_sequence_ns": "prepare_sequence_ps",
        "kv_read_ns": "kv_read_ps",
        "kv_descriptor_ns": "kv_descriptor_ps",
        "long_prefill_token_threshold_adaptive": "limits",
        "max_num_active_seqs": "limits",
        "npu_memory_utilization": "gpu_memory_utilization",
        "prefill_schedule_interval": "limits",
        "scheduler_reserve_full_isl": "reserve_full_isl",
        "speculative_config": "speculation",
        "ttft_target_ns": "ttft_target_ps",
    }
)
"""Options that are another field of `EngineArgs`: in other units, under a first name, or as a part
of one.
"""


def check_agreement(options: Iterable[str], arguments: Iterable[str]) -> None:
    """Raises TypeError naming an engine option without a field of `EngineArgs`: one that was half
    added.
    """
    known = {*arguments, *scheduler_parameters()}
    for name in sorted(options):
        if OTHER_NAMES.get(name, name) not in known:
            raise TypeError(f"the engine option {name} is half added: EngineArgs does not have it")


check_agreement(EngineOptions.model_fields, EngineArgs.__struct_fields__)

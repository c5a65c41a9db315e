"""The engine options that a person may set, in the cluster file or on the command line, under
vLLM's names.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Self

from msgspec import Struct
from pydantic import Field, model_validator

from llmsim.config.constraints import broken_rule, shown
from llmsim.config.engine.scheduler_kinds import KINDS, SCHEDULERS, parameter
from llmsim.config.engine.speculative import SpeculativeConfig
from llmsim.config.fields import (
    Count,
    Name,
    PositiveCount,
    PositiveTokens,
    Section,
    SizeGib,
    TimeNs,
    Tokens,
    Utilization,
)

DTYPES = {
    "auto": "auto",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp32": "fp32",
    "fp8": "fp8",
    "int8": "int8",
}
QUICK_REDUCE = ("NONE", "FP", "INT8", "INT6", "INT4", "INT3")
"""Values of VLLM_ROCM_QUICK_REDUCE_QUANTIZATION."""
Megabytes = Annotated[int, Field(ge=0, le=1 << 20)]
TENSORRT_LLM_CAPACITIES = ("guaranteed_no_evict", "max_utilization")
TENSORRT_LLM_CHUNKINGS = ("first_come_first_served", "equal_progress")
SGLANG_POLICIES = ("fcfs", "lpm", "lof", "dfs-weight", "hrrn", "shortest-prefill-first")
"""Values of SGLang's `schedule_policy`, in the order of the native scheduler's parameter."""
SGLANG_BY_PRIORITY = ("fcfs", "lof")
"""Those of them that SGLang orders by priorities first."""
SGLANG_RETRACTIONS = ("length", "priority")
"""Values of SGLang's `retraction_policy`, in that order."""
HICACHE_WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
"""Values of SGLang's `hicache_write_policy`."""
HICACHE_PREFETCH_POLICIES = ("timeout", "wait_complete", "best_effort")
"""Values of SGLang's `hicache_storage_prefetch_policy`, its default first."""
MAMBA_STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy")
"""SGLang's `mamba_radix_cache_strategy`."""
HICACHE_STORAGE = ("file",)
"""Values of SGLang's `hicache_storage_backend` that run."""
KV_OFFLOADING_EVICTIONS = ("lru", "arc")
"""Values of `eviction_policy` of vLLM's OffloadingConnector, its default first."""
KV_LOAD_FAILURE_POLICIES = ("fail", "recompute")
"""Values of vLLM's `kv_load_failure_policy`, its default first."""
KV_CACHE_DTYPES = DTYPES | {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
"""Spellings of vLLM and torch -> the short name used everywhere else."""


def _one_of(names: Iterable[str]) -> Any:
    return Field(pattern=f"^({'|'.join(names)})$", json_schema_extra={"enum": list(names)})


Implementations = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        pattern=r"^[A-Za-z]+[0-9]*(\s*,\s*[A-Za-z]+[0-9]*)*$",
        json_schema_extra={"expected": 'names of algorithms, as in "ring,direct"'},
    ),
]
"""Algorithms of a kind of collective under ASTRA-sim's names, by dimension of the network."""
GraphSizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1 << 16)], ...],
    Field(min_length=1, max_length=4096, strict=False),
]


SAME_OPTION = {
    "reserve_full_isl": ("reserve_full_isl", "scheduler_reserve_full_isl"),
    "gpu_memory_utilization": ("gpu_memory_utilization", "npu_memory_utilization"),
    "cuda_graph_sizes": ("cuda_graph_sizes", "cudagraph_capture_sizes"),
}
"""Options with several names; an instance adds npu_mem.mem_util to the second."""


def require_equal(names: tuple[str, ...], values: tuple[object, ...]) -> None:
    """Raises a broken rule where names of one option disagree; a dot in a name steps into a
    section.
    """
    present = [
        (name, value) for name, value in zip(names, values, strict=True) if value is not None
    ]
    for name, value in present[1:]:
        first_name, first_value = present[0]
        if value != first_value:
            sentence = (
                f"is {shown(value)} but {first_name}, the same option, is {shown(first_value)}; "
                "keep one of them"
            )
            raise broken_rule(tuple(name.split(".")), sentence)


class OnCommandLine(Struct, frozen=True):
    """Marks an option that `llmsim run` takes as well, under the field's name with dashes."""

    kind: type
    """int, float, str or bool, as the command line reads it; bool makes a pair --name/--no-name."""
    other_names: tuple[str, ...] = ()

    def declarations(self, field: str) -> tuple[str, ...]:
        """The names as a command-line parser takes them."""
        words = field.replace("_", "-")
        first = f"--{words}/--no-{words}" if self.kind is bool else f"--{words}"
        return (first, *self.other_names)


class ParameterOf(Struct, frozen=True):
    """Marks an option that is a parameter of one scheduler, by its name beside the scheduler's
    class, which also declares its default and its limits.
    """

    scheduler: str
    name: str
    names: tuple[str, ...] = ()
    """What the option may be where it is a text; the parameter is its place among them."""

    def parameter(self, given: Any) -> int:
        """The parameter's value for a value of the option."""
        return self.names.index(given) if self.names else int(given)

    @property
    def default(self) -> int:
        """In the core's unit."""
        return parameter(self.scheduler, self.name).default


def _own_limits(scheduler: str, name: str) -> Any:
    declared = parameter(scheduler, name)
    return Field(ge=declared.low, le=declared.high)


class EngineOptions(Section):
    """The table of engine options: a row per option, with its name, type, limits and sentence; None
    is "not given".

    The cluster file, its schema, the command line, overrides and the reference page are made of
    these rows. A row says with OnCommandLine whether `llmsim run` takes the option too.
    `EngineArgs` holds the value that an engine runs with.
    """

    @model_validator(mode="before")
    @classmethod
    def _hyphens_of_vllm(cls, given: Any) -> Any:
        """`vllm serve` writes its YAML file with hyphens; the keys mean the same here."""
        if not isinstance(given, Mapping) or not any("-" in str(key) for key in given):
            return given
        fields = {str(key).replace("-", "_"): value for key, value in given.items()}
        if len(fields) < len(given):
            twice = next(key for key in given if "-" in key and key.replace("-", "_") in given)
            raise broken_rule(twice, "is given twice, with - and with _; keep one of them")
        return fields

    engine_profile: Annotated[Name | None, OnCommandLine(str)] = Field(
        default=None,
        description="Applies the defaults of an engine version; default vllm-0.24, or "
        "sglang-0.5.23 with the scheduler sglang.",
    )
    max_num_seqs: Annotated[Count | None, OnCommandLine(int, ("--max-batch",))] = Field(
        default=None, description="Limits the sequences of a step; 0 sets no limit."
    )
    max_num_batched_tokens: Annotated[Tokens | None, OnCommandLine(int)] = Field(
        default=None, description="Limits the tokens of a step."
    )
    max_num_scheduled_tokens: Annotated[PositiveTokens | None, OnCommandLine(int)] = Field(
        default=None,
        description="Limits the tokens that the scheduler puts into a step; if not given, "
        "max_num_batched_tokens without the slots of drafts.",
    )
    long_prefill_token_threshold: Annotated[Tokens | None, OnCommandLine(int)] = Field(
        default=None, description="Limits the tokens of one prompt in a step; 0 sets no limit."
    )
    long_prefill_token_threshold_adaptive: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None,
        description=(
            "Raises --long-prefill-token-threshold to each request's share of the token budget "
            "(since vllm-0.31)."
        ),
    )
    max_num_active_seqs: Annotated[PositiveCount | None, OnCommandLine(int)] = Field(
        default=None,
        description="Limits the running sequences (since vllm-0.31); max_num_seqs if not given.",
    )
    prefill_schedule_interval: Annotated[
        Annotated[int, Field(ge=1, le=1 << 20)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Schedules prompts in every N-th step only while other requests decode.",
    )
    max_num_queued_reqs: Annotated[PositiveCount | None, OnCommandLine(int)] = Field(
        default=None, description="Turns requests away when N requests wait (since vllm-0.29)."
    )
    max_num_queued_tokens: Annotated[PositiveTokens | None, OnCommandLine(int)] = Field(
        default=None,
        description="Turns requests away when waiting prompts hold N tokens (since vllm-0.29).",
    )
    max_loras: Annotated[PositiveCount | None, OnCommandLine(int)] = Field(
        default=None,
        description="Limits the LoRA adapters of a step (adapter of the trace); no limit if not "
        "given (vLLM from 0.24 on).",
    )
    max_lora_rank: Annotated[PositiveCount | None, OnCommandLine(int)] = Field(
        default=None,
        description="Sets the rank that each of the max_loras slots of adapters has room for; 16 "
        "if not given (vLLM from 0.24 on).",
    )
    max_cpu_loras: Annotated[PositiveCount | None, OnCommandLine(int)] = Field(
        default=None,
        description="Keeps so many LoRA adapters in host memory, at least max_loras; max_loras if "
        "not given (vLLM from 0.24 on).",
    )
    fully_sharded_loras: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None,
        description="Cuts both matrices of each LoRA slot over the tensor-parallel ranks "
        "(vLLM from 0.24 on).",
    )
    kv_load_failure_policy: Annotated[
        Annotated[str, _one_of(KV_LOAD_FAILURE_POLICIES)] | None, OnCommandLine(str)
    ] = Field(
        default=None,
        description="Says what becomes of requests whose KV could not be loaded: fail (vLLM's "
        "default) ends them with an error, recompute computes what is missing.",
    )
    kv_load_failure_rate: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None, OnCommandLine(float)
    ] = Field(
        default=None,
        description="Sets the share of loads of KV that fail, from prefill instances and from KV "
        "tiers (docs/explanation/kv_tiers.md).",
    )
    kv_offloading_size: Annotated[SizeGib | None, OnCommandLine(float)] = Field(
        default=None,
        description="Keeps KV of prompts in so many GiB of host memory for all ranks of an engine, "
        "by the rules of vLLM's OffloadingConnector (from 0.24 on; docs/explanation/kv_tiers.md).",
    )
    kv_offloading_blocks_per_chunk: Annotated[
        Annotated[int, Field(ge=1, le=1 << 12)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Sets the KV blocks that are offloaded and loaded together; 1 if not given.",
    )
    kv_offloading_eviction_policy: Annotated[
        Annotated[str, _one_of(KV_OFFLOADING_EVICTIONS)] | None, OnCommandLine(str)
    ] = Field(
        default=None,
        description="Chooses which chunks a full pool of offloaded KV gives up: lru (the default) "
        "or arc.",
    )
    kv_offloading_prompt_only: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None,
        description="Offloads KV of prompts alone, as vLLM does by default, or of answers, too.",
    )
    kv_offloading_store_threshold: Annotated[
        Annotated[int, Field(ge=0, le=1 << 16)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Offloads a chunk when it is computed or found for the so manieth time, up to "
        "0.28 when it is looked for; below 2, the default, at once.",
    )
    kv_offloading_sync_load_budget_bytes: Annotated[
        Annotated[int, Field(ge=0, le=1 << 50)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Limits the bytes of each device that a step loads and waits for; requests "
        "beyond it are parked until their KV has come. 0, the default, parks all.",
    )
    max_num_encoder_input_tokens: Annotated[PositiveCount | None, OnCommandLine(int)] = Field(
        default=None,
        description="Limits the tokens of images and other inputs that a step encodes "
        "(encoder_inputs of the trace); max_num_batched_tokens if not given (vLLM from 0.24 on).",
    )
    encoder_cache_size: Annotated[PositiveCount | None, OnCommandLine(int)] = Field(
        default=None,
        description="Limits the tokens of encoder outputs that are kept; max_num_batched_tokens if "
        "not given (vLLM from 0.24 on).",
    )
    disable_chunked_mm_input: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None,
        description="Lets no step compute a part of an image alone (vLLM from 0.24 on).",
    )
    speculative_config: Annotated[SpeculativeConfig | None, OnCommandLine(str)] = Field(
        default=None,
        description="Enables speculative decoding by vLLM's JSON with an acceptance rate, such as "
        '{"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": 0.7} '
        "(docs/explanation/speculation.md).",
    )
    enable_chunked_prefill: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None, description="Lets a prompt spread over several steps."
    )
    enable_prefix_caching: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None, description="Lets requests with equal prefixes share KV blocks."
    )
    prefix_cache_retention_interval: Annotated[Tokens | None, OnCommandLine(int)] = Field(
        default=None,
        description="Sets how far apart cached prefixes of windowed layers may end, beside the "
        "ends of prompts and shared parts; 0: only there (since vllm-0.29).",
    )
    prefix_match_unit: Annotated[PositiveTokens | None, OnCommandLine(int)] = Field(
        default=None,
        description="Sets how many tokens apart hits of the prefix cache may end inside of blocks, "
        "where some layers keep states (since vllm-0.30).",
    )
    reserve_full_isl: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None,
        description="Admits a request only when its whole prompt fits into the KV cache.",
    )
    scheduler_reserve_full_isl: bool | None = Field(
        default=None, description="Sets reserve_full_isl under vLLM's name."
    )
    watermark: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, OnCommandLine(float)] = Field(
        default=None,
        description="Sets the share of KV blocks that admission keeps free while others run.",
    )
    block_size: Annotated[
        Annotated[int, Field(ge=1, le=1 << 16, json_schema_extra={"unit": "tokens"})] | None,
        OnCommandLine(int),
    ] = Field(default=None, description="Sets the tokens of a KV block.")
    gpu_memory_utilization: Annotated[
        Utilization | None, OnCommandLine(float, ("--npu-memory-utilization",))
    ] = Field(default=None, description="Sets the share of device memory that the engine uses.")
    npu_memory_utilization: Utilization | None = Field(
        default=None, description="Sets gpu_memory_utilization under LLMServingSim's name."
    )
    num_gpu_blocks_override: Annotated[
        Annotated[int, Field(ge=1, le=(1 << 31) - 1)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Sets the number of KV blocks, the null block included, instead of what fits.",
    )
    max_model_len: Annotated[PositiveTokens | None, OnCommandLine(int)] = Field(
        default=None,
        description=(
            "Limits the tokens of prompt and output together; the model's own limit if not given."
        ),
    )
    dtype: Annotated[Annotated[str, _one_of(DTYPES)] | None, OnCommandLine(str)] = Field(
        default=None,
        description="Sets the type of weights and activations: auto (the model's), bfloat16, "
        "float16, float32, fp8 or int8.",
    )
    kv_cache_dtype: Annotated[
        Annotated[str, _one_of(KV_CACHE_DTYPES)] | None, OnCommandLine(str)
    ] = Field(
        default=None,
        description=(
            "Sets the type of the KV cache: auto (as dtype), fp8, bfloat16 or another type."
        ),
    )
    scheduler: Annotated[Annotated[str, _one_of(SCHEDULERS)] | None, OnCommandLine(str)] = Field(
        default=None,
        description=f"Chooses the scheduler: {', '.join(SCHEDULERS)} or module:Class; vllm is the "
        "installed one.",
    )
    scheduling_policy: Annotated[Name | None, OnCommandLine(str)] = Field(
        default=None,
        description="Orders the waiting queue: fcfs, priority (of the trace), sjf (shortest "
        "prompt), slack (to the TTFT target), or a ranking: h2q_br, slo_age, inverted-slo, "
        "reverse-priority, module:Class.",
    )
    ttft_target_ns: Annotated[TimeNs | None, OnCommandLine(float)] = Field(
        default=None,
        description="Sets the target of the time to first token for the policy slack; default 1 s.",
    )
    mlfq_levels: Annotated[
        Annotated[int, _own_limits("mlfq", "levels")] | None,
        ParameterOf("mlfq", "levels"),
        OnCommandLine(int),
    ] = Field(
        default=None,
        description="Sets the levels of the scheduler mlfq, of which level i lasts 2^i iterations; "
        f"default {parameter('mlfq', 'levels').default}.",
    )
    mlfq_tokens_per_iteration: Annotated[
        PositiveTokens | None, ParameterOf("mlfq", "tokens_per_iteration"), OnCommandLine(int)
    ] = Field(
        default=None,
        description="Sets the prompt tokens that the scheduler mlfq counts as one iteration; "
        f"default {parameter('mlfq', 'tokens_per_iteration').default}.",
    )
    mlfq_starvation_ns: Annotated[
        TimeNs | None, ParameterOf("mlfq", "starvation_ps"), OnCommandLine(float)
    ] = Field(
        default=None,
        description="Sets the wait after which the scheduler mlfq promotes a request to the first "
        f"level; default {parameter('mlfq', 'starvation_ps').default / 1e12:g} s.",
    )
    tensorrt_llm_capacity_policy: Annotated[
        Annotated[str, _one_of(TENSORRT_LLM_CAPACITIES)] | None,
        ParameterOf("tensorrt_llm", "capacity_policy", TENSORRT_LLM_CAPACITIES),
        OnCommandLine(str),
    ] = Field(
        default=None,
        description="Chooses who has room with the scheduler tensorrt_llm: guaranteed_no_evict "
        "(the default) reserves the longest answer, and max_utilization pauses the youngest.",
    )
    tensorrt_llm_chunking_policy: Annotated[
        Annotated[str, _one_of(TENSORRT_LLM_CHUNKINGS)] | None,
        ParameterOf("tensorrt_llm", "chunking_policy", TENSORRT_LLM_CHUNKINGS),
        OnCommandLine(str),
    ] = Field(
        default=None,
        description="Cuts prompts with the scheduler tensorrt_llm: first_come_first_served (the "
        "default), or all by one block after the other (equal_progress).",
    )
    sglang_new_tokens: Annotated[
        PositiveTokens | None, ParameterOf("sglang", "new_tokens"), OnCommandLine(int)
    ] = Field(
        default=None,
        description="Limits the answer length that the admission of the scheduler sglang assumes; "
        f"default {parameter('sglang', 'new_tokens').default}.",
    )
    sglang_reserved_tokens: Annotated[
        Tokens | None, ParameterOf("sglang", "reserved_tokens"), OnCommandLine(int)
    ] = Field(
        default=None,
        description="Sets the tokens that a decode instance of the scheduler sglang reserves per "
        f"request; default {parameter('sglang', 'reserved_tokens').default}.",
    )
    sglang_max_prefill_tokens: Annotated[
        PositiveTokens | None, ParameterOf("sglang", "max_prefill_tokens"), OnCommandLine(int)
    ] = Field(
        default=None,
        description="Limits the prompt tokens of a step of the scheduler sglang, beside the chunk; "
        f"default {parameter('sglang', 'max_prefill_tokens').default}.",
    )
    sglang_mixed_chunk: Annotated[
        bool | None, ParameterOf("sglang", "mixed_chunk"), OnCommandLine(bool)
    ] = Field(default=None, description="Adds decodes to steps of prompts of the scheduler sglang.")
    sglang_overlap: Annotated[
        bool | None, ParameterOf("sglang", "overlap"), OnCommandLine(bool)
    ] = Field(
        default=None,
        description="Forms each step of the scheduler sglang while the one before it runs (default "
        "true).",
    )
    sglang_schedule_policy: Annotated[
        Annotated[str, _one_of(SGLANG_POLICIES)] | None,
        ParameterOf("sglang", "policy", SGLANG_POLICIES),
        OnCommandLine(str),
    ] = Field(
        default=None,
        description="Orders the queue of the scheduler sglang: by arrival (fcfs, the default), "
        "longest cached prefix (lpm), longest answer (lof), or branches of the prefix cache "
        "(dfs-weight). "
        "Two orders go by the prompt tokens left to compute: hrrn, which weighs them by waiting, "
        "and shortest-prefill-first.",
    )
    sglang_priority_scheduling: Annotated[
        bool | None, ParameterOf("sglang", "priorities"), OnCommandLine(bool)
    ] = Field(
        default=None,
        description="Orders the queue of the scheduler sglang by the trace's priorities first; the "
        "highest number starts first.",
    )
    sglang_low_priority_values_first: Annotated[
        bool | None, ParameterOf("sglang", "low_priorities_first"), OnCommandLine(bool)
    ] = Field(
        default=None,
        description="Starts the lowest number first with sglang_priority_scheduling.",
    )
    sglang_priority_preemption: Annotated[
        bool | None, ParameterOf("sglang", "preemption"), OnCommandLine(bool)
    ] = Field(
        default=None,
        description="Preempts running requests for more important ones with "
        "sglang_priority_scheduling (default true).",
    )
    sglang_preemption_threshold: Annotated[
        Annotated[int, Field(ge=0, lt=1 << 31)] | None,
        ParameterOf("sglang", "preemption_threshold"),
        OnCommandLine(int),
    ] = Field(
        default=None,
        description="Preempts only for priorities that differ by more than this; default "
        f"{parameter('sglang', 'preemption_threshold').default}.",
    )
    sglang_retraction_policy: Annotated[
        Annotated[str, _one_of(SGLANG_RETRACTIONS)] | None,
        ParameterOf("sglang", "retraction_policy", SGLANG_RETRACTIONS),
        OnCommandLine(str),
    ] = Field(
        default=None,
        description="Chooses whom the scheduler sglang retracts when the KV cache is full: the "
        "shortest answers (length, the default), or the least important (priority).",
    )
    sglang_conservativeness_permille: Annotated[
        Annotated[int, _own_limits("sglang", "conservativeness")] | None,
        ParameterOf("sglang", "conservativeness"),
        OnCommandLine(int),
    ] = Field(
        default=None,
        description="Sets SGLang's schedule_conservativeness in thousandths: the share of running "
        "answers that the admission of the scheduler sglang counts on; default "
        f"{parameter('sglang', 'conservativeness').default}, less with data-parallel attention.",
    )
    sglang_scheduler_recv_interval: Annotated[
        Annotated[int, _own_limits("sglang", "recv_interval")] | None,
        ParameterOf("sglang", "recv_interval"),
        OnCommandLine(int),
    ] = Field(
        default=None,
        description="Sets SGLang's scheduler_recv_interval: the steps of decodes after which the "
        "scheduler sglang looks for new requests; default "
        f"{parameter('sglang', 'recv_interval').default}.",
    )
    sglang_eagle_topk: Annotated[
        Annotated[int, Field(ge=1, le=64)] | None,
        ParameterOf("sglang", "eagle_topk"),
        OnCommandLine(int),
    ] = Field(
        default=None,
        description="Sets how many tokens each step of drafting tries behind each branch, with the "
        "scheduler sglang and a speculative_config; default "
        f"{parameter('sglang', 'eagle_topk').default}.",
    )
    sglang_draft_tokens: Annotated[
        Annotated[int, Field(ge=2, le=1 << 12)] | None,
        ParameterOf("sglang", "draft_tokens"),
        OnCommandLine(int),
    ] = Field(
        default=None,
        description="Sets the tokens that a step of the scheduler sglang verifies for each request "
        "where sglang_eagle_topk is above 1; else they are one more than the drafts.",
    )
    enable_hierarchical_cache: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None,
        description="Keeps KV of the scheduler sglang in host memory, too (HiCache; "
        "docs/explanation/kv_tiers.md).",
    )
    hicache_ratio: Annotated[
        Annotated[float, Field(gt=0, le=1 << 10)] | None, OnCommandLine(float)
    ] = Field(
        default=None,
        description="Sets the tokens of HiCache's host pool, as a multiple of the device's; 2 if "
        "neither this nor hicache_size is given, or less where host memory is smaller.",
    )
    hicache_size: Annotated[Annotated[int, Field(ge=0, le=1 << 20)] | None, OnCommandLine(int)] = (
        Field(
            default=None,
            description="Sets the GB of HiCache's host pool of each device, instead of "
            "hicache_ratio.",
        )
    )
    hicache_write_policy: Annotated[
        Annotated[str, _one_of(HICACHE_WRITE_POLICIES)] | None, OnCommandLine(str)
    ] = Field(
        default=None,
        description="Copies KV to HiCache's host pool when it is inserted (write_through, the "
        "default), inserted or found for the second time (write_through_selective), or evicted "
        "(write_back).",
    )
    swa_full_tokens_ratio: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None, OnCommandLine(float)
    ] = Field(
        default=None,
        description="Sets the tokens in SGLang's KV pool of layers with a window, for each token "
        "in that of the other layers; default 0.8.",
    )
    mamba_full_memory_ratio: Annotated[
        Annotated[float, Field(gt=0, le=1 << 10)] | None, OnCommandLine(float)
    ] = Field(
        default=None,
        description="Sets the memory of SGLang's pool of states, for each byte of KV; default 0.9.",
    )
    max_mamba_cache_size: Annotated[
        Annotated[int, Field(ge=1, le=1 << 24)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Sets the states in SGLang's pool of them, instead of mamba_full_memory_ratio.",
    )
    mamba_radix_cache_strategy: Annotated[
        Annotated[str, _one_of(MAMBA_STRATEGIES)] | None, OnCommandLine(str)
    ] = Field(
        default=None,
        description="Says whether sequences of SGLang have spare slots for states (extra_buffer), "
        "with which steps overlap beside the prefix cache, the second for few steps alone "
        "(extra_buffer_lazy), or none (no_buffer); the default follows from release and model.",
    )
    mamba_track_interval: Annotated[
        Annotated[int, Field(ge=1, le=1 << 24)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Sets the tokens of an answer from one state that SGLang's prefix cache can "
        "get to the next, where sequences have spare slots for states; default 256.",
    )
    hicache_storage_backend: Annotated[
        Annotated[str, _one_of(HICACHE_STORAGE)] | None, OnCommandLine(str)
    ] = Field(
        default=None,
        description="Keeps KV behind HiCache's host pool in files of the node's storage, or of the "
        "cluster's where the node has none.",
    )
    hicache_storage_prefetch_policy: Annotated[
        Annotated[str, _one_of(HICACHE_PREFETCH_POLICIES)] | None, OnCommandLine(str)
    ] = Field(
        default=None,
        description="Says until when a request waits for what HiCache's storage holds of its "
        "prompt: a time (timeout, the default), its end (wait_complete), or not (best_effort).",
    )
    hicache_prefetch_threshold: Annotated[
        Annotated[int, Field(ge=1, le=1 << 20, json_schema_extra={"unit": "tokens"})] | None,
        OnCommandLine(int),
    ] = Field(
        default=None,
        description="Sets the fewest tokens that HiCache looks for in its storage, and reads from "
        "there; default 256. It is the prefetch_threshold of SGLang's extra configuration.",
    )
    hicache_prefetch_timeout_base: Annotated[
        Annotated[float, Field(ge=0, le=1000, json_schema_extra={"unit": "s"})] | None,
        OnCommandLine(float),
    ] = Field(
        default=None,
        description="Sets how long a request waits for HiCache's storage with the policy timeout; "
        "default 1. It is the prefetch_timeout_base of SGLang's extra configuration.",
    )
    hicache_prefetch_timeout_per_ki_token: Annotated[
        Annotated[float, Field(ge=0, le=1000, json_schema_extra={"unit": "s"})] | None,
        OnCommandLine(float),
    ] = Field(
        default=None,
        description="Sets how much longer that is for each 1,024 tokens that a request looks for; "
        "default 0.25. It is the prefetch_timeout_per_ki_token of SGLang's extra configuration.",
    )
    hicache_storage_prefetch_retry_poll_interval: Annotated[
        Annotated[int, Field(ge=0, le=1 << 20)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Sets the passes of the scheduler after which a request looks again for what "
        "HiCache's storage did not hold; default 8, and 0 means never.",
    )
    hicache_storage_prefetch_retry_max_attempts: Annotated[
        Annotated[int, Field(ge=0, le=1 << 20)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Sets how often a request looks again in HiCache's storage; default 8.",
    )
    prioritize_prefill: bool | None = Field(
        default=None, description="Fills steps with prompts alone while any prompt waits (vllm_v1)."
    )
    skip_prefill: bool | None = Field(
        default=None,
        description="Simulates decodes alone: requests arrive with the KV of their prompts.",
    )
    async_scheduling: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None, description="Schedules a step while the previous one runs."
    )
    cuda_graph_sizes: GraphSizes | None = Field(
        default=None,
        description=(
            "Lists the token counts that have a CUDA graph; smaller steps are padded to the next "
            "count."
        ),
    )
    cudagraph_capture_sizes: Annotated[GraphSizes | None, OnCommandLine(str)] = Field(
        default=None, description="Lists the token counts that have a CUDA graph, such as 1,2,4,8."
    )
    cudagraph_mode: Annotated[
        Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] | None,
        OnCommandLine(str),
    ] = Field(
        default=None,
        description=(
            "Sets the CUDA graph mode: NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or "
            "FULL_AND_PIECEWISE."
        ),
    )
    enforce_eager: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None, description="Runs without CUDA graphs and without compilation."
    )
    launch_ns: Annotated[TimeNs | None, OnCommandLine(float)] = Field(
        default=None,
        description="Sets the host time of one kernel launch, or of one CUDA graph's.",
    )
    prepare_ns: TimeNs | None = Field(
        default=None,
        description="Sets the host time of a step before its first launch.",
    )
    prepare_sequence_ns: TimeNs | None = Field(
        default=None,
        description=(
            "Sets the host time before a step's first launch for each sequence of the step."
        ),
    )
    kv_read_ns: TimeNs | None = Field(
        default=None,
        description=(
            "Sets the host time before a decode instance's step for each rank that it begins to "
            "read a prompt's KV from."
        ),
    )
    kv_descriptor_ns: TimeNs | None = Field(
        default=None,
        description=(
            "Sets the host time before a decode instance's step for each piece of KV, of one block "
            "and layer, that it begins to read."
        ),
    )
    fused_moe_ns: TimeNs | None = Field(
        default=None,
        description=(
            "Sets the host time that each layer of experts takes beside its launches, where no "
            "CUDA graph replays it."
        ),
    )
    api_latency_ns: TimeNs | None = Field(
        default=None,
        description=(
            "Sets the time between a request's arrival at the server and in the engine's queue."
        ),
    )
    endpoint: Annotated[Literal["completions", "chat"] | None, OnCommandLine(str)] = Field(
        default=None,
        description="Lets clients ask this endpoint of the API server, whose work takes time; if "
        "not given, times are those of the engine.",
    )
    api_server_count: Annotated[
        Annotated[int, Field(ge=1, le=1 << 10)] | None, OnCommandLine(int)
    ] = Field(default=None, description="Sets the processes of an instance's API server.")
    api_request_ns: TimeNs | None = Field(
        default=None, description="Sets what an API server process works on each request."
    )
    api_prompt_token_ns: TimeNs | None = Field(
        default=None, description="Sets what an API server process works on each prompt token."
    )
    api_chunk_ns: TimeNs | None = Field(
        default=None,
        description="Sets what an API server process works on each chunk of an answer.",
    )
    host_gap_ns: TimeNs | None = Field(
        default=None, description="Sets the idle time of the device between two steps."
    )
    host_sequence_ns: TimeNs | None = Field(
        default=None,
        description="Adds an idle time of the device between two steps for each sequence.",
    )

    native_sampler: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None,
        description="Samples without FlashInfer, as an installation of wheels does; up to "
        "vllm-0.13 the sampler then needs more memory.",
    )
    dp_sync_interval: Annotated[int, Field(ge=1, le=1 << 20)] | None = Field(
        default=None,
        description=(
            "Sets the steps after which data-parallel ranks agree on whether any of them has work."
        ),
    )
    lockstep_dense_dp: bool | None = Field(
        default=None, description="Runs the ranks of a dense model's dp_group in lock-step."
    )
    enable_eplb: bool | None = Field(
        default=None, description="Places experts by their load (expert-parallel load balancer)."
    )
    num_redundant_experts: Annotated[int, Field(ge=0, le=1 << 16)] | None = Field(
        default=None,
        description="Sets the copies of the most loaded experts over all ranks; needs enable_eplb.",
    )
    expert_placement_strategy: Literal["linear", "round_robin"] | None = Field(
        default=None,
        description=(
            "Deals experts to ranks in blocks (linear) or one by one (round_robin), without EPLB."
        ),
    )
    pipeline_extra_batches: Annotated[int, Field(ge=0, le=64)] | None = Field(
        default=None, description="Sets the batches in flight beyond one per pipeline stage."
    )
    ignore_eos: bool | None = Field(
        default=None,
        description=(
            "Ends answers by their length, which async scheduling foresees; false ends them by a "
            "stop token."
        ),
    )
    use_v2_model_runner: bool | None = Field(
        default=None,
        description=(
            "Runs asynchronous pipeline stages by vLLM's Model Runner V2; the model decides if not "
            "given."
        ),
    )
    enable_sequence_parallelism: bool | None = Field(
        default=None,
        description=(
            "Runs norms on 1/tp_size of the tokens, between a reduce-scatter and an all-gather."
        ),
    )
    decode_context_parallel_size: PositiveCount | None = Field(
        default=None,
        description=(
            "Sets how many tensor-parallel ranks with a common KV head shard its cache by tokens."
        ),
    )
    all_reduce_implementation: Annotated[Implementations | None, OnCommandLine(str)] = Field(
        default=None,
        description=(
            "Names the algorithm of all-reduces on links, or one per dimension of link_bw, such as "
            "ring,halvingDoubling (docs/reference/collectives.md)."
        ),
    )
    all_gather_implementation: Annotated[Implementations | None, OnCommandLine(str)] = Field(
        default=None,
        description="Names the algorithm of all-gathers on links, or one per dimension of link_bw.",
    )
    reduce_scatter_implementation: Annotated[Implementations | None, OnCommandLine(str)] = Field(
        default=None,
        description=(
            "Names the algorithm of reduce-scatters on links, or one per dimension of link_bw."
        ),
    )
    all_to_all_implementation: Annotated[Implementations | None, OnCommandLine(str)] = Field(
        default=None,
        description=(
            "Names the algorithm by which rows travel to experts and back, or one per dimension of "
            "link_bw; if not given, each rank sends them through its ports."
        ),
    )
    all2all_backend: (
        Literal[
            "allgather_reducescatter",
            "naive",
            "pplx",
            "deepep_high_throughput",
            "deepep_low_latency",
        ]
        | None
    ) = Field(
        default=None,
        description="Chooses the all-to-all backend that sends tokens to the experts of other "
        "data-parallel ranks.",
    )

    quick_reduce_quantization: Annotated[
        Annotated[str, _one_of(QUICK_REDUCE)] | None, OnCommandLine(str)
    ] = Field(
        default=None,
        description="Chooses the messages of the quick all-reduce on AMD's cards, as "
        "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION does; NONE, the default, switches it off.",
    )
    quick_reduce_cast_bf16_to_fp16: Annotated[bool | None, OnCommandLine(bool)] = Field(
        default=None,
        description="Lets the quick all-reduce convert vectors in bfloat16 to float16, as "
        "VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16 does (on by default).",
    )
    quick_reduce_min_size_bytes_mb: Annotated[Megabytes | None, OnCommandLine(int)] = Field(
        default=None,
        description="Sets the smallest vector (MiB) of the quick all-reduce, as "
        "VLLM_ROCM_QUICK_REDUCE_MIN_SIZE_BYTES_MB does; by default the engine's table has it.",
    )
    quick_reduce_max_size_bytes_mb: Annotated[
        Annotated[int, Field(ge=1, le=1 << 20)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Sets the largest vector (MiB) of the quick all-reduce, as "
        "VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB does (2048 by default).",
    )
    quick_reduce_quantization_min_size_kb: Annotated[
        Annotated[int, Field(ge=0, le=1 << 30)] | None, OnCommandLine(int)
    ] = Field(
        default=None,
        description="Sets from how many KiB on the quick all-reduce quantises its messages, as "
        "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION_MIN_SIZE_KB does (all, by default).",
    )

    @model_validator(mode="after")
    def _one_value_per_option(self) -> Self:
        for names in SAME_OPTION.values():
            require_equal(names, tuple(getattr(self, name) for name in names))
        return self


class EngineOverrides:
    """Engine options that were given beside the cluster file, by name; `resolve` checks their
    values.

    Raises TypeError for a name that no option has.
    """

    def __init__(self, **options: Any) -> None:
        unknown = options.keys() - EngineOptions.model_fields.keys()
        if unknown:
            raise TypeError(f"no engine option is called {min(unknown)}")
        self.given: Mapping[str, Any] = {
            name: value for name, value in options.items() if value is not None
        }


@cache
def scheduler_parameters() -> Mapping[str, ParameterOf]:
    """The options that are a scheduler's own parameters, by field."""
    marks = {name: field.metadata for name, field in EngineOptions.model_fields.items()}
    return {
        name: mark
        for name, found in marks.items()
        for mark in found
        if isinstance(mark, ParameterOf)
    }


def check_parameters(marks: Iterable[ParameterOf]) -> None:
    """Raises TypeError naming a parameter that a scheduler declares and no option sets, or that an
    option sets and the scheduler does not declare.
    """
    set_by_option = {(mark.scheduler, mark.name) for mark in marks}
    declared = {(kind.name, name) for kind in KINDS.values() for name in kind.parameters}
    for scheduler, name in sorted(set_by_option ^ declared):
        missing = "no option sets it" if (scheduler, name) in declared else "does not declare it"
        raise TypeError(
            f"the parameter {name} of the scheduler {scheduler} is half added: {missing}"
        )


check_parameters(scheduler_parameters().values())


@cache
def command_line_options() -> Mapping[str, tuple[OnCommandLine, str]]:
    """The options that `llmsim run` takes, by field, each with its sentence for the help."""
    found = {}
    for name, field in EngineOptions.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, OnCommandLine):
                found[name] = (mark, field.description or "")
    return found


def given(options: EngineOptions) -> dict[str, Any]:
    """The options that were given, each under its first name and its dtypes in short form; not the
    profile.
    """
    values = {
        name: getattr(options, name)
        for name in EngineOptions.model_fields
        if name != "engine_profile"
    }
    values = {name: value for name, value in values.items() if value is not None}
    for first, names in SAME_OPTION.items():
        for name in names[1:]:
            if name in values:
                values[first] = values.pop(name)
    if "dtype" in values:
        values["dtype"] = DTYPES[values["dtype"]]
    if "kv_cache_dtype" in values:
        values["kv_cache_dtype"] = KV_CACHE_DTYPES[values["kv_cache_dtype"]]
    return values


def name_used(options: EngineOptions, option: str) -> str:
    """Which of an option's names was given; the first one if none was."""
    return next(
        (name for name in SAME_OPTION.get(option, ()) if getattr(options, name) is not None), option
    )

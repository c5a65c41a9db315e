"""The engine options that a person may set, in the cluster file or on the command line, under vLLM's names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from llmsim.config.constraints import broken_rule, shown
from llmsim.config.engine.speculative import SpeculativeConfig
from llmsim.config.fields import (
    Count,
    Name,
    PositiveCount,
    PositiveTokens,
    Section,
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
KV_CACHE_DTYPES = DTYPES | {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
"""Spellings of vLLM and torch -> the short name used everywhere else."""


def _one_of(names: dict[str, str]) -> Any:
    return Field(pattern=f"^({'|'.join(names)})$", json_schema_extra={"enum": list(names)})


GraphSizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1 << 16)], ...], Field(min_length=1, max_length=4096, strict=False)
]


SAME_OPTION = {
    "reserve_full_isl": ("reserve_full_isl", "scheduler_reserve_full_isl"),
    "gpu_memory_utilization": ("gpu_memory_utilization", "npu_memory_utilization"),
    "cuda_graph_sizes": ("cuda_graph_sizes", "cudagraph_capture_sizes"),
}
"""Options with several names; an instance adds npu_mem.mem_util to the second."""


def require_equal(names: tuple[str, ...], values: tuple[object, ...]) -> None:
    """Raises a broken rule where names of one option disagree; a dot in a name steps into a section."""
    present = [(name, value) for name, value in zip(names, values, strict=True) if value is not None]
    for name, value in present[1:]:
        first_name, first_value = present[0]
        if value != first_value:
            sentence = f"is {shown(value)} but {first_name}, the same option, is {shown(first_value)}; keep one of them"
            raise broken_rule(tuple(name.split(".")), sentence)


class EngineOptions(Section):
    """Every option of the engine; None is "not given"."""

    engine_profile: Name | None = Field(
        default=None, description='Engine version whose defaults and rules apply, such as "vllm-0.24".'
    )
    max_num_seqs: Count | None = Field(
        default=None, description="Most sequences in one step; 0: as many as max_num_batched_tokens."
    )
    max_num_batched_tokens: Tokens | None = Field(default=None, description="Token budget of one step.")
    max_num_scheduled_tokens: PositiveTokens | None = Field(
        default=None,
        description="Tokens that the scheduler puts into one step; max_num_batched_tokens, without what drafting adds, "
        "if not given.",
    )
    long_prefill_token_threshold: Tokens | None = Field(
        default=None, description="Most tokens of one prompt in one step; 0: no limit but the budget."
    )
    long_prefill_token_threshold_adaptive: bool | None = Field(
        default=None, description="The threshold is at least the budget's share of each request (vLLM 0.33)."
    )
    max_num_active_seqs: PositiveCount | None = Field(
        default=None, description="Most sequences that run at once (vLLM 0.33); max_num_seqs if not given."
    )
    prefill_schedule_interval: Annotated[int, Field(ge=1, le=1 << 20)] | None = Field(
        default=None, description="Prompts are computed in every so many steps while decodes exist."
    )
    max_num_queued_reqs: PositiveCount | None = Field(
        default=None, description="Requests beyond so many waiting ones are turned away (503)."
    )
    max_num_queued_tokens: PositiveTokens | None = Field(
        default=None, description="Requests are turned away while so many tokens of prompts wait (503)."
    )
    speculative_config: SpeculativeConfig | None = Field(default=None, description="Speculative decoding; null: none.")
    enable_chunked_prefill: bool | None = Field(default=None, description="Whether a prompt may spread over steps.")
    enable_prefix_caching: bool | None = Field(default=None, description="Whether equal prefixes share KV blocks.")
    reserve_full_isl: bool | None = Field(
        default=None, description="Admit a prompt only when the blocks of all of it are free."
    )
    scheduler_reserve_full_isl: bool | None = Field(default=None, description="vLLM's name of reserve_full_isl.")
    watermark: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="Share of the KV blocks that admission keeps free while others run."
    )
    block_size: Annotated[int, Field(ge=1, le=1 << 16, json_schema_extra={"unit": "tokens"})] | None = Field(
        default=None, description="Size of a KV block."
    )
    gpu_memory_utilization: Utilization | None = Field(
        default=None, description="Share of the device memory that the engine may use."
    )
    npu_memory_utilization: Utilization | None = Field(
        default=None, description="The same as gpu_memory_utilization, under its other name."
    )
    num_gpu_blocks_override: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] | None = Field(
        default=None, description="Number of KV blocks, the null block included, instead of what fits the memory."
    )
    max_model_len: PositiveTokens | None = Field(
        default=None, description="Longest prompt and output together; the model's own limit if not given."
    )
    dtype: Annotated[str, _one_of(DTYPES)] | None = Field(
        default=None, description="Type of weights and activations; auto: the model's."
    )
    kv_cache_dtype: Annotated[str, _one_of(KV_CACHE_DTYPES)] | None = Field(
        default=None, description="Type of the KV cache; auto: as dtype."
    )
    scheduler: Literal["vllm_v1", "vllm", "sarathi", "orca", "static", "sglang", "mlfq"] | None = Field(
        default=None, description="Which engine's scheduler forms the steps (docs/reference/schedulers.md)."
    )
    scheduling_policy: Literal["fcfs", "priority", "sjf", "slack"] | None = Field(
        default=None,
        description="Order of the waiting queue: first come first served, by the trace's priorities, shortest prompt "
        "first, or least slack to the TTFT target first.",
    )
    ttft_target_ns: TimeNs | None = Field(
        default=None, description='Time to first token that scheduling_policy "slack" aims at.'
    )
    prioritize_prefill: bool | None = Field(
        default=None, description="A step is all prompts while there are any (vllm_v1)."
    )
    skip_prefill: bool | None = Field(
        default=None, description="Decode-only: requests arrive with the KV of their prompts already computed."
    )
    async_scheduling: bool | None = Field(
        default=None, description="Whether a step is scheduled while the previous one still runs."
    )
    cuda_graph_sizes: GraphSizes | None = Field(
        default=None, description="Token counts with a captured graph; smaller steps are padded to the next one."
    )
    cudagraph_capture_sizes: GraphSizes | None = Field(default=None, description="vLLM's name of cuda_graph_sizes.")
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] | None = Field(
        default=None, description="Which batches replay a captured graph, and whether attention is in it."
    )
    enforce_eager: bool | None = Field(
        default=None, description="No graphs and no compilation: every operator is launched from Python."
    )
    launch_ns: TimeNs | None = Field(
        default=None, description="Host time of one launch; steps without a graph are no faster than their launches."
    )
    api_latency_ns: TimeNs | None = Field(
        default=None, description="Time between a request's arrival at the server and in the engine's queue."
    )
    host_gap_ns: TimeNs | None = Field(default=None, description="Idle time of the device between two steps.")

    dp_sync_interval: Annotated[int, Field(ge=1, le=1 << 20)] | None = Field(
        default=None, description="Steps between two agreements of data-parallel ranks on whether anyone has work."
    )
    lockstep_dense_dp: bool | None = Field(
        default=None, description="Whether the ranks of a dense model's dp_group run in lock-step, too."
    )
    enable_eplb: bool | None = Field(
        default=None, description="Whether experts are placed by their load (expert-parallel load balancer)."
    )
    num_redundant_experts: Annotated[int, Field(ge=0, le=1 << 16)] | None = Field(
        default=None, description="Copies of the most loaded experts, over all ranks; needs enable_eplb."
    )
    expert_placement_strategy: Literal["linear", "round_robin"] | None = Field(
        default=None, description="How experts are dealt to ranks without EPLB: in blocks, or one by one."
    )
    pipeline_extra_batches: Annotated[int, Field(ge=0, le=64)] | None = Field(
        default=None, description="Batches in flight beyond one for each pipeline stage."
    )
    ignore_eos: bool | None = Field(
        default=None,
        description="Whether answers end by their length, which async scheduling foresees; false: with a stop token.",
    )
    use_v2_model_runner: bool | None = Field(
        default=None,
        description="Whether asynchronous pipeline stages run by vLLM's Model Runner V2; the model decides.",
    )
    enable_sequence_parallelism: bool | None = Field(
        default=None, description="Whether norms see 1/tp_size of the tokens, between reduce-scatter and all-gather."
    )
    decode_context_parallel_size: PositiveCount | None = Field(
        default=None,
        description="Of the tensor-parallel ranks with one KV head, how many share its cache by tokens.",
    )
    all2all_backend: (
        Literal["allgather_reducescatter", "naive", "pplx", "deepep_high_throughput", "deepep_low_latency"] | None
    ) = Field(default=None, description="How tokens reach the experts of other data-parallel ranks.")

    @model_validator(mode="after")
    def _one_value_per_option(self) -> Self:
        for names in SAME_OPTION.values():
            require_equal(names, tuple(getattr(self, name) for name in names))
        return self


@dataclass(frozen=True)
class EngineOverrides:
    """What the command line gave, None where nothing: fields and units of `EngineOptions`; `resolve` checks them."""

    engine_profile: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_scheduled_tokens: int | None = None
    max_num_active_seqs: int | None = None
    long_prefill_token_threshold_adaptive: bool | None = None
    prefill_schedule_interval: int | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    speculative_config: Mapping[str, Any] | None = None
    """vLLM's JSON."""
    long_prefill_token_threshold: int | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    reserve_full_isl: bool | None = None
    scheduler_reserve_full_isl: bool | None = None
    watermark: float | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    npu_memory_utilization: float | None = None
    num_gpu_blocks_override: int | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    scheduler: str | None = None
    scheduling_policy: str | None = None
    ttft_target_ns: float | None = None
    prioritize_prefill: bool | None = None
    skip_prefill: bool | None = None
    async_scheduling: bool | None = None
    cuda_graph_sizes: tuple[int, ...] | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    cudagraph_mode: str | None = None
    enforce_eager: bool | None = None
    launch_ns: float | None = None
    api_latency_ns: float | None = None
    host_gap_ns: float | None = None
    dp_sync_interval: int | None = None
    lockstep_dense_dp: bool | None = None
    enable_eplb: bool | None = None
    num_redundant_experts: int | None = None
    expert_placement_strategy: str | None = None
    pipeline_extra_batches: int | None = None
    ignore_eos: bool | None = None
    use_v2_model_runner: bool | None = None
    enable_sequence_parallelism: bool | None = None
    decode_context_parallel_size: int | None = None
    all2all_backend: str | None = None


def given(options: EngineOptions) -> dict[str, Any]:
    """The options that were given, each under its first name and its dtypes in short form; not the profile."""
    values = {name: getattr(options, name) for name in EngineOptions.model_fields if name != "engine_profile"}
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
    return next((name for name in SAME_OPTION.get(option, ()) if getattr(options, name) is not None), option)

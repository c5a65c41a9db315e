"""The command line of `run`: every option under its name, as a class that typer reads and the checks are given."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from dataclasses import fields as fields_of
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand

from llmsim.cli import options as o


@dataclass(frozen=True)
class CommandLine:
    """What was given, unchecked; the types' annotations are typer's."""

    cluster_config: o.Cluster
    dataset: o.Dataset
    num_reqs: o.NumReqs = 0
    seed: o.Seed = 0
    max_concurrency: o.MaxConcurrency = 0
    think_time: o.ThinkTime = None
    request_timeout: o.RequestTimeout = None
    horizon: o.Horizon = None
    engine_profile: o.EngineProfile = None
    max_num_seqs: o.MaxNumSeqs = None
    max_num_batched_tokens: o.MaxNumBatchedTokens = None
    max_num_scheduled_tokens: o.MaxNumScheduledTokens = None
    max_num_active_seqs: o.MaxNumActiveSeqs = None
    max_num_queued_reqs: o.MaxQueuedReqs = None
    max_num_queued_tokens: o.MaxQueuedTokens = None
    long_prefill_token_threshold: o.LongPrefill = None
    long_prefill_token_threshold_adaptive: o.AdaptiveThreshold = None
    prefill_schedule_interval: o.PrefillInterval = None
    speculative_config: o.Speculative = None
    cudagraph_mode: o.CudagraphMode = None
    cudagraph_capture_sizes: o.CudagraphSizes = None
    enforce_eager: o.EnforceEager = None
    launch_ns: o.Launch = None
    enable_chunked_prefill: o.Chunked = None
    enable_prefix_caching: o.PrefixCaching = None
    reserve_full_isl: o.ReserveFullIsl = None
    async_scheduling: o.Async = None
    block_size: o.BlockSize = None
    gpu_memory_utilization: o.Utilization = None
    num_gpu_blocks_override: o.NumBlocks = None
    max_model_len: o.MaxModelLen = None
    dtype: o.Dtype = None
    fp: o.Fp = None
    kv_cache_dtype: o.KvDtype = None
    watermark: o.Watermark = None
    scheduler: o.Scheduler = None
    scheduling_policy: o.Policy = None
    queue_order: o.QueueOrder = None
    preemption_victim: o.PreemptionVictim = None
    cache_eviction: o.CacheEviction = None
    admission: o.Admission = None
    ttft_target_ns: o.TtftTarget = None
    request_routing_policy: o.Routing = "LOAD"
    decode_routing_policy: o.DecodeRouting = "LOAD"
    kv_transfer: o.KvTransfer = None
    kv_transfer_mode: o.KvTransferMode = None
    expert_routing_policy: o.ExpertRouting = "BALANCED"
    profile_dir: o.ProfileDir = None
    cost_source: o.CostSource = "auto"
    cost_table: o.CostTable = None
    require: o.Require = None
    collective_costs: o.Collectives = "auto"
    network_backend: o.Network = "analytical"
    exact: o.Exact = False
    output: o.Output = None
    run_dir: o.RunDir = None
    timeline: o.Timeline = None
    as_json: o.Json = False
    log_interval: o.LogInterval = 1.0
    log_level: o.LogLevel = "WARNING"
    prioritize_prefill: o.PrioritizePrefill = False
    enable_prefix_sharing: o.PrefixSharing = False
    prefix_storage: o.PrefixStorage = None
    kv_tier_write: o.KvTierWrite = None
    kv_tier_eviction: o.KvTierEviction = None
    kv_tier_recall: o.KvTierRecall = None
    check_every_step: o.CheckEveryStep = False
    kv_chunk_size: o.KvChunkSize = None
    enable_local_offloading: o.LocalOffloading = False
    enable_attn_offloading: o.AttnOffloading = False
    enable_sub_batch_interleaving: o.SubBatch = False
    enable_attn_prediction: o.AttnPrediction = False
    gen: o.Gen = False
    skip_prefill: o.SkipPrefill = False
    enable_block_copy: o.BlockCopy = None
    disable_term: o.DisableTerm = None
    calibration: o.Calibration = None
    arrivals: o.Arrivals = None


class PanelledCommand(TyperCommand):
    """A command whose help lists its options under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in o.PANELS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or "Other", []).append(record)
        for name, records in panels.items():
            with formatter.section(name):
                formatter.write_dl(records)


def taking_command_line(act: Callable[[typer.Context, CommandLine], int]) -> Callable[..., int]:
    """`act` as typer takes it: a function with a parameter for every field of CommandLine."""

    def command(context: typer.Context, **given: Any) -> int:
        return act(context, CommandLine(**given))

    types = get_type_hints(CommandLine, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    for field in fields_of(CommandLine):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        parameters.append(inspect.Parameter(field.name, keyword, default=default, annotation=types[field.name]))
    command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": int}
    return command

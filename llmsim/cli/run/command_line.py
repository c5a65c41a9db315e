"""The command line of `run`: every option under its name, as a class that typer reads and the checks are given."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from dataclasses import fields as fields_of
from typing import Any, get_type_hints

import typer

from llmsim.cli.options import PANELS, costs, engine, inputs, outputs, peer
from llmsim.cli.usage import Command


@dataclass(frozen=True)
class CommandLine:
    """What was given, unchecked; the types' annotations are typer's."""

    cluster_config: inputs.Cluster
    dataset: inputs.Dataset
    num_reqs: inputs.NumReqs = 0
    seed: inputs.Seed = 0
    max_concurrency: inputs.MaxConcurrency = 0
    think_time: inputs.ThinkTime = None
    request_timeout: inputs.RequestTimeout = None
    horizon: inputs.Horizon = None
    engine_profile: engine.EngineProfile = None
    max_num_seqs: engine.MaxNumSeqs = None
    max_num_batched_tokens: engine.MaxNumBatchedTokens = None
    max_num_scheduled_tokens: engine.MaxNumScheduledTokens = None
    max_num_active_seqs: engine.MaxNumActiveSeqs = None
    max_num_queued_reqs: engine.MaxQueuedReqs = None
    max_num_queued_tokens: engine.MaxQueuedTokens = None
    long_prefill_token_threshold: engine.LongPrefill = None
    long_prefill_token_threshold_adaptive: engine.AdaptiveThreshold = None
    prefill_schedule_interval: engine.PrefillInterval = None
    speculative_config: engine.Speculative = None
    cudagraph_mode: engine.CudagraphMode = None
    cudagraph_capture_sizes: engine.CudagraphSizes = None
    enforce_eager: engine.EnforceEager = None
    launch_ns: engine.Launch = None
    enable_chunked_prefill: engine.Chunked = None
    enable_prefix_caching: engine.PrefixCaching = None
    reserve_full_isl: engine.ReserveFullIsl = None
    async_scheduling: engine.Async = None
    block_size: engine.BlockSize = None
    gpu_memory_utilization: engine.Utilization = None
    num_gpu_blocks_override: engine.NumBlocks = None
    max_model_len: engine.MaxModelLen = None
    dtype: engine.Dtype = None
    fp: peer.Fp = None
    kv_cache_dtype: engine.KvDtype = None
    watermark: engine.Watermark = None
    scheduler: engine.Scheduler = None
    scheduling_policy: engine.Policy = None
    queue_order: engine.QueueOrder = None
    preemption_victim: engine.PreemptionVictim = None
    cache_eviction: engine.CacheEviction = None
    admission: engine.Admission = None
    ttft_target_ns: engine.TtftTarget = None
    allow_plugins: inputs.AllowPlugins = True
    request_routing_policy: inputs.Routing = "LOAD"
    decode_routing_policy: inputs.DecodeRouting = "LOAD"
    kv_transfer: costs.KvTransfer = None
    kv_transfer_mode: costs.KvTransferMode = None
    expert_routing_policy: costs.ExpertRouting = "BALANCED"
    profile_dir: costs.ProfileDir = None
    cost_source: costs.CostSource = "auto"
    cost_table: costs.CostTable = None
    require: costs.Require = None
    collective_costs: costs.Collectives = "auto"
    network_backend: costs.Network = "analytical"
    exact: costs.Exact = False
    output: outputs.Output = None
    run_dir: outputs.RunDir = None
    timeline: outputs.Timeline = None
    as_json: outputs.Json = False
    input_files: outputs.InputFiles = None
    goodput: outputs.Goodput = None
    log_interval: outputs.LogInterval = 1.0
    log_level: outputs.LogLevel = "WARNING"
    prioritize_prefill: peer.PrioritizePrefill = False
    enable_prefix_sharing: engine.PrefixSharing = False
    prefix_storage: engine.PrefixStorage = None
    kv_tier_write: engine.KvTierWrite = None
    kv_tier_eviction: engine.KvTierEviction = None
    kv_tier_recall: engine.KvTierRecall = None
    check_every_step: outputs.CheckEveryStep = False
    kv_chunk_size: engine.KvChunkSize = None
    enable_local_offloading: peer.LocalOffloading = False
    enable_attn_offloading: peer.AttnOffloading = False
    enable_sub_batch_interleaving: peer.SubBatch = False
    enable_attn_prediction: peer.AttnPrediction = False
    gen: peer.Gen = False
    skip_prefill: peer.SkipPrefill = False
    enable_block_copy: peer.BlockCopy = None
    run_id: peer.RunId = None
    inputs_root: peer.InputsRoot = None
    cleanup_inputs: peer.CleanupInputs = None
    disable_term: costs.DisableTerm = None
    calibration: costs.Calibration = None
    arrivals: inputs.Arrivals = None


class PanelledCommand(Command):
    """A command whose help lists its options under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in PANELS}
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

"""`llmsim run`: one cluster, one trace, one answer."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from llmsim.cli import options as o
from llmsim.cli import refused
from llmsim.config.errors import InputError

if TYPE_CHECKING:
    from llmsim.costs.expert_routing import ExpertRouting
    from llmsim.lowering import Calibration
    from llmsim.lowering.kv_tiers import KvTierOptions
    from llmsim.routing import RouterSpec
    from llmsim.scheduling.policies import PolicySpecs

HELP = "Simulate a cluster (JSON) serving a trace (JSONL) and report what every request and the cluster would see."

LOG_LEVELS = ("WARNING", "INFO", "DEBUG")
COST_SOURCES = ("auto", "bundle", "external", "silicon", "roofline")
REQUIRED = ("measured", "interpolated", "extrapolated", "scaled")
COLLECTIVES = ("auto", "measured", "links")
DEFAULT_PROFILES = Path("profiler/perf")
"""Searched after the --profile-dir folders, relative to the working directory, as LLMServingSim does."""
MAX_LOG_INTERVAL_S = 1e6


@dataclass(frozen=True)
class RunOptions:
    """A checked `run` command line."""

    cluster: Path
    dataset: str
    num_reqs: int
    seed: int
    engine: dict[str, Any]
    router: "RouterSpec"
    expert_routing: "ExpertRouting"
    profile_dirs: tuple[Path, ...]
    profile_dirs_given: bool
    cost_source: str
    collectives: str
    network: str
    exact: bool
    output: Path | None
    run_dir: Path | None
    as_json: bool
    log_interval_ps: int
    log_level: str
    decode_router: "RouterSpec"
    kv_transfer: str | None = None
    kv_transfer_mode: str | None = None
    arrivals: Path | None = None
    """A recorded log whose true arrivals replace the trace's."""
    timeline: Path | None = None
    policies: "PolicySpecs | None" = None
    tiers: "KvTierOptions | None" = None
    cost_tables: tuple[Path, ...] = ()
    cost_plugin: str = ""
    """A cost source in Python, or a blackbox; "": one of the names."""
    predict_attention: bool = False
    require: str = ""
    """The least provenance that a time may have; "": any."""
    max_concurrency: int = 0
    think_time: str | None = None
    timeout_s: float | None = None
    disabled_terms: tuple[str, ...] = ()
    calibration: "Calibration | None" = None
    switches: frozenset[str] = frozenset()
    """Offloading keys of an instance that are on unless it says otherwise."""


def command(
    context: typer.Context,
    cluster_config: o.Cluster,
    dataset: o.Dataset,
    num_reqs: o.NumReqs = 0,
    seed: o.Seed = 0,
    max_concurrency: o.MaxConcurrency = 0,
    think_time: o.ThinkTime = None,
    request_timeout: o.RequestTimeout = None,
    engine_profile: o.EngineProfile = None,
    max_num_seqs: o.MaxNumSeqs = None,
    max_num_batched_tokens: o.MaxNumBatchedTokens = None,
    long_prefill_token_threshold: o.LongPrefill = None,
    enable_chunked_prefill: o.Chunked = None,
    enable_prefix_caching: o.PrefixCaching = None,
    reserve_full_isl: o.ReserveFullIsl = None,
    async_scheduling: o.Async = None,
    block_size: o.BlockSize = None,
    gpu_memory_utilization: o.Utilization = None,
    num_gpu_blocks_override: o.NumBlocks = None,
    max_model_len: o.MaxModelLen = None,
    dtype: o.Dtype = None,
    fp: o.Fp = None,
    kv_cache_dtype: o.KvDtype = None,
    watermark: o.Watermark = None,
    scheduler: o.Scheduler = None,
    scheduling_policy: o.Policy = None,
    queue_order: o.QueueOrder = None,
    preemption_victim: o.PreemptionVictim = None,
    cache_eviction: o.CacheEviction = None,
    admission: o.Admission = None,
    ttft_target_ns: o.TtftTarget = None,
    request_routing_policy: o.Routing = "LOAD",
    decode_routing_policy: o.DecodeRouting = "LOAD",
    kv_transfer: o.KvTransfer = None,
    kv_transfer_mode: o.KvTransferMode = None,
    expert_routing_policy: o.ExpertRouting = "BALANCED",
    profile_dir: o.ProfileDir = None,
    cost_source: o.CostSource = "auto",
    cost_table: o.CostTable = None,
    require: o.Require = None,
    collective_costs: o.Collectives = "auto",
    network_backend: o.Network = "analytical",
    exact: o.Exact = False,
    output: o.Output = None,
    run_dir: o.RunDir = None,
    timeline: o.Timeline = None,
    as_json: o.Json = False,
    log_interval: o.LogInterval = 1.0,
    log_level: o.LogLevel = "WARNING",
    prioritize_prefill: o.PrioritizePrefill = False,
    enable_prefix_sharing: o.PrefixSharing = False,
    prefix_storage: o.PrefixStorage = None,
    kv_tier_write: o.KvTierWrite = None,
    kv_tier_eviction: o.KvTierEviction = None,
    kv_chunk_size: o.KvChunkSize = None,
    enable_local_offloading: o.LocalOffloading = False,
    enable_attn_offloading: o.AttnOffloading = False,
    enable_sub_batch_interleaving: o.SubBatch = False,
    enable_attn_prediction: o.AttnPrediction = False,
    gen: o.Gen = False,
    skip_prefill: o.SkipPrefill = False,
    enable_block_copy: o.BlockCopy = None,
    disable_term: o.DisableTerm = None,
    calibration: o.Calibration = None,
    arrivals: o.Arrivals = None,
) -> int:
    """What is done with the checked options is up to the caller (`context.obj`); by itself, they are run."""
    del enable_block_copy  # accepted for old command lines; equal blocks are always priced once
    if fp is not None and dtype is not None:
        raise InputError(f"--fp {fp} and --dtype {dtype} say the same thing twice; give one of them")
    engine = {
        "engine_profile": engine_profile,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "long_prefill_token_threshold": long_prefill_token_threshold,
        "enable_chunked_prefill": enable_chunked_prefill,
        "enable_prefix_caching": enable_prefix_caching,
        "reserve_full_isl": reserve_full_isl,
        "async_scheduling": async_scheduling,
        "block_size": block_size,
        "gpu_memory_utilization": gpu_memory_utilization,
        "num_gpu_blocks_override": num_gpu_blocks_override,
        "max_model_len": max_model_len,
        "dtype": dtype if fp is None else refused.fp_dtype(fp),
        "kv_cache_dtype": kv_cache_dtype,
        "watermark": watermark,
        "scheduler": scheduler,
        "scheduling_policy": scheduling_policy,
        "ttft_target_ns": ttft_target_ns,
        "prioritize_prefill": prioritize_prefill or None,
        "skip_prefill": gen or skip_prefill or None,
    }
    policies = _policies(engine, queue_order, preemption_victim, cache_eviction, admission)
    act = context.obj or run
    code: int = act(
        RunOptions(
            cluster=cluster_config,
            dataset=dataset,
            num_reqs=_at_least("--num-reqs", num_reqs, 0),
            seed=_at_least("--seed", seed, 0),
            engine=engine,
            router=_router(request_routing_policy),
            decode_router=_router(decode_routing_policy),
            kv_transfer=kv_transfer,
            kv_transfer_mode=kv_transfer_mode,
            expert_routing=_expert_routing(expert_routing_policy, seed),
            profile_dirs=_profile_dirs(profile_dir or []),
            profile_dirs_given=bool(profile_dir),
            cost_source="auto" if ":" in cost_source else _named_source(cost_source),
            cost_plugin=cost_source if ":" in cost_source or cost_source not in COST_SOURCES else "",
            cost_tables=tuple(cost_table or ()),
            predict_attention=enable_attn_prediction,
            require="" if require is None else _one_of("--require", require, REQUIRED),
            collectives=_one_of("--collective-costs", collective_costs, COLLECTIVES),
            network=refused.network(network_backend),
            exact=exact,
            output=output,
            run_dir=run_dir,
            timeline=timeline,
            as_json=as_json,
            log_interval_ps=_interval_ps(log_interval),
            log_level=_one_of("--log-level", log_level.upper(), LOG_LEVELS),
            arrivals=arrivals,
            policies=policies,
            tiers=_tiers(prefix_storage, enable_prefix_sharing, kv_tier_write, kv_tier_eviction, kv_chunk_size),
            max_concurrency=_at_least("--max-concurrency", max_concurrency, 0),
            think_time=think_time,
            timeout_s=request_timeout,
            switches=frozenset(
                key
                for key, on in (
                    ("enable_local_offloading", enable_local_offloading),
                    ("enable_attn_offloading", enable_attn_offloading),
                    ("enable_sub_batch_interleaving", enable_sub_batch_interleaving),
                )
                if on
            ),
            disabled_terms=tuple(dict.fromkeys(disable_term or ())),
            calibration=_calibration(calibration),
        )
    )
    return code


def run(options: RunOptions) -> int:
    """Runs it; returns the exit code. Everything that can be wrong with the input is found before the run."""
    from llmsim.cli.outputs import check_outputs, write_outputs
    from llmsim.cli.prepare import prepare
    from llmsim.cli.progress import Progress
    from llmsim.cli.signals import terminable, undisturbed
    from llmsim.simulate import simulate

    check_outputs(options)
    prepared = prepare(options)
    lowered, workload = prepared.lowered, prepared.workload
    with terminable(), Progress(len(workload), lowered, options) as progress:
        results = simulate(lowered, workload, prepared.simulation, progress.update)
    if options.require:
        from llmsim.cli.required import require

        require(options.require, lowered, results)
    with undisturbed():
        return write_outputs(options, prepared.deployment, lowered, results)


def _named_source(name: str) -> str:
    """One of ours, else "auto": the name of a plug-in, which is looked up when costs are compiled."""
    from importlib.metadata import entry_points

    if name in COST_SOURCES or name not in entry_points(group="llmsim.cost_sources").names:
        return _one_of("--cost-source", name, COST_SOURCES)
    return "auto"


def _calibration(path: Path | None) -> "Calibration | None":
    if path is None:
        return None
    from llmsim.lowering.calibration import load_calibration

    return load_calibration(path)


def _profile_dirs(given: list[Path]) -> tuple[Path, ...]:
    for folder in given:
        if not folder.is_dir():
            raise InputError(
                f'--profile-dir "{folder}" is not a folder; name one that holds <hardware>/<model>/.../tp<N>/'
            )
    return (*given, *([DEFAULT_PROFILES] if DEFAULT_PROFILES.is_dir() else []))


def _expert_routing(text: str, seed: int) -> "ExpertRouting":
    from llmsim.costs.expert_routing import parse_expert_routing

    return parse_expert_routing(text, max(seed, 0))


def _router(text: str) -> "RouterSpec":
    from llmsim.routing import parse_router

    return parse_router(text)


def _tiers(
    storage: str | None, shared: bool, write: str | None, eviction: str | None, chunk_tokens: int | None
) -> "KvTierOptions | None":
    if (storage, shared, write, eviction, chunk_tokens) == (None, False, None, None, None):
        return None
    from llmsim.lowering.kv_tiers import parse_tiers

    return parse_tiers(storage, shared=shared, write=write, eviction=eviction, chunk_tokens=chunk_tokens)


def _policies(
    engine: dict[str, Any], queue_order: str | None, victim: str | None, eviction: str | None, admission: str | None
) -> "PolicySpecs | None":
    """The policies that are classes or limits; a scheduler that is a class is taken out of the engine's options."""
    scheduler = engine["scheduler"] if ":" in (engine["scheduler"] or "") else None
    if (queue_order, victim, eviction, admission, scheduler) == (None,) * 5:
        return None
    from llmsim.scheduling.policies import parse_policies

    if scheduler is not None:
        engine["scheduler"] = None
        others = {"--queue-order": queue_order, "--preemption-victim": victim, "--cache-eviction": eviction}
        for option, value in others.items():
            if value is not None:
                raise InputError(f"{option} {value}: the scheduler {scheduler} decides that itself; remove one of them")
        if engine["async_scheduling"]:
            raise InputError(f"--async-scheduling: the scheduler {scheduler} has one batch in flight; remove it")
        engine["async_scheduling"] = False
    if queue_order is not None and engine["scheduling_policy"] is not None:
        raise InputError(f"--queue-order {queue_order} and --scheduling-policy both order the queue; give one of them")
    return parse_policies(
        queue_order=queue_order, victim=victim, eviction=eviction, admission=admission, scheduler=scheduler
    )


def _one_of(option: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InputError(f'{option} is "{value}"; it may be {", ".join(known)}')
    return value


def _at_least(option: str, value: int, least: int) -> int:
    if value < least or value >= 1 << 63:
        raise InputError(f"{option} is {value}; it must be at least {least} and below 2^63")
    return value


def _interval_ps(seconds: float) -> int:
    if not 1e-3 <= seconds <= MAX_LOG_INTERVAL_S:
        raise InputError(f"--log-interval is {seconds:g}; it must be between 0.001 and {MAX_LOG_INTERVAL_S:g} seconds")
    return round(seconds * 1e12)


def is_terminal() -> bool:
    """Whether stdout is a person's terminal."""
    return sys.stdout.isatty()

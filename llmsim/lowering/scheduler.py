"""The native scheduler's configuration from the engine's options."""

import math
from collections.abc import Sequence

from msgspec.structs import asdict

from llmsim import _native
from llmsim.config import EngineArgs, load_profile
from llmsim.config.engine.profile import EngineProfile
from llmsim.config.engine.scheduler_kinds import INSTALLED, SGLANG, VLLM
from llmsim.config.engine.speculative import Speculation
from llmsim.config.engine.version_rules import kv_tables, set_rules
from llmsim.config.errors import InputError
from llmsim.core import Note
from llmsim.lowering.operators.encoder import has_budgets, step_tokens
from llmsim.model.memory.hybrid_groups import SEES_ALL, KvTables

FREE_ORDER = {"vllm-0.19": _native.FreeOrder.APPEND}
"""Engines that append every freed block; later ones put blocks that nothing can hit in front
(recorded from 0.24).
"""
FREES_AT_ONCE = ("vllm-0.19",)
"""Engines that free what a request loses even while a batch in flight writes it and a connector may
fill it.
"""
NOT_VALIDATED = Note(
    "the scheduler sglang runs in outline with KV tiers, decodes alone or other orders of the "
    "queue; else its schedule is SGLang's"
)
ORDERS = {
    "fcfs": _native.QueueOrder.FCFS,
    "priority": _native.QueueOrder.PRIORITY,
    "sjf": _native.QueueOrder.SHORTEST,
    "slack": _native.QueueOrder.SLACK,
}
"""`scheduling_policy` -> the order of the waiting queue."""


def scheduler_config(
    engine: EngineArgs,
    num_blocks: int,
    max_model_len: int,
    program: "_native.Program",
    pd_type: str | None,
    context_ranks: int = 1,
    *,
    prefill_all_but_last_token: bool = False,
    stages: int = 1,
    in_flight: int = 1,
    tables: KvTables | None = None,
    tiers: bool = False,
    several_kinds: bool = False,
) -> "_native.SchedulerConfig":
    """The native scheduler's configuration of a group.

    `program` prices a prompt where the order of the queue needs its time. Ranks that share
    sequences by tokens hold `block_size` tokens of a block on each of `context_ranks` (vLLM).
    `prefill_all_but_last_token` says that a decode group computes the last token of a prompt
    itself. `in_flight` counts the batches that may be in flight. `tables` describes layers of
    several kinds that share the blocks. `tiers` says that KV goes to memories below the device's.
    `several_kinds` says that not all layers keep every token.
    """
    scheduler = _native.SchedulerConfig()
    scheduler.scheduler = VLLM if engine.scheduler == INSTALLED else engine.scheduler
    scheduler.parameters = {
        name.removeprefix(f"{engine.scheduler}_"): value
        for name, value in engine.scheduler_parameters
    }
    scheduler.chunked_prefill = engine.enable_chunked_prefill
    scheduler.reserve_full_isl = engine.reserve_full_isl
    scheduler.async_scheduling = engine.async_scheduling
    ends_there = pd_type == "prefill" and engine.scheduler != SGLANG
    scheduler.output_length_known = engine.ignore_eos or ends_there
    scheduler.prefill_first = engine.prioritize_prefill
    scheduler.limits = _limits(engine)
    _follow_release(scheduler, engine)
    scheduler.prefill_all_but_last_token = prefill_all_but_last_token
    _pace(scheduler, engine, stages)
    scheduler.kv_producer, scheduler.kv_consumer = pd_type == "prefill", pd_type == "decode"
    scheduler.stages, scheduler.tiered = stages, tiers
    scheduler.micro_batches = in_flight if stages > 1 else 1
    scheduler.max_num_seqs = engine.max_num_seqs
    scheduler.max_num_scheduled_tokens = engine.max_num_scheduled_tokens
    scheduler.watermark_blocks = int(engine.watermark * num_blocks)
    scheduler.decode_only = engine.skip_prefill
    scheduler.queue = _queue(engine, max_model_len, program)
    scheduler.load_failures = _load_failures(engine, loses_all=several_kinds)
    scheduler.kv = _kv_cache(engine, num_blocks, max_model_len, context_ranks)
    _look_ahead(scheduler.kv, engine, plays_role=pd_type is not None)
    _divide_blocks(scheduler.kv, engine, tables, in_flight)
    return scheduler


def _divide_blocks(
    kv: "_native.KvCacheConfig", engine: EngineArgs, tables: KvTables | None, in_flight: int
) -> None:
    """Layers of several kinds share the blocks by tables of their own; else all keep the same."""
    if tables is not None and tables.windows != (SEES_ALL,):
        kv.tables = _tables(engine, tables, in_flight)
        _check_match_unit(engine, tables.block_sizes)
    else:
        _check_lone_match_unit(engine, kv.block_size)


def _follow_release(scheduler: "_native.SchedulerConfig", engine: EngineArgs) -> None:
    """What the engine's release decides: its rules, drafts and encoder inputs."""
    profile = load_profile(engine.engine_profile)
    set_rules(scheduler.rules, profile.rules)
    if engine.speculation is not None:
        scheduler.speculation = speculation_config(engine.speculation)
    if has_budgets(engine):
        scheduler.encoder = _encoder(engine, profile)


def _look_ahead(kv: "_native.KvCacheConfig", engine: EngineArgs, *, plays_role: bool) -> None:
    """What drafters that read tokens behind a position change in the cache."""
    ahead = 0 if engine.speculation is None else engine.speculation.prompt_lookahead
    kv.unsettled_tokens = max(0, ahead - 1)
    by_keys = load_profile(engine.engine_profile).schedules_by("keys_look_ahead")
    if by_keys and not plays_role and kv.drops_last_hit:
        kv.drops_last_hit, kv.key_lookahead = False, ahead


def _pace(scheduler: "_native.SchedulerConfig", engine: EngineArgs, stages: int) -> None:
    """What several batches in flight change."""
    several = engine.async_scheduling or stages > 1
    scheduler.defer_block_free = several and engine.engine_profile not in FREES_AT_ONCE
    runs_ahead = engine.async_scheduling and engine.use_v2_model_runner
    scheduler.decode_interval = stages if runs_ahead else 1


def _tables(engine: EngineArgs, tables: KvTables, in_flight: int) -> "_native.KvTables":
    """The tables of blocks of layers of several kinds."""
    return kv_tables(
        tables.windows,
        tables.block_sizes,
        engine.max_num_batched_tokens,
        in_flight,
        load_profile(engine.engine_profile).rules,
        _retention(engine, tables),
        cached=engine.enable_prefix_caching,
        match_unit=engine.prefix_match_unit or 0,
    )


def _check_match_unit(engine: EngineArgs, sizes: Sequence[int]) -> None:
    """vLLM: `resolve_kv_cache_block_sizes`."""
    unit = engine.prefix_match_unit
    if unit and engine.enable_prefix_caching and any(size % unit for size in sizes):
        raise InputError(
            f"prefix_match_unit is {unit} ({engine.origin['prefix_match_unit']}), of which blocks "
            f"of {', '.join(map(str, dict.fromkeys(sizes)))} tokens are no multiples; choose a "
            "common divisor"
        )


def _check_lone_match_unit(engine: EngineArgs, block_size: int) -> None:
    unit = engine.prefix_match_unit
    if engine.enable_prefix_caching and unit not in (None, block_size):
        raise InputError(
            f"prefix_match_unit is {unit} ({engine.origin['prefix_match_unit']}), but hits end "
            f"with blocks of {block_size} tokens where all layers keep the same; leave it out"
        )


def _retention(engine: EngineArgs, tables: KvTables) -> int:
    """vLLM refuses what ends no prefix: an interval of other than whole blocks of all tables."""
    interval = engine.prefix_cache_retention_interval
    block = math.lcm(*tables.block_sizes)
    if interval > 0 and interval % block != 0:
        raise InputError(
            f"prefix_cache_retention_interval is {interval} "
            f"({engine.origin['prefix_cache_retention_interval']}), which is not a multiple of the "
            f"block size {block}; choose a multiple of {block}, or 0"
        )
    return interval


def is_outlined(engine: EngineArgs, scheduler: "_native.SchedulerConfig") -> bool:
    """Whether the group runs SGLang's scheduler in outline, and not decision by decision."""
    ordered = engine.scheduling_policy != "fcfs"
    other = scheduler.decode_only or scheduler.tiered or ordered
    return engine.scheduler == SGLANG and other


def speculation_config(speculation: Speculation) -> "_native.SpeculationConfig":
    """The core's form; the seed of the acceptance is the run's, and set there."""
    native = _native.SpeculationConfig()
    native.tokens, native.lookahead = speculation.tokens, speculation.lookahead
    native.prompt_lookahead = speculation.prompt_lookahead
    native.tokens_by_sequences = list(speculation.tokens_by_sequences)
    native.proposal_chance = chance(speculation.proposal_rate)
    native.acceptance = acceptance(speculation.acceptance)
    return native


def acceptance(rates: Sequence[float]) -> "_native.Acceptance":
    """Of each position, given that the drafts before it hold."""
    native = _native.Acceptance()
    native.chance = [chance(rate) for rate in rates]
    return native


def chance(rate: float) -> int:
    """A probability in 2^-53, so that 0 is never and 1 is always."""
    return int(rate * (1 << 53) + 0.5)


def _load_failures(engine: EngineArgs, *, loses_all: bool) -> "_native.LoadFailuresConfig":
    """Which loads of KV fail; the seed is the run's, and set there."""
    native = _native.LoadFailuresConfig()
    native.chance = chance(engine.kv_load_failure_rate)
    native.recomputes = engine.kv_load_failure_policy == "recompute"
    native.loses_all = loses_all
    return native


def _limits(engine: EngineArgs) -> "_native.StepLimits":
    native = _native.StepLimits()
    native.long_prefill_token_threshold = engine.long_prefill_token_threshold
    native.max_loras = engine.max_loras or 0
    for name, value in asdict(engine.limits).items():
        setattr(native, name, value)
    return native


def _encoder(engine: EngineArgs, profile: EngineProfile) -> "_native.EncoderConfig":
    """Budgets of the encoder, before anybody knows its largest input."""
    native, tokens = _native.EncoderConfig(), engine.max_num_batched_tokens
    set_rules(native.rules, profile.rules)
    native.step_tokens = step_tokens(engine)
    native.cache_tokens = engine.encoder_cache_size or tokens
    native.whole_inputs = engine.disable_chunked_mm_input
    return native


def _queue(
    engine: EngineArgs, max_model_len: int, program: "_native.Program"
) -> "_native.QueueConfig":
    """A ranking in Python keeps the queue in order of arrival. Slack needs the time that a token of
    a prompt takes alone: that of the longest prompt that a step holds.
    """
    queue = _native.QueueConfig()
    queue.order = ORDERS.get(engine.scheduling_policy, _native.QueueOrder.FCFS)
    if engine.scheduling_policy == "slack":
        tokens = min(engine.max_num_batched_tokens, max_model_len)
        queue.ttft_target_ps = engine.ttft_target_ps
        queue.prefill_ps_per_token = program.step_ps([(tokens, 0)]) // tokens
    return queue


def _kv_cache(
    engine: EngineArgs, num_blocks: int, max_model_len: int, context_ranks: int
) -> "_native.KvCacheConfig":
    kv = _native.KvCacheConfig()
    kv.num_blocks = num_blocks
    kv.block_size = engine.block_size * context_ranks
    kv.max_model_len = max_model_len
    kv.prefix_caching = engine.enable_prefix_caching
    kv.drops_last_hit = engine.speculation is not None and engine.speculation.reads_hidden_states
    kv.free_order = FREE_ORDER.get(engine.engine_profile, _native.FreeOrder.UNKEYED_FIRST)
    return kv

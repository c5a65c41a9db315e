"""SGLang's pools of layers with a window and of states: which models have them, how large they are,
and what states change in its scheduler.
"""

from types import MappingProxyType

from msgspec.structs import replace

from llmsim import _native
from llmsim.config import EngineArgs, Group
from llmsim.config.engine.profile import load_profile
from llmsim.config.engine.schedulers import SGLANG
from llmsim.config.engine.sglang.state_pool import (
    LAZY,
    TRACK_INTERVAL,
    answer_interval,
    prompt_interval,
    spare_states,
    states_of_decodes,
    states_of_request,
)
from llmsim.config.engine.sglang.window_pool import (
    SLIDE_INTERVAL,
    tokens_of_prompts,
    tokens_of_requests,
    tokens_of_transfers,
)
from llmsim.config.errors import InfeasibleError
from llmsim.lowering.overlap import overlaps, without_overlap
from llmsim.lowering.scheduler import is_outlined
from llmsim.lowering.types import LoweredGroup
from llmsim.model import ModelConfig
from llmsim.model.memory.ledger import MemoryLedger
from llmsim.model.memory.pool_shares import PoolShares

_WINDOW_POOLS = {
    "gpt_oss": 1,
    "gemma4_text": 1,
    "llama4_text": 0,
    "mimo_v2_flash": 0,
    "step3p5": 0,
}
"""Models whose layers with a window have a pool of their own (`is_hybrid_swa_model`), and how many
tokens fewer than config.json says their layers see before the one that attends
(`get_attention_sliding_window_size`). Other models keep whole sequences.
"""
_WHOLE_WITH_HICACHE = ("step3p5",)
"""Of these, models whose layers with a window keep whole sequences beside HiCache
(`_step3p_overrides`).
"""
_WINDOW_RATIO = 0.8
"""SGLang's default of `swa_full_tokens_ratio`."""
_STATE_RATIO = 0.9
"""SGLang's default of `mamba_full_memory_ratio`."""
_SEQUENCES_OF_A_CONTEXT, _FEWEST_SEQUENCES, _MOST_SEQUENCES = 512, 2048, 4096
"""Running sequences for as many tokens of KV as the longest context has, and their bounds."""


def pool_shares(group: Group, model: ModelConfig) -> PoolShares | None:
    """How SGLang divides the memory of KV and states; None for other engines, and where all layers
    keep the same.
    """
    engine = group.engine
    windows = model.layers_of("sliding") + model.layers_of("chunked")
    apart = windows > 0 or model.linear is not None
    if engine.scheduler != SGLANG or model.compressed is not None or not apart:
        return None
    window_ratio, state_ratio = engine.swa_full_tokens_ratio, engine.mamba_full_memory_ratio
    if window_of(engine, model) == 0:
        window_ratio = 1.0
    return PoolShares(
        window_ratio=_WINDOW_RATIO if window_ratio is None else window_ratio,
        window_tokens=_most_window_tokens(group, model),
        state_ratio=_STATE_RATIO if state_ratio is None else state_ratio,
        states=_given_states(engine),
        states_per_sequence=_states_per_sequence(group, model),
        verified=0 if engine.speculation is None else engine.speculation.verified,
    )


def window_of(engine: EngineArgs, model: ModelConfig) -> int:
    """Tokens that layers with a pool of their own see before the one that attends; 0: the model has
    no such pool.
    """
    if model.model_type not in _WINDOW_POOLS or model.layers_of("full") == 0:
        return 0
    if engine.enable_hierarchical_cache and model.model_type in _WHOLE_WITH_HICACHE:
        return 0
    return model.window - _WINDOW_POOLS[model.model_type]


def window_pool(
    group: Group, model: ModelConfig, ledger: MemoryLedger, scheduler: "_native.SchedulerConfig"
) -> "_native.WindowPoolConfig":
    """The pool as the scheduler counts it, where that is modelled: not with its outline, nor with
    drafts without a prefix cache.

    Raises InfeasibleError where it is too small for one request.
    """
    pool = _native.WindowPoolConfig()
    engine = group.engine
    if engine.scheduler != SGLANG or window_of(engine, model) == 0 or ledger.window_blocks == 0:
        return pool
    drafts_alone = engine.speculation is not None and not engine.enable_prefix_caching
    if drafts_alone or is_outlined(engine, scheduler):
        return pool
    pool.window, pool.pages = window_of(engine, model), ledger.window_blocks
    needed = _least_tokens(pool.window, engine.block_size, computes=not scheduler.kv_consumer)
    held = pool.pages * engine.block_size
    if held < needed:
        raise InfeasibleError(
            f"{model.name}: SGLang's pool of layers that see {model.window} tokens has {held} "
            f"tokens, and one request takes {needed}; raise "
            "swa_full_tokens_ratio, or give the instance more memory"
        )
    return pool


def state_pool(
    group: Group, model: ModelConfig, ledger: MemoryLedger, scheduler: "_native.SchedulerConfig"
) -> "_native.StatePoolConfig":
    """The pool of states as the scheduler counts it beside the prefix cache, where that is
    modelled: not with the scheduler's outline.

    Raises InfeasibleError where SGLang refuses the size of blocks.
    """
    pool = _native.StatePoolConfig()
    engine = group.engine
    if ledger.states is None or model.linear is None or not engine.enable_prefix_caching:
        return pool
    if is_outlined(engine, scheduler):
        return pool
    chunk, page = model.linear.chunk, engine.block_size
    interval = engine.mamba_track_interval or TRACK_INTERVAL
    pool.slots, pool.spare = ledger.states, _spare_states(group, model)
    if group.pd_type == "decode":
        pool.slots = states_of_decodes(engine.max_num_seqs, pool.spare, ledger.states)
    pool.lazy = engine.mamba_radix_cache_strategy == LAZY
    pool.verified = 0 if engine.speculation is None else engine.speculation.verified
    _check_blocks(model, page, interval if pool.spare > 0 else None)
    pool.prompt_interval = prompt_interval(chunk, page)
    pool.answer_interval = answer_interval(chunk, page, interval)
    return pool


def _check_blocks(model: ModelConfig, page: int, interval: int | None) -> None:
    """InfeasibleError where SGLang refuses blocks of `page` tokens beside states, which answers
    leave `interval` tokens apart; None: they have no spare slots.
    """
    assert model.linear is not None
    chunk = model.linear.chunk
    said = f"{model.name}: SGLang caches no states with a block_size of {page}"
    if interval is None and page > 1:
        raise InfeasibleError(
            f"{said} where these have no spare slots (mamba_radix_cache_strategy); set block_size 1"
        )
    if interval is not None and max(chunk, page) % min(chunk, page):
        raise InfeasibleError(
            f"{said}, which must divide the {chunk} tokens of the model's kernels, or be a multiple"
        )
    if interval is not None and interval % page:
        raise InfeasibleError(f"{said}, which must divide mamba_track_interval ({interval})")


def _least_tokens(window: int, page: int, *, computes: bool) -> int:
    """What one request takes: its window, what decodes leave before it slides, and pages of
    rounding; who computes prompts also holds a cached window in front of its own.
    """
    if computes:
        return 2 * window + SLIDE_INTERVAL + 6 * page
    return window + SLIDE_INTERVAL + 3 * page


def notes_of_pools(lowered: LoweredGroup) -> tuple[str, ...]:
    """What of SGLang's pools a run does not model, and what states change in the scheduler."""
    notes, name = [], lowered.model.name
    if _leaves_out_windows(lowered):
        notes.append(
            f"{name}: SGLang's pool of layers that see {lowered.model.window} tokens takes its "
            "share of memory, but never keeps a request waiting here: with KV tiers, the "
            "scheduler's outline, or drafts without a prefix cache its rules are not modelled"
        )
    if _leaves_out_states(lowered):
        notes.append(
            f"{name}: prefix hits are counted as if the state of every block were kept; in "
            "the scheduler's outline the rules of SGLang's pool are not modelled"
        )
    if waits_for_states(lowered.engine, lowered.model):
        notes.append(
            f"{name}: each step waits for the one before, as in SGLang where states have no "
            "spare slots beside the prefix cache (mamba_radix_cache_strategy)"
        )
    return tuple(notes)


def _leaves_out_windows(lowered: LoweredGroup) -> bool:
    engine, scheduler = lowered.engine, lowered.scheduler
    if engine.scheduler != SGLANG or scheduler is None:
        return False
    return window_of(engine, lowered.model) > 0 and scheduler.window_pool.window == 0


def _leaves_out_states(lowered: LoweredGroup) -> bool:
    engine, scheduler, model = lowered.engine, lowered.scheduler, lowered.model
    if engine.scheduler != SGLANG or scheduler is None:
        return False
    keeps_states = model.linear is not None and not model.keeps_states_alone
    return keeps_states and engine.enable_prefix_caching and scheduler.state_pool.slots == 0


def with_states(group: Group, model: ModelConfig) -> Group:
    """The group without overlapped steps where SGLang turns them off for a model's states; and
    without spare slots for these where neither such steps nor larger blocks want them.
    """
    engine = group.engine
    if model.linear is not None and engine.mamba_radix_cache_strategy == LAZY:
        _check_lazy(group)
    if waits_for_states(engine, model):
        return without_overlap(group)
    wanted = overlaps(group) or group.pp > 1 or engine.block_size > 1
    chosen = wanted or engine.mamba_radix_cache_strategy is not None
    if chosen or engine.scheduler != SGLANG or model.linear is None:
        return group
    return replace(group, engine=replace(engine, mamba_radix_cache_strategy="no_buffer"))


def _check_lazy(group: Group) -> None:
    """InfeasibleError where SGLang refuses slots that are taken for few steps alone."""
    strategy = f"mamba_radix_cache_strategy {LAZY}"
    if group.pd_type in ("prefill", "decode") and group.engine.enable_prefix_caching:
        raise InfeasibleError(
            f"{strategy} does not run on instances with the pd_type {group.pd_type}, whose pools "
            "SGLang has not fitted for it; say extra_buffer"
        )
    if not overlaps(group):
        raise InfeasibleError(
            f"{strategy} needs steps that overlap, as SGLang does; say extra_buffer, or leave out "
            "pp_size and sglang_overlap"
        )


def waits_for_states(engine: EngineArgs, model: ModelConfig) -> bool:
    """Whether each step waits for the one before, since states have no spare slots beside the
    prefix cache (`_mamba_radix_cache_resolution`).
    """
    cached = engine.scheduler == SGLANG and engine.enable_prefix_caching
    if not cached or model.linear is None or has_spare_states(engine, model):
        return False
    return not load_profile(engine.engine_profile).states.overlaps(model.model_type)


def has_spare_states(engine: EngineArgs, model: ModelConfig) -> bool:
    """Whether running sequences write states into spare slots (`mamba_radix_cache_strategy`)."""
    if engine.mamba_radix_cache_strategy is not None:
        return engine.mamba_radix_cache_strategy != "no_buffer"
    return load_profile(engine.engine_profile).states.has_spare(model.model_type)


def with_sequences_of_pool(group: Group, ledger: MemoryLedger, max_model_len: int) -> Group:
    """The group with as many running sequences as SGLang derives from its pools
    (`resolve_max_num_reqs`): by default so many that each has a 512th of the longest context, and
    never more than there are states for. InfeasibleError where there are none.
    """
    if not load_profile(group.engine.engine_profile).sglang_release:
        return group
    return _with_states_of_pool(_with_tokens_of_pool(group, ledger, max_model_len), ledger)


def _with_tokens_of_pool(group: Group, ledger: MemoryLedger, max_model_len: int) -> Group:
    engine = group.engine
    pool_tokens = ledger.usable_blocks * engine.block_size
    most, said = engine.max_num_seqs, "cut to half of the tokens that the pool of KV holds"
    if engine.is_default("max_num_seqs") and engine.speculation is None:
        by_pool = pool_tokens * _SEQUENCES_OF_A_CONTEXT // max_model_len
        most = min(max(by_pool, _FEWEST_SEQUENCES), _MOST_SEQUENCES)
        said = f"engine profile {engine.engine_profile}, by the tokens of the pool of KV"
    most = min(most, max(pool_tokens // 2, 1))
    if most == engine.max_num_seqs:
        return group
    origin = MappingProxyType({**engine.origin, "max_num_seqs": said})
    return replace(group, engine=replace(engine, max_num_seqs=most, origin=origin))


def _with_states_of_pool(group: Group, ledger: MemoryLedger) -> Group:
    most, engine = ledger.most_sequences, group.engine
    if most is None or most >= engine.max_num_seqs:
        return group
    if most == 0:
        raise InfeasibleError(
            f"{group.model_name}: SGLang's pool of states holds too few for one running sequence; "
            "raise max_mamba_cache_size or mamba_full_memory_ratio, or give the instance more "
            "memory"
        )
    said = f"cut from {engine.max_num_seqs} to the sequences for which there are states"
    origin = MappingProxyType({**engine.origin, "max_num_seqs": said})
    return replace(group, engine=replace(engine, max_num_seqs=most, origin=origin))


def _most_window_tokens(group: Group, model: ModelConfig) -> int | None:
    """What running requests can hold at once, which sizes the pool without a prefix cache where
    their number is given; None: the ratio does.
    """
    engine = group.engine
    given = not engine.is_default("max_num_seqs")
    if engine.enable_prefix_caching or window_of(engine, model) == 0 or not given:
        return None
    verified, decode_tokens = 1, 0
    if engine.speculation is not None:
        verified = engine.speculation.verified
        decode_tokens = 2 * max(engine.speculation.branches, verified)
    window, page = window_of(engine, model), engine.block_size
    if group.pd_type == "decode":
        beside = tokens_of_transfers(window, page, engine.max_num_seqs)
    else:
        in_flight = 2 if overlaps(group) else 1
        beside = tokens_of_prompts(page, in_flight * engine.max_num_batched_tokens)
    return tokens_of_requests(
        window,
        page,
        engine.max_num_seqs,
        beside_tokens=beside,
        verified=verified,
        decode_tokens=decode_tokens,
    )


def _given_states(engine: EngineArgs) -> int | None:
    if engine.max_mamba_cache_size is not None:
        return engine.max_mamba_cache_size
    without_cache = not engine.enable_prefix_caching and not engine.is_default("max_num_seqs")
    return engine.max_num_seqs if without_cache else None


def _states_per_sequence(group: Group, model: ModelConfig) -> int:
    caches = group.engine.enable_prefix_caching
    return states_of_request(_spare_states(group, model), caches=caches)


def _spare_states(group: Group, model: ModelConfig) -> int:
    has_spare = group.engine.enable_prefix_caching and has_spare_states(group.engine, model)
    strategy = group.engine.mamba_radix_cache_strategy
    return spare_states(strategy, overlaps=overlaps(group)) if has_spare else 0

"""SGLang's pools of layers with a window and of states: which models have them, how large they are,
and what states change in its scheduler.
"""

from types import MappingProxyType

from msgspec.structs import replace

from llmsim import _native
from llmsim.config import EngineArgs, Group
from llmsim.config.engine.profile import load_profile
from llmsim.config.engine.schedulers import SGLANG
from llmsim.config.errors import InfeasibleError
from llmsim.lowering.kv.hybrid_cache import is_one_of
from llmsim.lowering.overlap import is_outlined, overlaps, without_overlap
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
_STATES_PER_SEQUENCE = 3
_SLIDE_INTERVAL = 128
"""Tokens that a window of decodes leaves until SGLang frees them (SGLANG_SWA_EVICTION_INTERVAL)."""


def pool_shares(group: Group, model: ModelConfig) -> PoolShares | None:
    """How SGLang divides the memory of KV and states; None for other engines, and where all layers
    keep the same.
    """
    engine = group.engine
    windows = model.layers_of("sliding") + model.layers_of("chunked")
    apart = windows > 0 or model.linear is not None
    if engine.scheduler != SGLANG or model.compressed is not None or not apart:
        return None
    ratio = _window_ratio(engine) if window_of(model) > 0 else 1.0
    return PoolShares(
        window_ratio=ratio,
        window_tokens=_most_window_tokens(group, model),
        state_ratio=_or(engine.mamba_full_memory_ratio, 0.9),
        states=_given_states(engine),
        states_per_sequence=_states_per_sequence(group, model),
    )


def window_of(model: ModelConfig) -> int:
    """Tokens that layers with a pool of their own see before the one that attends; 0: the model has
    no such pool.
    """
    if model.model_type not in _WINDOW_POOLS or model.layers_of("full") == 0:
        return 0
    return model.window - _WINDOW_POOLS[model.model_type]


def window_pool(
    group: Group, model: ModelConfig, ledger: MemoryLedger, *, tiers: bool
) -> "_native.WindowPoolConfig":
    """The pool as SGLang's scheduler counts it, where that is modelled: not on decode instances,
    with HiCache or the scheduler's outline, nor with drafts without a prefix cache.

    Raises InfeasibleError where it is too small for one request beside a cached window.
    """
    pool = _native.WindowPoolConfig()
    engine = group.engine
    if engine.scheduler != SGLANG or window_of(model) == 0 or ledger.window_blocks == 0:
        return pool
    if not _schedules_windows(group, tiers=tiers):
        return pool
    pool.window, pool.pages = window_of(model), ledger.window_blocks
    needed = 2 * pool.window + _SLIDE_INTERVAL + 6 * engine.block_size
    held = pool.pages * engine.block_size
    if held < needed:
        raise InfeasibleError(
            f"{model.name}: SGLang's pool of layers that see {model.window} tokens has {held} "
            f"tokens, and one request beside a cached window takes {needed}; raise "
            "swa_full_tokens_ratio, or give the instance more memory"
        )
    return pool


def _schedules_windows(group: Group, *, tiers: bool) -> bool:
    engine = group.engine
    drafts_alone = engine.speculation is not None and not engine.enable_prefix_caching
    apart = group.pd_type == "decode" or engine.enable_hierarchical_cache or drafts_alone
    return not apart and not is_outlined(engine, tiers=tiers)


def notes_of_pools(group: Group, model: ModelConfig, *, tiers: bool) -> tuple[str, ...]:
    """What of a pool of windows a run does not model, and what states change in the scheduler."""
    notes = []
    has_pool = group.engine.scheduler == SGLANG and window_of(model) > 0
    if has_pool and not _schedules_windows(group, tiers=tiers):
        notes.append(
            f"{model.name}: SGLang's pool of layers that see {model.window} tokens takes its share "
            "of memory, but never keeps a request waiting here: on decode instances, with HiCache, "
            "KV tiers, or drafts without a prefix cache its rules are not modelled"
        )
    if waits_for_states(group.engine, model):
        notes.append(
            f"{model.name}: each step waits for the one before, as in SGLang where states have no "
            "spare slots beside the prefix cache (mamba_radix_cache_strategy)"
        )
    return tuple(notes)


def with_states(group: Group, model: ModelConfig) -> Group:
    """The group without overlapped steps where SGLang turns them off for a model's states."""
    return without_overlap(group) if waits_for_states(group.engine, model) else group


def waits_for_states(engine: EngineArgs, model: ModelConfig) -> bool:
    """Whether each step waits for the one before, since states have no spare slots beside the
    prefix cache (`_mamba_radix_cache_resolution`).
    """
    cached = engine.scheduler == SGLANG and engine.enable_prefix_caching
    if not cached or model.linear is None or has_spare_states(engine, model):
        return False
    return not is_one_of(model, load_profile(engine.engine_profile).states.overlapping)


def has_spare_states(engine: EngineArgs, model: ModelConfig) -> bool:
    """Whether running sequences write states into spare slots (`mamba_radix_cache_strategy`)."""
    if engine.mamba_radix_cache_strategy is not None:
        return engine.mamba_radix_cache_strategy == "extra_buffer"
    return is_one_of(model, load_profile(engine.engine_profile).states.spare)


def with_fewer_sequences(group: Group, ledger: MemoryLedger) -> Group:
    """The group with as many running sequences as there are states for
    (`resolve_max_num_reqs`); InfeasibleError where there are none.
    """
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


def _window_ratio(engine: EngineArgs) -> float:
    return _or(engine.swa_full_tokens_ratio, 0.8)


def _most_window_tokens(group: Group, model: ModelConfig) -> int | None:
    """What running requests can hold at once, which sizes the pool without a prefix cache where
    their number is given; None: the ratio does.
    """
    engine = group.engine
    given = not engine.is_default("max_num_seqs")
    if engine.enable_prefix_caching or window_of(model) == 0 or not given:
        return None
    page = engine.block_size
    drafts, decode = 1, page
    if engine.speculation is not None:
        drafts = engine.speculation.verified
        decode = 2 * max(engine.speculation.branches, drafts)
    kept = window_of(model) + _SLIDE_INTERVAL * drafts + page + decode
    in_flight = 2 if overlaps(group) else 1
    tokens = kept * engine.max_num_seqs + in_flight * engine.max_num_batched_tokens + page
    return -(-tokens // page) * page


def _given_states(engine: EngineArgs) -> int | None:
    if engine.max_mamba_cache_size is not None:
        return engine.max_mamba_cache_size
    without_cache = not engine.enable_prefix_caching and not engine.is_default("max_num_seqs")
    return engine.max_num_seqs if without_cache else None


def _states_per_sequence(group: Group, model: ModelConfig) -> int:
    engine = group.engine
    if not engine.enable_prefix_caching:
        return 1
    spare = (2 if overlaps(group) else 1) if has_spare_states(engine, model) else 0
    return _STATES_PER_SEQUENCE + spare


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value

"""Models whose layers keep different parts of a sequence: who runs vLLM's hybrid KV cache, and with
which options.
"""

from types import MappingProxyType

from msgspec.structs import replace

from llmsim.config import EngineArgs, Group, load_profile
from llmsim.config.deployment import Offloading
from llmsim.config.engine.schedulers import KINDS, SGLANG
from llmsim.config.errors import InputError, NotYetError
from llmsim.lowering.parallel_layout import layout_of
from llmsim.model import Hardware, ModelConfig, resolve_dtypes
from llmsim.model.memory.hybrid_groups import kv_tables
from llmsim.model.memory.sizes import INDEXED_TOKENS, POOL_TOKENS


def shares_blocks(group: Group, model: ModelConfig, *, tiers: bool) -> bool:
    """Whether the group's layers of several kinds share one pool of blocks, table by table, as in
    vLLM.

    Not where KV leaves the pool (roles, tiers, other memories), where drafters keep some, by other
    schedulers, nor with linear attention and a prefix cache before vLLM 0.33 (whose mode "align"
    caches states by other rules there): there blocks hold whole sequences, and the ledger sets
    windows and states aside. Nor where all layers have one window and store different widths.
    """
    engine = group.engine
    frees_chunks = load_profile(engine.engine_profile).frees_chunks
    if tiers or _leaves_the_pool(group) or not divides(model, frees_chunks=frees_chunks):
        return False
    scheduled = "hybrid_kv_cache" not in KINDS[engine.scheduler].lacks
    aligned_states = model.linear is not None and engine.enable_prefix_caching
    return (
        scheduled and engine.speculation is None and (not aligned_states or _caches_states(engine))
    )


def _leaves_the_pool(group: Group) -> bool:
    """Whether KV is also elsewhere than in the pool of one rank."""
    engine = group.engine
    elsewhere = group.pd_type is not None or group.offloading != Offloading()
    spread = group.pcp * engine.decode_context_parallel_size != 1
    return elsewhere or spread or engine.skip_prefill


def divides(model: ModelConfig, *, frees_chunks: bool = True) -> bool:
    """Whether layers keep different parts of a sequence, in tables of a kind each; those that
    attend in chunks do if the engine `frees_chunks`.
    """
    if model.compressed is not None:
        return False
    in_chunks = frees_chunks and model.layers_of("chunked") > 0
    beside_states = model.linear is not None and model.layers_of("full") > 0
    some_keep_less = model.layers_of("sliding") > 0 or in_chunks or beside_states
    kinds = {kind for group in model.softmax_groups for kind in group.own}
    fits_tables = len(kinds) > 1 or model.caches_alike
    return some_keep_less and fits_tables


def _caches_states(engine: EngineArgs) -> bool:
    return load_profile(engine.engine_profile).schedules_by("caches_states")


def with_state_blocks(group: Group, model: ModelConfig, *, tiers: bool) -> Group:
    """The group with the options that linear attention changes in vLLM.

    Before 0.33 the prefix cache is off unless asked for (`is_prefix_caching_supported`), and a
    block of attention is as large as a state (`kv_tables`). NotYetError for KV tiers, which hold
    no states.
    """
    if model.compressed is not None:
        return _with_pool_blocks(group, model, tiers=tiers)
    if model.linear is None:
        return group
    if tiers:
        raise NotYetError(
            f"KV tiers hold no states, which the linear attention of {model.name} keeps; leave "
            "--prefix-storage out"
        )
    engine = group.engine
    origin = dict(engine.origin)
    defaulted = engine.enable_prefix_caching and engine.is_default("enable_prefix_caching")
    if defaulted and not _has_cached_states(engine, model):
        engine = replace(engine, enable_prefix_caching=False)
        origin["enable_prefix_caching"] = f"off: {model.name} keeps states"
    if model.keeps_states_alone:
        whole = engine.max_model_len or model.max_position_embeddings
        origin["block_size"] = f"{whole}, since {model.name} keeps states alone"
        engine = replace(engine, block_size=whole)
    group = replace(group, engine=engine)
    if shares_blocks(group, model, tiers=tiers):
        dtypes = resolve_dtypes(model, engine.dtype, engine.kv_cache_dtype)
        size = kv_tables(model, layout_of(group, model), dtypes, engine.block_size).block_size
        if size != engine.block_size:
            origin["block_size"] = f"{engine.block_size}, grown to hold a state"
            engine = replace(engine, block_size=size)
    return replace(group, engine=replace(engine, origin=MappingProxyType(origin)))


def _has_cached_states(engine: EngineArgs, model: ModelConfig) -> bool:
    """Whether the engine's prefix cache is on for a model with states, unless somebody says."""
    if engine.scheduler != SGLANG:
        return _caches_states(engine)
    return load_profile(engine.engine_profile).states.is_cached(model.model_type)


def with_indexed_blocks(group: Group, model: ModelConfig, hardware: Hardware | None) -> Group:
    """The group with blocks of as many tokens as vLLM's kernels for sparse latent attention take,
    unless their size is given.
    """
    engine = group.engine
    given = engine.scheduler == SGLANG or not engine.is_default("block_size")
    if given or not takes_indexed_blocks(model, hardware):
        return group
    said = f"{INDEXED_TOKENS}, that of sparse latent attention"
    origin = MappingProxyType({**engine.origin, "block_size": said})
    return replace(group, engine=replace(engine, block_size=INDEXED_TOKENS, origin=origin))


def takes_indexed_blocks(model: ModelConfig, hardware: Hardware | None) -> bool:
    """Whether vLLM's default blocks have `INDEXED_TOKENS` tokens."""
    sparse = model.indexer is not None and model.latent is not None and model.compressed is None
    return sparse and hardware is not None and hardware.vendor == "NVIDIA"


def _with_pool_blocks(group: Group, model: ModelConfig, *, tiers: bool) -> Group:
    """The group with blocks of as many tokens as vLLM's kernels for a compressed context take.

    NotYetError where KV leaves the device, InputError for another size of blocks.
    """
    if tiers or group.pd_type is not None:
        raise NotYetError(
            f"{model.name} keeps a compressed context and what waits to be pooled, which are "
            "neither sent to other instances nor to KV tiers yet; run it colocated and leave "
            "--prefix-storage out"
        )
    engine = group.engine
    if engine.block_size == POOL_TOKENS:
        return group
    if not engine.is_default("block_size"):
        raise InputError(
            f"block_size is {engine.block_size}, but blocks of a compressed context ({model.name}) "
            f"have {POOL_TOKENS} tokens; leave it out"
        )
    origin = {**engine.origin, "block_size": f"{POOL_TOKENS}, that of a compressed context"}
    engine = replace(engine, block_size=POOL_TOKENS, origin=MappingProxyType(origin))
    return replace(group, engine=engine)

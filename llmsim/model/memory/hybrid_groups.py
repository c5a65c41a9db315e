"""How vLLM's hybrid KV cache manager shares one pool of blocks among layers that keep different
parts of a sequence.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from llmsim.model.layout import Layout
from llmsim.model.memory.sizes import kv_bytes_per_layer, state_bytes_per_layer
from llmsim.model.types import Dtypes, ModelConfig

SEES_ALL, KEEPS_STATE = 0, -1
"""A table's `window` where its layers see everything, or keep one state
(llmsim/native/kv/hybrid_kv_cache.h).
"""
KERNEL_BLOCK = 16
"""Least multiple of tokens in a block that the attention kernels take (FlashAttention, FlashInfer).
"""
FEW_MORE = 1.5
"""Up to so many times as many layers of the commonest kind as of the rarest, one table holds all
layers of a kind.
"""


class KvTables(Struct, frozen=True):
    """The tables of blocks of one rank. A block of the pool holds one table's layers."""

    windows: tuple[int, ...]
    """Of each table: tokens that its layers see, minus the tokens of the chunks in which they
    attend, SEES_ALL or KEEPS_STATE; states last.
    """
    layers: tuple[int, ...]
    """Of each table, in this pipeline stage."""
    block_sizes: tuple[int, ...]
    """Tokens in a block of each table: more where layers store less of a token."""
    page_bytes: int
    """Of one layer in one block, in every table."""

    @property
    def block_size(self) -> int:
        """Tokens in the smallest block."""
        return min(self.block_sizes)

    @property
    def block_bytes(self) -> int:
        """Of one block: all tables have room for as many layers as the largest."""
        return self.page_bytes * max(self.layers)

    def blocks_of(self, tokens: int, budget: int) -> int:
        """Blocks that a request of so many tokens holds at most, beside a step of `budget` tokens.

        Source: vLLM, `max_memory_usage_bytes` of `v1/kv_cache_interface.py`: a window's tokens need
        not begin with a block, so that one more is held.
        """
        needed = 0
        for window, block_size in zip(self.windows, self.block_sizes, strict=True):
            seen = -window if window < KEEPS_STATE else window - 1
            held = tokens if window in (SEES_ALL, KEEPS_STATE) else min(tokens, seen + budget)
            needed += -(-held // block_size) + (window > 0)
        return needed


def kv_tables(model: ModelConfig, layout: Layout, dtypes: Dtypes, block_size: int) -> KvTables:
    """Tables and block sizes of a model on one rank of `layout`'s stage; `block_size` is the
    engine's option.

    Source: vLLM 0.24, 0.28 and 0.33, `v1/core/kv_cache_utils.py` or `kv_cache_planning.py`
    (`unify_kv_cache_spec_page_size`, `_get_kv_cache_groups_uniform_page_size`,
    `get_kv_cache_config_from_groups`): where layers store different widths, blocks of the narrower
    ones hold as many times more tokens, and their pages are padded where no whole number of times
    fits. Where layers keep states without a prefix cache, `_align_hybrid_block_size` of
    `platforms/interface.py`: attention's block grows until a state fits, and a state takes a whole
    block. Layers that attend in chunks keep the last chunk that a sequence has begun.
    """
    per_token = kv_bytes_per_layer(model, layout, dtypes)
    if model.linear is not None:
        state = state_bytes_per_layer(model.linear, layout.tp, dtypes)
        block = max(KERNEL_BLOCK, block_size)
        block_size = max(block_size, block * -(-state // (block * per_token)))
    stored = _stored(model, layout)
    widths = {layer: one.width for layer, one in stored.items()}
    widest = max(widths.values())
    tables = _groups(model, stored)
    stage = range(0, model.num_layers)
    if layout.pp > 1:
        first = sum(layout.stage_layers[: layout.stage])
        stage = range(first, first + layout.stage_layers[layout.stage])
    return KvTables(
        windows=tuple(table.window for table in tables),
        layers=tuple(sum(layer in stage for layer in table.layers) for table in tables),
        block_sizes=tuple(
            block_size * _times(widths.get(table.layers[0], widest), widest) for table in tables
        ),
        page_bytes=per_token * block_size,
    )


def _times(width: int, widest: int) -> int:
    """How many times as many tokens a page of narrower layers holds; a padded one holds no more."""
    return 1 if widest % width else widest // width


class _Stored(NamedTuple):
    """Heads and their elements that a layer keeps of a token on one rank."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def width(self) -> int:
        """Elements in all."""
        return self.heads * (self.key_dim + self.value_dim)


def _stored(model: ModelConfig, layout: Layout) -> dict[int, _Stored]:
    """What each layer with keys and values of its own keeps."""
    if model.latent is not None:  # every rank holds it whole
        return dict.fromkeys(range(model.num_layers), _Stored(1, model.latent.cached_width, 0))
    found: dict[int, _Stored] = {}
    for group in model.softmax_groups:
        shape = group.shape.on_rank(layout.tp)
        one = _Stored(shape.kv_heads, shape.key_dim, shape.value_dim)
        found |= dict.fromkeys(group.with_keys, one)
    return found


class _Table(Struct, frozen=True):
    window: int
    layers: tuple[int, ...]


def _groups(model: ModelConfig, stored: Mapping[int, _Stored]) -> list[_Table]:
    """The tables, in the order of the first layers; what keeps states is last."""
    windows: dict[str, tuple[int, ...]] = {
        "full": (SEES_ALL,),
        "chunked": (-model.window,),
        "sliding": (model.window,),
        "linear": (KEEPS_STATE,),
        "both": (SEES_ALL, KEEPS_STATE),
        "none": (),
    }
    alike: dict[tuple[int, _Stored | None], list[int]] = {}
    for layer in range(model.num_layers):
        if model.kv_sharing_layers and model.kv_sharing_layers[layer]:
            continue  # its tokens are in an earlier layer's table
        for window in windows[model.layer_kinds[layer] if model.layer_kinds else "full"]:
            kept = stored[layer] if window != KEEPS_STATE else None
            alike.setdefault((window, kept), []).append(layer)
    counts = [len(layers) for layers in alike.values()]
    size = max(counts) if max(counts) < min(counts) * FEW_MORE else min(counts)
    found = []
    for (window, _), layers in alike.items():
        tables = -(-len(layers) // size)
        found += [_Table(window, tuple(layers[i::tables])) for i in range(tables)]
    return sorted(found, key=lambda table: table.window == KEEPS_STATE)

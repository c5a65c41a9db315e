"""How vLLM's hybrid KV cache manager shares one pool of blocks among layers that keep different
parts of a sequence.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class KvTables:
    """The tables of blocks of one rank. A block of the pool holds `block_size` tokens of one
    table's layers.
    """

    windows: tuple[int, ...]
    """Of each table: tokens that its layers see, SEES_ALL or KEEPS_STATE; states last."""
    layers: tuple[int, ...]
    """Of each table, in this pipeline stage."""
    page_bytes: int
    """Of one layer in one block."""
    block_size: int

    @property
    def block_bytes(self) -> int:
        """Of one block: all tables have room for as many layers as the largest."""
        return self.page_bytes * max(self.layers)


def kv_tables(model: ModelConfig, layout: Layout, dtypes: Dtypes, block_size: int) -> KvTables:
    """Tables and block size of a model on one rank of `layout`'s stage; `block_size` is the
    engine's option.

    Source: vLLM 0.24, `v1/core/kv_cache_utils.py` (`_get_kv_cache_groups_uniform_page_size`,
    `get_kv_cache_config_from_groups`) and, where layers keep states without a prefix cache,
    `_align_hybrid_block_size` of `platforms/interface.py`: attention's block grows until a state
    fits, and a state takes a whole block. Layers that attend in chunks are kept whole, since vLLM
    turns the manager off for them.
    """
    per_token = kv_bytes_per_layer(model, layout, dtypes)
    if model.linear is not None:
        state = state_bytes_per_layer(model.linear, layout.tp, dtypes)
        block = max(KERNEL_BLOCK, block_size)
        block_size = max(block_size, block * -(-state // (block * per_token)))
    whole = _groups(model)
    stage = range(0, model.num_layers)
    if layout.pp > 1:
        first = sum(layout.stage_layers[: layout.stage])
        stage = range(first, first + layout.stage_layers[layout.stage])
    return KvTables(
        windows=tuple(window for window, _ in whole),
        layers=tuple(sum(layer in stage for layer in layers) for _, layers in whole),
        page_bytes=per_token * block_size,
        block_size=block_size,
    )


def _groups(model: ModelConfig) -> list[tuple[int, tuple[int, ...]]]:
    """(window, layers) of each table, in the order of the first layers; what keeps
    states is last.
    """
    windows: dict[str, tuple[int, ...]] = {
        "full": (SEES_ALL,),
        "chunked": (SEES_ALL,),
        "sliding": (model.window,),
        "linear": (KEEPS_STATE,),
        "both": (SEES_ALL, KEEPS_STATE),
        "none": (),
    }
    alike: dict[int, list[int]] = {}
    for layer in range(model.num_layers):
        if model.kv_sharing_layers and model.kv_sharing_layers[layer]:
            continue  # its tokens are in an earlier layer's table
        for window in windows[model.layer_kinds[layer] if model.layer_kinds else "full"]:
            alike.setdefault(window, []).append(layer)
    counts = [len(layers) for layers in alike.values()]
    size = max(counts) if max(counts) < min(counts) * FEW_MORE else min(counts)
    found = []
    for window, layers in alike.items():
        tables = -(-len(layers) // size)
        found += [(window, tuple(layers[i::tables])) for i in range(tables)]
    return sorted(found, key=lambda table: table[0] == KEEPS_STATE)

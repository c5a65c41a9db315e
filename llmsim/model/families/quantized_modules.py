"""Maps module names of a checkpoint (lists of quantised or unquantised modules) to the parts of a
model's layers.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmsim.model.types import ModelConfig

PARTS = ("attention", "attention_out", "linear", "mlp", "shared", "experts")
"""Parts of a layer with linear weights; attention_out is the output projection of softmax
attention.
"""
STATES_IN_ATTENTION = "states_in_attention"
"""Beside the parts: layers with a state whose modules are called as those of attention."""
_UNQUANTISED_MODULES = re.compile(
    r"^(gate|router|lm_head|head|.*norm.*|.*embed.*|shared_expert_gate|conv1d|indexer.*|index_.*"
    r"|e_score.*|in_proj_[ab]|in_proj_ba|A_log|dt_bias|.*bias|.*sinks?)$"
)
"""Last parts of names that no model here quantises."""
_OUTSIDE = (
    "visual",
    "vision",
    "multi_modal",
    "mm_projector",
    "patch_merge",
    "mtp",
    "embed",
    "lm_head",
    "encoder",
)
"""Words of modules outside of the decoder's layers."""
_STATES = frozenset(("linear_attn", "mamba"))
_DENSE = frozenset(("mlp", "feed_forward", "ffn"))
_ATTENTION = ("self_attn", "attention", "attn", "mixer")
_ATTENTION_INPUTS = re.compile(
    r"^(q|k|v|qkv|q_a|q_b|kv_a|kv_b|fused_qkv_a)_proj.*$|^qkv$|^query_key_value$"
)
_ATTENTION_OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")

Layers = Mapping[str, frozenset[int]]
"""Part -> numbers of the layers that have it."""


def layers_of_parts(model: "ModelConfig") -> Layers:
    """The layers of a model that have each part."""
    layers = slice(model.num_layers)
    kinds = (model.layer_kinds or ("full",) * model.num_layers)[layers]
    with_ffn = (model.layers_with_ffn or (True,) * model.num_layers)[layers]
    softmax = _numbers(kind not in ("linear", "none") for kind in kinds)
    linear = _numbers(kind in ("linear", "both") for kind in kinds)
    experts = _numbers(model.moe_layers[layers])
    instead_of_dense = frozenset() if model.dense_beside_experts else experts
    dense = _numbers(with_ffn) - instead_of_dense
    kda = model.linear is not None and model.linear.kind == "kda"
    has_shared = model.shared_expert_intermediate_size or model.expert_latent_size
    return {
        "attention": softmax,
        "attention_out": softmax,
        "linear": linear,
        STATES_IN_ATTENTION: linear if kda else frozenset(),
        "mlp": dense,
        "shared": experts if has_shared else frozenset(),
        "experts": experts,
    }


def _numbers(of_layers: Iterable[bool]) -> frozenset[int]:
    """The numbers of the layers for which it is true."""
    return frozenset(number for number, is_so in enumerate(of_layers) if is_so)


def parts_of(name: str) -> tuple[str, ...] | None:
    """The parts of a layer that a module's name or pattern stands for, maybe all or none; None for
    an unknown name.
    """
    word = name.removeprefix("re:").replace("\\", "").strip("^$")
    if any(outside in word for outside in _OUTSIDE):
        return ()
    if re.fullmatch(r"(?:.*\.)?layers\.(?:\d+|\*)[.*]*", word):
        return PARTS
    pieces = [piece for piece in re.split(r"[.*]+", word) if piece and not piece.isdigit()]
    if not pieces or _is_unquantised(pieces):
        return ()
    return _parts_in_layer(pieces)


def _is_unquantised(pieces: list[str]) -> bool:
    """Whether no model here quantises the module of that name, cut at its dots."""
    in_indexer = any(piece.startswith("indexer") for piece in pieces)
    return in_indexer or _UNQUANTISED_MODULES.match(pieces[-1]) is not None


def _parts_in_layer(pieces: list[str]) -> tuple[str, ...] | None:
    """The parts of a layer that a name, cut at its dots, stands for; None for an unknown one."""
    if any(piece.startswith("shared_expert") for piece in pieces):
        return ("shared",)
    if "experts" in pieces:
        return ("experts",)
    if not _STATES.isdisjoint(pieces):
        return ("linear",)
    attention = _attention_parts(pieces)
    if attention:
        return attention
    if pieces[-1] == "mixer":
        return PARTS
    if pieces[-1] == "block_sparse_moe":
        return ("experts", "shared")
    return None if _DENSE.isdisjoint(pieces) else ("mlp",)


def _attention_parts(pieces: list[str]) -> tuple[str, ...]:
    """Parts of the attention that a name, cut at its dots, stands for; state-space layers call
    theirs "mixer", too.
    """
    last = pieces[-1]
    inside = any(piece in _ATTENTION for piece in pieces)
    if last in ("self_attn", "attention", "attn"):
        return ("attention", "attention_out")
    if "mixer" in pieces and last in ("in_proj", "out_proj"):
        return ("linear",)
    if inside and last in _ATTENTION_OUTPUTS:
        return ("attention_out",)
    return ("attention",) if inside and _ATTENTION_INPUTS.match(last) else ()


def named_layers(name: str, having: frozenset[int]) -> frozenset[int]:
    """Which layers of `having` a name or pattern means: those of its number, or all of them if it
    has none.
    """
    found = re.search(r"layers\\?\.(\d+)(\*?)", name)
    if found is None:
        return having
    number, star = found.groups()
    if star:  # a glob: layers.1* is 1, 10, 11, ...
        return frozenset(layer for layer in having if str(layer).startswith(number))
    return having & {int(number)}


def layers_by_part(
    names: Iterable[str], layers: Layers
) -> tuple[dict[str, frozenset[int]], list[str]]:
    """The layers in which each part is named, and the names of the model's own layers that no part
    is known for.
    """
    found = dict.fromkeys(PARTS, frozenset[int]())
    unknown = []
    every_layer = frozenset[int]().union(*layers.values())
    for name in names:
        parts = parts_of(name)
        if parts is None:
            if named_layers(
                name, every_layer
            ):  # others belong to layers for multi-token prediction
                unknown.append(name)
            continue
        for part in parts:
            found[part] |= named_layers(name, layers[part])
        if {"attention", "attention_out"} <= {*parts}:
            found["linear"] |= named_layers(name, layers.get(STATES_IN_ATTENTION, frozenset()))
    return found, unknown

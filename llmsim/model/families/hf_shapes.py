"""Reads the heads of softmax attention and the widths of dense MLPs, layer by layer.

A layer differs where the config has a list with an entry for each layer, where its object
`per_layer_config` overrides fields for it (transformers 5), or where the family describes `shapes`
of the layer's kind.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from llmsim.config.errors import InputError, NotYetError
from llmsim.model.families.family import Family, Heads
from llmsim.model.families.family_rules import Rule, Rules
from llmsim.model.families.fields import Reader, shown
from llmsim.model.operators.attention_variants import AttentionShape, LatentAttention
from llmsim.model.types import LayerKind

OVERRIDES = "per_layer_config"
"""A config field: number of a layer -> the fields that have another value in it."""
MOST_SHAPES = 6
"""Ways in which the layers of one model attend: kMaxAttentions of native/program/program.h."""
OF_SHAPES = ("head_dim", "num_key_value_heads", "num_attention_heads", "intermediate_size")
"""Fields that may be overridden for one layer."""


class Shapes(Struct, frozen=True):
    """The shapes of a model's layers; what a ModelConfig has of them."""

    first: AttentionShape
    """Of the first layer with softmax attention."""
    width: int
    """Of the first layer's dense MLP."""
    fields: dict[str, Any]


def read_shapes(
    rules: Rules, family: Family, kinds: Sequence[LayerKind], latent: LatentAttention | None
) -> Shapes:
    """The shapes of the layers, each with its kind; latent attention has one shape alone."""
    if latent is not None:
        heads, dim = rules.count(family.heads), latent.nope_dim + latent.rope_dim
        gate = rules.optional(family.gate_dim)
        sinks = family.attention_sinks
        shape = AttentionShape(heads, heads, dim, dim, sinks=sinks, gate_dim=gate)
        gated = {"attention_shapes": (shape,)} if gate else {}
        return Shapes(shape, rules.count(family.intermediate), gated)
    reads = [_layer(rules.read, i, len(kinds)) for i in range(len(kinds))]
    sharing = _sharing(rules, family, kinds)
    fields: dict[str, Any] = {"kv_sharing_layers": sharing}
    widths = _widths(reads, rules, family, sharing)
    if len(set(widths)) > 1:
        fields["ffn_widths"] = widths
    softmax = [i for i, kind in enumerate(kinds) if kind not in ("linear", "none")]
    found = {i: _shape(Rules(reads[i]), family, kinds[i]) for i in softmax}
    if not found:
        return Shapes(_shape(rules, family, "full"), widths[0], fields)
    distinct = list(dict.fromkeys(found.values()))
    several = {(found[i], kinds[i]) for i in softmax}
    if len(several) > MOST_SHAPES:
        raise NotYetError(
            f"{rules.read.source}: its layers attend in {len(several)} ways (shapes of heads, and "
            f"what they see); at most {MOST_SHAPES} are simulated"
        )
    first = distinct[0]
    plain = AttentionShape(
        first.heads, first.kv_heads, first.key_dim, first.key_dim, sinks=family.attention_sinks
    )
    if distinct != [plain]:
        fields["attention_shapes"] = tuple(distinct)
    if len(distinct) > 1:
        fields["layer_shapes"] = tuple(
            distinct.index(found[i]) if i in found else 0 for i in range(len(kinds))
        )
    return Shapes(distinct[0], widths[0], fields)


def _is_numbers(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    )


def _layer(read: Reader, index: int, layers: int) -> Reader:
    """The config as one layer sees it."""
    fields = {
        key: value[index] if _is_numbers(value) and len(value) == layers else value
        for key, value in read.fields.items()
    }
    overrides = read.fields.get(OVERRIDES) or {}
    if not isinstance(overrides, dict) or not all(
        isinstance(one, dict) and str(key).isdigit() for key, one in overrides.items()
    ):
        raise InputError(
            f'{read.source}: field "{OVERRIDES}" is {shown(overrides)}; it must be an object of '
            "objects by the number of a layer"
        )
    fields[OVERRIDES] = bool(overrides)
    for key, changed in overrides.items():
        if int(key) == index:
            _check_overrides(read, key, changed)
            fields |= changed
    return Reader(fields, read.source)


def _check_overrides(read: Reader, layer: str, changed: dict[str, Any]) -> None:
    other = next((name for name in changed if name not in OF_SHAPES), None)
    if other is not None:
        raise NotYetError(
            f'{read.source}: field "{OVERRIDES}" changes "{other}" in layer {layer}; described are '
            f"{', '.join(OF_SHAPES)}"
        )


def _shape(rules: Rules, family: Family, kind: LayerKind) -> AttentionShape:
    how = family.shapes.get(kind, Heads())
    heads = rules.count(_or(how.heads, family.heads))
    kv_heads = rules.count(_or(how.kv_heads, family.kv_heads))
    dim = rules.optional(_or(how.head_dim, family.head_dim)) or _head_dim(rules, heads)
    if heads % kv_heads:
        raise InputError(
            f"{rules.read.source}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}; every KV head must serve the same number of heads"
        )
    indexer = family.indexer if kind == "block_sparse" else None
    return AttentionShape(
        heads,
        kv_heads,
        dim,
        rules.optional(_or(how.value_dim, family.value_dim)) or dim,
        sinks=family.attention_sinks or rules.flag(how.sinks),
        gate_dim=rules.optional(family.gate_dim),
        values_are_keys=rules.flag(how.values_are_keys),
        index_heads=rules.count(indexer.heads) if indexer is not None else 0,
        index_dim=rules.count(indexer.dim) if indexer is not None else 0,
    )


def _or(own: Rule | None, general: Rule) -> Rule:
    return general if own is None else own


def _head_dim(rules: Rules, heads: int) -> int:
    hidden = rules.count("hidden_size")
    if hidden % heads:
        raise InputError(
            f'{rules.read.source}: field "head_dim" is missing and hidden_size {hidden} is not a '
            f"multiple of num_attention_heads {heads}; give head_dim"
        )
    return hidden // heads


def _sharing(rules: Rules, family: Family, kinds: Sequence[LayerKind]) -> tuple[bool, ...]:
    """Which layers attend to keys and values of an earlier one; empty: none."""
    shared = rules.optional(family.kv_sharing)
    if not shared:
        return ()
    own = len(kinds) - shared
    if own < 1 or not set(kinds[own:]) <= set(kinds[:own]):
        raise InputError(
            f"{rules.read.source}: the last {shared} of {len(kinds)} layers use keys and values of "
            "earlier layers of their kind, which there are not"
        )
    return tuple(i >= own for i in range(len(kinds)))


def _width(rules: Rules, family: Family) -> int:
    """Of one layer's dense MLP."""
    width, how = rules.count(family.intermediate), family.adjusted
    if how is None or not rules.flag(how.adjusted_if):
        return width
    factor = rules.read.fields.get(how.factor)
    if factor is not None and (isinstance(factor, bool) or not isinstance(factor, int | float)):
        raise InputError(
            f'{rules.read.source}: field "{how.factor}" is {shown(factor)}; it must be a number'
        )
    multiple = rules.count(how.multiple)
    width = int((1 if factor is None else factor) * (2 * width // 3))
    return -(-width // multiple) * multiple


def _widths(
    reads: Sequence[Reader], rules: Rules, family: Family, sharing: tuple[bool, ...]
) -> tuple[int, ...]:
    times = rules.optional(family.wide_ffn) if any(sharing) else 1
    return tuple(
        _width(Rules(read), family) * (times if shares else 1)
        for read, shares in zip(reads, sharing or (False,) * len(reads), strict=True)
    )

"""Reads what the layers of a config.json are: what each attends to, latent and linear attention,
experts.
"""

from typing import Any

from llmsim.config.errors import InputError, NotYetError
from llmsim.model.dtypes import short_dtype
from llmsim.model.families.family import AttentionLayers, Experts, Family
from llmsim.model.families.family_rules import Rules
from llmsim.model.families.fields import MAX_EXPERTS, Reader, shown
from llmsim.model.operators.attention_variants import (
    CompressedAttention,
    Indexer,
    LatentAttention,
    LayerInputs,
    LinearAttention,
)
from llmsim.model.operators.streams import HyperConnections
from llmsim.model.types import LayerKind

FFN_TYPES = "mlp_layer_types"
FFN_NAMES = {"dense": False, "sparse": True, "moe": True, "hash_moe": True}
"""Entries of it, and whether such a layer has experts."""
HASHED = "hash_moe"
WINDOWED = ("sliding", "chunked", "compressed", "compressed_sparse")
"""Kinds of layers that see a window, alone or beside more."""
MORE_LAYERS = "num_nextn_predict_layers"
"""A field with the number of multi-token prediction layers, which some lists count, too."""
STATE_DTYPES = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
"""Fields that name the type of the states; without them, or where they say "auto", it is the
activations', and of Kimi delta attention fp32 (vLLM).
"""


def named_kinds(rules: Rules, family: Family, layers: int) -> tuple[LayerKind, ...]:
    """What the config calls each layer, however wide a window is."""
    read, how = rules.read, family.layers
    if how is None:
        everywhere: LayerKind = "full"
        return (everywhere,) * layers
    return tuple(_listed_kinds(read, family, layers) or _ruled_kinds(rules, how, layers))


def _ruled_kinds(rules: Rules, how: AttentionLayers, layers: int) -> list[LayerKind]:
    """The kinds of the layers where no list names them: those of flags, numbers or a period."""
    read = rules.read
    flags = read.fields.get(how.flags) if how.flags else None
    if isinstance(flags, list) and len(flags) == layers:
        named = [not flag for flag in flags]
    elif how.numbers:
        numbers = [one - how.numbered_from for one in read.counts(how.numbers)]
        named = [i in numbers for i in range(layers)]
    else:
        every = rules.optional(how.every)
        offset = every - 1 if how.offset is None else rules.optional(how.offset)
        named = [every != 0 and i % every == offset for i in range(layers)]
    kinds = [how.kind if is_named else how.rest for is_named in named]
    first_full = rules.optional(how.first_full)
    return ["full" if i < first_full else kind for i, kind in enumerate(kinds)]


def layer_kinds(
    rules: Rules, family: Family, named: tuple[LayerKind, ...], positions: int
) -> tuple[tuple[LayerKind, ...], int]:
    """What each layer attends to, and the window; a window no narrower than the longest context
    changes nothing.
    """
    read, how = rules.read, family.layers
    if how is None:
        _refuse_windows(read, family, positions)
        return (), 0
    window = rules.optional(how.window) if rules.flag(how.enabled) else 0
    local = window if 0 < window < positions else 0
    seen = tuple(kind if local or kind not in ("sliding", "chunked") else "full" for kind in named)
    if local == 1 and "sliding" in seen:
        raise InputError(
            f"{read.source}: layers see a window of 1 token (their own); it must be at least 2"
        )
    used = local if any(kind in WINDOWED for kind in seen) else 0
    return (() if all(kind == "full" for kind in seen) else seen), used


def _listed_kinds(read: Reader, family: Family, layers: int) -> list[LayerKind]:
    how = family.layers
    assert how is not None
    listed = entries(read, family, layers)
    for kind in listed:
        if str(kind) not in how.names:
            raise NotYetError(
                f"{read.source}: a layer is {shown(kind)}; {family.path} knows "
                f"{', '.join(how.names)}"
            )
    return [how.names[str(kind)] for kind in listed]


def entries(read: Reader, family: Family, layers: int) -> list[str]:
    """What the config says of every layer, letters of a string or entries of a list; empty where it
    says nothing.
    """
    assert family.layers is not None, "the caller looked"
    field = _field(read, family.layers)
    listed = read.fields.get(field) or []
    if not listed and field and family.layers.alone:
        raise InputError(
            f'{read.source}: field "{field}" is missing; it must say what each of {layers} '
            "layers is"
        )
    return [str(one) for one in _for_each_layer(read, field, layers)] if listed else []


def _for_each_layer(read: Reader, field: str, layers: int) -> list[Any]:
    """A list (or the letters of a text) with an entry for each layer; those of multi-token
    prediction layers behind them are left out.
    """
    listed = read.fields.get(field)
    more = read.fields.get(MORE_LAYERS)
    lengths = (layers, layers + (more if isinstance(more, int) else 0))
    if not isinstance(listed, list | str) or len(listed) not in lengths:
        raise InputError(
            f'{read.source}: field "{field}" must be a list (or text) with one entry for each of '
            f"{layers} layers"
        )
    return list(listed)[:layers]


def listed_layers(read: Reader, family: Family) -> int | None:
    """Layers that have an entry, where a config need not say their number."""
    listed = (
        read.fields.get(_field(read, family.layers))
        if family.layers and family.layers.alone
        else None
    )
    return len(listed) if isinstance(listed, list | str) else None


def _field(read: Reader, how: AttentionLayers) -> str:
    fields = [how.field] if isinstance(how.field, str) else how.field
    return next((one for one in fields if read.present(one)), fields[0])


def layers_with_ffn(read: Reader, family: Family, kinds: tuple[LayerKind, ...]) -> tuple[bool, ...]:
    """Which layers have an MLP or experts; empty: all."""
    if family.layers is not None and family.layers.ffns and read.present(family.layers.ffns):
        flags = tuple(bool(one) for one in read.counts(family.layers.ffns))
        return () if all(flags) else flags
    alone = family.layers is not None and family.layers.alone
    return tuple(kind == "none" for kind in kinds) if alone else ()


def _refuse_windows(read: Reader, family: Family, positions: int) -> None:
    kinds = read.fields.get("layer_types") or []
    other = (
        next((kind for kind in kinds if kind != "full_attention"), None)
        if isinstance(kinds, list)
        else kinds
    )
    if other is not None:
        raise NotYetError(
            f'{read.source}: field "layer_types" holds {shown(other)}; layers of the family'
            f' "{read.text("model_type")}" see everything ({family.path})'
        )
    if not read.fields.get("sliding_window") or not read.flag("use_sliding_window", True):
        return
    window = read.count("sliding_window")
    if window < positions:
        raise NotYetError(
            f'{read.source}: field "sliding_window" is {window}, shorter than '
            f"max_position_embeddings {positions}, and"
            f" {family.path} does not say which layers it holds for; set it to null to simulate "
            "full attention"
        )


def latent(rules: Rules, family: Family) -> LatentAttention | None:
    """Shape of multi-head latent attention, where the family has it."""
    how = family.latent
    if how is None:
        return None
    return LatentAttention(
        q_rank=rules.optional(how.q_rank),
        kv_rank=rules.count(how.kv_rank),
        nope_dim=rules.count(how.nope_dim),
        rope_dim=rules.count(how.rope_dim),
        v_dim=rules.count(how.v_dim),
    )


def compressed(rules: Rules, family: Family) -> CompressedAttention | None:
    """Shape of attention to a compressed context, where the family has it."""
    how = family.compressed
    if how is None:
        return None
    shape = CompressedAttention(
        q_rank=rules.count(how.q_rank),
        dim=rules.count(how.dim),
        rope_dim=rules.count(how.rope_dim),
        out_groups=rules.count(how.out_groups),
        out_rank=rules.count(how.out_rank),
    )
    heads = rules.count(family.heads)
    if heads % shape.out_groups or shape.rope_dim > shape.dim:
        raise InputError(
            f"{rules.read.source}: {heads} heads of {shape.dim} elements, {shape.rope_dim} of them "
            f"rotated, in {shape.out_groups} groups; the groups must be equal, and a head cannot "
            "have more rotated elements than elements"
        )
    return shape


def residual_sources(rules: Rules, family: Family, layers: int) -> tuple[int, ...]:
    """Of each layer: earlier residuals that both halves attend to. One is kept at every so many
    layers' start, which the FFN of that layer sees already.
    """
    every = rules.optional(family.residuals_every)
    if not every:
        return ()
    return tuple(2 * -(-layer // every) + (layer % every == 0) for layer in range(layers))


def hyper(rules: Rules, family: Family) -> HyperConnections | None:
    """The residual streams, where there are several."""
    streams = rules.optional(family.streams)
    return HyperConnections(streams, family.mixed_streams) if streams > 1 else None


def sparse(rules: Rules, family: Family, kinds: tuple[LayerKind, ...]) -> dict[str, Any]:
    """The indexer of sparse attention, and the layers that have one; `kinds` of all layers."""
    how, read, layers = family.indexer, rules.read, len(kinds)
    if how is None:
        return {}
    if block := rules.optional(how.block):
        own = tuple(kind == "block_sparse" for kind in kinds)
        chosen = rules.count(how.topk) * block
        indexer = Indexer(rules.count(how.heads), rules.count(how.dim), chosen, block)
        return {"indexer": indexer, "indexer_layers": own} if any(own) else {}
    queries = family.latent or family.compressed
    if not rules.optional(queries.q_rank if queries is not None else 0):
        raise NotYetError(
            f"{read.source}: the indexer of sparse attention reads the queries' latent, which it "
            "has not"
        )
    listed = read.fields.get(how.field) or []
    if not isinstance(listed, list) or (
        listed and (len(listed) != layers or listed[0] == how.shared)
    ):
        raise InputError(
            f'{read.source}: field "{how.field}" must be a list with one entry for each of '
            f"{layers} layers, and the"
            f' first must not be "{how.shared}"'
        )
    own = tuple(one != how.shared for one in listed)
    indexer = Indexer(rules.count(how.heads), rules.count(how.dim), rules.count(how.topk))
    return {"indexer": indexer, "indexer_layers": () if all(own) else own}


def layer_inputs(rules: Rules, family: Family, layers: int) -> LayerInputs | None:
    """The embeddings that every layer gets, where there are any."""
    how = family.layer_inputs
    width = rules.optional(how.width) if how is not None else 0
    if how is None or not width:
        return None
    return LayerInputs(rules.count(how.rows), width, layers)


def _state_dtype(read: Reader) -> str:
    named = next((read.text(field) for field in STATE_DTYPES if read.present(field)), "auto")
    return "" if named == "auto" else short_dtype(named)


def linear(rules: Rules, family: Family) -> LinearAttention:
    """Shape of the layers that keep a state."""
    how = family.linear
    if how is None:
        raise InputError(
            f'{family.path}: layers may be "linear", but "linear" does not say their shape'
        )
    shape = LinearAttention(
        key_heads=rules.count(how.key_heads),
        key_dim=rules.optional(how.key_dim),
        value_heads=rules.count(how.value_heads),
        value_dim=rules.count(how.value_dim),
        conv_kernel=rules.optional(how.conv_kernel),
        chunk=rules.count(how.chunk),
        kind=how.kind,
        norm=how.norm if rules.flag(how.norm_if) else "none",
        conv_bias=rules.flag(how.conv_bias),
        bias=rules.flag(how.bias),
        state_dtype=_state_dtype(rules.read) or ("fp32" if how.kind == "kda" else ""),
        gate_rank=rules.optional(how.gate_rank),
        step_norm=how.step_norm,
        full_gate=rules.flag(how.full_gate),
    )
    if shape.value_heads % shape.key_heads:
        raise InputError(
            f"{rules.read.source}: {shape.value_heads} value heads of the linear layers are not a "
            f"multiple of their {shape.key_heads} key heads"
        )
    return shape


def _typed_ffns(read: Reader, layers: int) -> tuple[bool, ...]:
    """Which layers have experts by `mlp_layer_types`, which transformers writes from version 5 on;
    empty where the config has no such list.
    """
    if not read.present(FFN_TYPES):
        return ()
    listed = _for_each_layer(read, FFN_TYPES, layers)
    other = next((one for one in listed if one not in FFN_NAMES), None)
    if other is not None:
        raise InputError(
            f'{read.source}: field "{FFN_TYPES}" holds {shown(other)}; it must say "dense" or '
            f'"sparse" for each of {layers} layers'
        )
    return tuple(FFN_NAMES[one] for one in listed)


def hashed_layers(rules: Rules, family: Family, layers: int) -> tuple[bool, ...]:
    """Layers whose experts a token's id chooses: those that are listed so, or the first ones."""
    how, read = family.experts, rules.read
    if how is None:
        return ()
    if read.present(FFN_TYPES):
        listed = [one == HASHED for one in _for_each_layer(read, FFN_TYPES, layers)]
    else:
        first = rules.optional(how.hashed)
        listed = [number < first for number in range(layers)]
    return tuple(listed) if any(listed) else ()


def _sparse_layers(rules: Rules, family: Family, how: Experts, layers: int) -> tuple[bool, ...]:
    """Which layers have experts: a list in the config comes before the family's rules."""
    read = rules.read
    typed = _typed_ffns(read, layers)
    if typed:
        return typed
    if how.entries:
        return tuple(one in how.entries for one in entries(read, family, layers))
    if how.flags and isinstance(read.fields.get(how.flags), list):
        return tuple(bool(one) for one in _for_each_layer(read, how.flags, layers))
    if how.listed and read.present(how.listed):
        listed = set(read.numbers(how.listed))
        return tuple(i in listed for i in range(layers))
    return _layers_in_turn(rules, how, layers)


def _layers_in_turn(rules: Rules, how: Experts, layers: int) -> tuple[bool, ...]:
    """Every so many layers between a first and a last one, but for those that are named dense."""
    read = rules.read
    first, step = rules.optional(how.first), rules.optional(how.step) or 1
    phase = how.phase if how.offset is None else -rules.optional(how.offset)
    dense = set(read.counts(how.dense)) if how.dense else set()
    last = read.index(how.last, layers) if how.last and read.present(how.last) else layers - 1
    in_turn = range(first, last + 1)
    return tuple(i in in_turn and i not in dense and (i + phase) % step == 0 for i in range(layers))


def _chosen_experts(rules: Rules, how: Experts, experts: int) -> dict[str, int]:
    """How many experts a token chooses, and of how many groups."""
    source = rules.read.source
    topk = rules.count(how.topk)
    if topk > experts:
        raise InputError(
            f'{source}: field "num_experts_per_tok" is {topk}, more than the {experts} experts'
        )
    groups, chosen = rules.optional(how.groups) or 1, rules.optional(how.topk_groups) or 1
    unequal = experts % groups != 0
    too_few = chosen > groups or topk > experts // groups * chosen
    if unequal or too_few:
        raise InputError(
            f"{source}: a token's {topk} experts come from {chosen} of {groups} groups of "
            f"{experts} experts; the groups must be equal, and those chosen must have as many "
            "experts"
        )
    return {
        "num_experts": experts,
        "num_experts_per_tok": topk,
        "expert_groups": groups,
        "groups_per_token": chosen,
    }


def _without_zero_experts(rules: Rules, how: Experts, chosen: dict[str, int]) -> dict[str, int]:
    """The choice with those of experts that return the token as it is left out: as many as an even
    load has.
    """
    zero, experts = rules.optional(how.zero), chosen["num_experts"]
    if not zero:
        return chosen
    found = chosen["num_experts_per_tok"] * experts / (experts + zero)
    return {**chosen, "num_experts_per_tok": max(1, round(found)), "zero_experts": zero}


def moe_fields(rules: Rules, family: Family, layers: int) -> dict[str, Any]:
    """The experts, and which layers have them."""
    how = family.experts
    if how is None or rules.zero(how.experts):
        return {"moe_layers": (False,) * layers}
    experts = rules.count(how.experts, most=MAX_EXPERTS)
    if experts == 1 and how.one_is_dense:
        return {"moe_layers": (False,) * layers}
    chosen = _without_zero_experts(rules, how, _chosen_experts(rules, how, experts))
    moe_layers = _sparse_layers(rules, family, how, layers)
    shared = rules.optional(how.shared_width) if how.shared_width else 0
    shared *= rules.optional(how.shared_count) if shared else 0
    beside = rules.flag(how.beside_dense)
    everywhere = {
        "moe_layers": moe_layers,
        "moe_intermediate_size": rules.count(how.width),
        "router_bias": rules.flag(how.router_bias),
        "expert_bias": how.expert_bias,
    }
    if not any(moe_layers):
        return everywhere
    return {
        **everywhere,
        **chosen,
        "expert_latent_size": rules.optional(how.latent),
        "latent_norm": rules.flag(how.latent_norm) and rules.optional(how.latent) > 0,
        "shared_expert_intermediate_size": shared,
        "shared_expert_gate": how.shared_gate and shared > 0,
        "router_scales": how.router_scales,
        "dense_beside_experts": beside,
        "norms_around_experts": how.beside_norms if beside else 0,
    }

"""Reads a Hugging Face config.json, unchanged, into a ModelConfig, by the description of its family."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmsim.config.errors import InputError, NotYetError
from llmsim.model.dtypes import short_dtype
from llmsim.model.families import Family, Rules, find_family
from llmsim.model.fields import MAX_EXPERTS, MAX_LAYERS, Fields, Reader, shown
from llmsim.model.quantization import read_quantization
from llmsim.model.types import LatentAttention, LayerKind, LinearAttention, ModelConfig

STATE_SPACE = "state-space layers"
UNSUPPORTED_FIELDS: Mapping[str, str] = {
    "attn_layer_period": STATE_SPACE,
    "ssm_state_size": STATE_SPACE,
    "mamba_d_state": STATE_SPACE,
    "hybrid_override_pattern": STATE_SPACE,
    "linear_attn_config": "linear attention other than gated delta nets",
    "index_topk": "sparse attention",
    "audio_config": "audio input",
    "num_global_key_value_heads": "other head shapes in some layers",
    "is_encoder_decoder": "an encoder",
    "block_configs": "layers of different shapes",
}
"""What no family description can say yet."""
FEATURES: tuple[tuple[str, str, str], ...] = (
    ("kv_lora_rank", "latent", "multi-head latent attention (MLA)"),
    ("q_lora_rank", "latent", "multi-head latent attention (MLA)"),
    ("linear_num_key_heads", "linear", "linear attention"),
    ("linear_num_value_heads", "linear", "linear attention"),
    ("full_attention_interval", "linear", "linear attention"),
    ("num_local_experts", "experts", "a mixture of experts"),
    ("num_experts", "experts", "a mixture of experts"),
    ("n_routed_experts", "experts", "a mixture of experts"),
    ("n_shared_experts", "experts", "shared experts"),
    ("attention_chunk_size", "layers", "chunked local attention"),
)
"""(config field, part of a description, what it asks for): a field of weight that a family does not speak of."""
SHARED_FIELDS = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
"""Fields of a wrapper's own config that hold for its text part."""
SCALED_KINDS = ("default", "llama3", "longrope", "su", "mrope", "proportional")
"""RoPE scalings whose max_position_embeddings is already the extended one."""


def parse_config(fields: Fields, *, name: str, source: str, folder: Path | None = None) -> ModelConfig:
    """A ModelConfig from the object of a config.json.

    `source` is the file that errors name, `folder` where a `family.json` may lie. Of a vision-language wrapper
    (`text_config`) the text part is read. Raises InputError (missing, wrong type, impossible) or NotYetError (a family
    or feature that is not described), one sentence with the field.
    """
    notes: list[str] = []
    read = _text_part(Reader(fields, source), notes)
    for key, feature in UNSUPPORTED_FIELDS.items():
        if read.fields.get(key):
            raise NotYetError(f'{read.source}: field "{key}" asks for {feature}, which this version does not run')
    family = find_family(read, folder)
    read = Reader({**family.defaults, **{k: v for k, v in read.fields.items() if v is not None}}, read.source)
    _check_features(read, family)
    return _model(read, family, name, source, [*notes, *family.notes])


def _text_part(read: Reader, notes: list[str]) -> Reader:
    """The language model inside a wrapper; the fields that hold for all of it come from outside."""
    inner = read.table("text_config")
    if inner is None:
        if read.fields.get("vision_config"):
            raise NotYetError(
                f'{read.source}: field "vision_config" asks for multimodal input in a form without "text_config", which'
                " this version does not run"
            )
        return read
    outer = {key: read.fields[key] for key in SHARED_FIELDS if read.present(key)}
    if read.fields.get("vision_config") or read.fields.get("audio_config"):
        notes.append(
            f"{read.source} is a multimodal model: its text part is simulated; the weights and the work of its encoders"
            " are not counted"
        )
    model_type = inner.fields.get("model_type", read.fields.get("model_type"))
    return Reader({**outer, **inner.fields, "model_type": model_type}, f"{read.source}: text_config")


def _check_features(read: Reader, family: Family) -> None:
    """A field that changes the model, in a family whose description does not speak of it, is never ignored."""
    for key, part, feature in FEATURES:
        if read.fields.get(key) and getattr(family, part) is None:
            raise NotYetError(
                f'{read.source}: field "{key}" asks for {feature}, which the family "{read.text("model_type")}" does'
                f" not have in {family.path}; describe it there or in a family.json"
            )
    shared = read.fields.get("shared_expert_intermediate_size")
    if shared and family.experts is not None and family.experts.shared_width == 0:
        raise NotYetError(
            f'{read.source}: field "shared_expert_intermediate_size" asks for shared experts, which {family.path} does'
            " not have; describe them there or in a family.json"
        )


def _model(read: Reader, family: Family, name: str, source: str, notes: list[str]) -> ModelConfig:
    rules = Rules(read)
    latent = _latent(rules, family)
    heads = read.count("num_attention_heads")
    hidden = read.count("hidden_size")
    kv_heads = heads if latent else read.count("num_key_value_heads", default=heads)
    head_dim = latent.nope_dim + latent.rope_dim if latent else _head_dim(read, hidden, heads)
    if heads % kv_heads:
        raise InputError(
            f"{read.source}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads};"
            " every KV head must serve the same number of heads"
        )
    layers = read.count("num_hidden_layers", most=MAX_LAYERS)
    dtype = _dtype(read, notes)
    positions = _context_tokens(read, family)
    quantization = read_quantization(read, dtype, layers)
    kinds, window = _layer_kinds(rules, family, layers, positions)
    return ModelConfig(
        name=name,
        model_type=read.text("model_type"),
        hidden_size=hidden,
        num_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=rules.count(family.intermediate),
        vocab_size=read.count("vocab_size"),
        max_position_embeddings=positions,
        dtype=dtype,
        weight_dtype=quantization.weight_dtype,
        weight_block=quantization.block,
        scale_bits=quantization.scale_bits,
        plain_parts=quantization.plain_parts,
        kv_cache_dtype=quantization.kv_cache_dtype,
        tie_word_embeddings=read.flag("tie_word_embeddings", family.tie_word_embeddings),
        layer_kinds=kinds,
        window=window,
        latent=latent,
        linear=_linear(rules, family) if "linear" in kinds else None,
        family=family.path,
        source=source,
        notes=(*notes, *quantization.notes),
        **_details(rules, family),
        **_moe_fields(rules, family, layers),
    )


def _details(rules: Rules, family: Family) -> dict[str, Any]:
    """Which projections and norms carry a bias, and the smaller things that change a layer's shape."""
    normed = family.qk_norm != "none" and rules.flag(family.qk_norm_if)
    return {
        "attention_bias": rules.flag(family.qkv_bias),
        "o_proj_bias": rules.flag(family.o_bias),
        "mlp_bias": rules.flag(family.mlp_bias),
        "lm_head_bias": rules.flag(family.lm_head_bias),
        "mlp_gated": family.gated_mlp,
        "norm_bias": family.layer_norm,
        "norms_per_layer": family.norms_per_layer,
        "qk_norm": normed,
        "qk_norm_whole": normed and family.qk_norm == "whole",
        "qk_norm_weightless": normed and family.qk_norm == "weightless",
        "attention_gate": rules.flag(family.attention_gate),
        "attention_sinks": family.attention_sinks,
    }


def _head_dim(read: Reader, hidden: int, heads: int) -> int:
    if read.present("head_dim"):
        return read.count("head_dim")
    if hidden % heads:
        raise InputError(
            f'{read.source}: field "head_dim" is missing and hidden_size {hidden} is not a multiple of'
            f" num_attention_heads {heads}; give head_dim"
        )
    return hidden // heads


def _dtype(read: Reader, notes: list[str]) -> str:
    """transformers writes `torch_dtype` up to version 4 and `dtype` from version 5."""
    key = next((key for key in ("torch_dtype", "dtype") if read.present(key)), None)
    if key is None:
        notes.append(f"{read.source} gives no torch_dtype: bfloat16 is assumed")
        return "bf16"
    try:
        dtype = short_dtype(read.text(key))
    except InputError as error:
        raise InputError(f'{read.source}: field "{key}": {error}') from error
    if dtype not in ("bf16", "fp16", "fp32"):
        raise InputError(f'{read.source}: field "{key}" is "{dtype}"; it must be bfloat16, float16 or float32')
    return dtype


def _context_tokens(read: Reader, family: Family) -> int:
    """The longest context, as vLLM derives it: RoPE scaling extends it except where the field already counts it."""
    positions = read.count("max_position_embeddings")
    rope = read.table("rope_scaling") or read.table("rope_parameters")
    if rope is None or "factor" not in rope.fields or family.context_scaled:
        return positions
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind in SCALED_KINDS:
        return positions
    factor = rope.fields["factor"]
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= MAX_EXPERTS:
        raise InputError(f'{rope.source}: field "factor" is {shown(factor)}; it must be a number >= 1')
    return int(rope.count("original_max_position_embeddings", default=positions) * factor)


def _layer_kinds(rules: Rules, family: Family, layers: int, positions: int) -> tuple[tuple[LayerKind, ...], int]:
    """What each layer attends to, and the window; a window no narrower than the longest context changes nothing."""
    read, how = rules.read, family.layers
    window = rules.optional(how.window) if how is not None and rules.flag(how.enabled) else 0
    if how is None:
        _refuse_windows(read, family, positions)
        return (), 0
    kinds = _listed_kinds(read, family, layers)
    if not kinds:
        every, first_full = rules.optional(how.every), rules.optional(how.first_full)
        kinds = [how.kind if every and (i + 1) % every == 0 else how.rest for i in range(layers)]
        flags = read.fields.get(how.flags) if how.flags else None
        if isinstance(flags, list) and len(flags) == layers:
            kinds = [how.rest if flag else how.kind for flag in flags]
        kinds = ["full" if i < first_full else kind for i, kind in enumerate(kinds)]
    local = window if 0 < window < positions else 0
    seen = tuple(kind if local or kind not in ("sliding", "chunked") else "full" for kind in kinds)
    used = local if any(kind in ("sliding", "chunked") for kind in seen) else 0
    return (() if all(kind == "full" for kind in seen) else seen), used


def _listed_kinds(read: Reader, family: Family, layers: int) -> list[LayerKind]:
    how = family.layers
    assert how is not None
    listed = read.fields.get(how.field) or []
    if not isinstance(listed, list) or (listed and len(listed) != layers):
        raise InputError(
            f'{read.source}: field "{how.field}" must be a list with one entry for each of {layers} layers'
        )
    for kind in listed:
        if not isinstance(kind, str) or kind not in how.names:
            raise NotYetError(
                f'{read.source}: field "{how.field}" holds {shown(kind)}; {family.path} knows {", ".join(how.names)}'
            )
    return [how.names[kind] for kind in listed]


def _refuse_windows(read: Reader, family: Family, positions: int) -> None:
    kinds = read.fields.get("layer_types") or []
    other = next((kind for kind in kinds if kind != "full_attention"), None) if isinstance(kinds, list) else kinds
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
            f'{read.source}: field "sliding_window" is {window}, shorter than max_position_embeddings {positions}, and'
            f" {family.path} does not say which layers it holds for; set it to null to simulate full attention"
        )


def _latent(rules: Rules, family: Family) -> LatentAttention | None:
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


def _linear(rules: Rules, family: Family) -> LinearAttention:
    how = family.linear
    if how is None:
        raise InputError(f'{family.path}: layers may be "linear", but "linear" does not say their shape')
    linear = LinearAttention(
        key_heads=rules.count(how.key_heads),
        key_dim=rules.count(how.key_dim),
        value_heads=rules.count(how.value_heads),
        value_dim=rules.count(how.value_dim),
        conv_kernel=rules.count(how.conv_kernel),
    )
    if linear.value_heads % linear.key_heads:
        raise InputError(
            f"{rules.read.source}: {linear.value_heads} value heads of the linear layers are not a multiple of their"
            f" {linear.key_heads} key heads"
        )
    return linear


def _moe_fields(rules: Rules, family: Family, layers: int) -> dict[str, Any]:
    """The experts, and which layers have them."""
    how, read = family.experts, rules.read
    if how is None:
        return {"moe_layers": (False,) * layers}
    experts = rules.count(how.experts, most=MAX_EXPERTS)
    topk = rules.count(how.topk)
    if topk > experts:
        raise InputError(f'{read.source}: field "num_experts_per_tok" is {topk}, more than the {experts} experts')
    first, step = rules.optional(how.first), rules.optional(how.step) or 1
    dense = set(read.counts(how.dense)) if how.dense else set()
    sparse = tuple(i >= first and i not in dense and (i + how.phase) % step == 0 for i in range(layers))
    if how.listed and read.present(how.listed):
        listed = set(read.counts(how.listed))
        sparse = tuple(i in listed for i in range(layers))
    shared = rules.optional(how.shared_width) if how.shared_width else 0
    count = rules.optional(how.shared_count) if shared else 0
    return {
        "moe_layers": sparse,
        "num_experts": experts if any(sparse) else 0,
        "num_experts_per_tok": topk if any(sparse) else 0,
        "moe_intermediate_size": rules.count(how.width),
        "num_shared_experts": count if any(sparse) else 0,
        "shared_expert_intermediate_size": shared * count if any(sparse) else 0,
        "shared_expert_gate": how.shared_gate and shared * count > 0 and any(sparse),
        "router_bias": rules.flag(how.router_bias),
        "expert_bias": how.expert_bias,
    }

"""Reads a Hugging Face config.json, unchanged, into a ModelConfig, by the description of its
family.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from llmsim.config.errors import InputError, NotYetError
from llmsim.model.dtypes import short_dtype
from llmsim.model.families.family import Family, find_family
from llmsim.model.families.family_rules import Rules
from llmsim.model.families.fields import MAX_EXPERTS, MAX_LAYERS, Fields, Reader, shown
from llmsim.model.families.hf_blocks import with_lists
from llmsim.model.families.hf_layers import compressed as pooled
from llmsim.model.families.hf_layers import (
    hashed_layers,
    hyper,
    latent,
    layer_inputs,
    layer_kinds,
    layers_with_ffn,
    linear,
    listed_layers,
    moe_fields,
    named_kinds,
    residual_sources,
    sparse,
)
from llmsim.model.families.hf_shapes import read_shapes
from llmsim.model.families.quantization import read_quantization
from llmsim.model.families.quantized_modules import layers_of_parts
from llmsim.model.families.vision_tower import counted, vision_tower
from llmsim.model.types import ModelConfig
from llmsim.model.vision import VisionTower

UNSUPPORTED_FIELDS: Mapping[str, str] = {
    "audio_config": "audio input",
    "is_encoder_decoder": "an encoder",
    "use_cla": "keys and values that layers share",
}
"""What no family description can say yet."""
SPOKEN_OF: tuple[tuple[str, str, str], ...] = (
    ("num_kv_shared_layers", "kv_sharing", "keys and values that layers share"),
    ("num_global_key_value_heads", "shapes", "other head shapes in some layers"),
    ("global_head_dim", "shapes", "other head shapes in some layers"),
    ("swa_num_attention_heads", "shapes", "other head shapes in some layers"),
    ("swa_head_dim", "shapes", "other head shapes in some layers"),
    ("hidden_size_per_layer_input", "layer_inputs", "embeddings that every layer gets"),
)
"""(config field, rule of a description, what it asks for): a field of weight that a family leaves
at its default does not speak of.
"""
FEATURES: tuple[tuple[str, str, str], ...] = (
    ("kv_lora_rank", "latent", "multi-head latent attention (MLA)"),
    ("q_lora_rank", "latent|compressed", "multi-head latent attention (MLA)"),
    ("linear_num_key_heads", "linear", "linear attention"),
    ("linear_num_value_heads", "linear", "linear attention"),
    ("full_attention_interval", "linear", "linear attention"),
    ("linear_attn_config", "linear", "linear attention"),
    ("attn_layer_period", "linear", "state-space layers"),
    ("index_topk", "indexer", "sparse attention"),
    ("ssm_state_size", "linear", "state-space layers"),
    ("mamba_d_state", "linear", "state-space layers"),
    ("hybrid_override_pattern", "linear", "state-space layers"),
    ("num_local_experts", "experts", "a mixture of experts"),
    ("num_experts", "experts", "a mixture of experts"),
    ("n_routed_experts", "experts", "a mixture of experts"),
    ("n_shared_experts", "experts", "shared experts"),
    ("attention_chunk_size", "layers", "chunked local attention"),
)
"""(config field, part of a description or one of several, what it asks for): a field of weight that
a family does not speak of.
"""
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""What wrappers call the config of their text part, which may be a wrapper itself."""
SHARED_FIELDS = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
"""Fields of a wrapper's own config that hold for its text part."""
SCALED_KINDS = ("default", "llama3", "longrope", "su", "mrope", "proportional")
"""RoPE scalings whose max_position_embeddings is already the extended one."""


def parse_config(
    fields: Fields, *, name: str, source: str, folder: Path | None = None
) -> ModelConfig:
    """A ModelConfig from the object of a config.json.

    `source` is the file that errors name, `folder` where a `family.json` may lie. Of a
    vision-language wrapper (`text_config`) the text part is read. Raises InputError (missing, wrong
    type, impossible) or NotYetError (a family or feature that is not described), one sentence with
    the field.
    """
    notes: list[str] = []
    multimodal: list[str] = []
    read = with_lists(_text_part(Reader(fields, source), multimodal))
    for key, feature in UNSUPPORTED_FIELDS.items():
        if read.fields.get(key):
            raise NotYetError(
                f'{read.source}: field "{key}" asks for {feature}, which this version does not run'
            )
    family = find_family(read, folder)
    read = _completed(read, family, multimodal)
    _check_features(read, family)
    names = fields.get("architectures")
    architectures = tuple(str(one) for one in names) if isinstance(names, list) else ()
    vision = vision_tower(fields, read.count("hidden_size"), source) if multimodal else None
    notes += [_text_alone(where, vision) for where in multimodal]
    model = _model(read, family, name, source, [*notes, *family.notes])
    return replace(model, architectures=architectures, vision=vision)


def _text_part(read: Reader, multimodal: list[str]) -> Reader:
    """The language model inside its wrappers; the fields that hold for all of it come from
    outside. Where there are encoders, the place of the text part is added to `multimodal`.
    """
    encoders = False
    while part := next((part for part in TEXT_PARTS if read.present(part)), None):
        inner = read.table(part)
        if inner is None:
            break
        encoders |= bool(read.fields.get("vision_config") or read.fields.get("audio_config"))
        outer = {key: read.fields[key] for key in SHARED_FIELDS if read.present(key)}
        model_type = inner.fields.get("model_type", read.fields.get("model_type"))
        source = f"{read.source}: {part}"
        read = Reader({**outer, **inner.fields, "model_type": model_type}, source)
    if encoders:
        multimodal.append(read.source)
    return read


def _text_alone(where: str, vision: VisionTower | None) -> str:
    return f"{where} is a multimodal model: its text part is simulated; {counted(vision)}"


def _completed(read: Reader, family: Family, multimodal: list[str]) -> Reader:
    """The config with the names that other families have for its fields, with the family's
    defaults, and with the fields of its objects by both names, such as "rope_parameters.factor".

    NotYetError where it has encoders that the description does not speak of.
    """
    if read.fields.get("vision_config"):
        if not family.multimodal:
            raise NotYetError(
                f'{read.source}: field "vision_config" asks for multimodal input in a form '
                'without "text_config", which'
                " this version does not run"
            )
        multimodal.append(read.source)
    given = {key: value for key, value in read.fields.items() if value is not None}
    named = {name: given[other] for name, other in family.renamed.items() if other in given}
    inner = {
        f"{outer}.{key}": value
        for outer, fields in given.items()
        if isinstance(fields, dict)
        for key, value in fields.items()
        if value is not None
    }
    read = Reader({**family.defaults, **named, **given, **inner}, read.source)
    for field, rule in family.expects.items():
        Rules(read).expects(field, rule, family.path)
    return read


def _check_features(read: Reader, family: Family) -> None:
    """A field that changes the model, in a family whose description does not speak of it, is never
    ignored.
    """
    for key, part, feature in FEATURES:
        described = any(getattr(family, one) is not None for one in part.split("|"))
        if read.fields.get(key) and not described:
            raise NotYetError(
                f'{read.source}: field "{key}" asks for {feature}, which the family '
                f'"{read.text("model_type")}" does'
                f" not have in {family.path}; describe it there or in a family.json"
            )
    for key, rule, feature in SPOKEN_OF:
        if read.fields.get(key) and not getattr(family, rule):
            raise NotYetError(
                f'{read.source}: field "{key}" asks for {feature}, which the family '
                f'"{read.text("model_type")}" does not have in {family.path}; describe it there '
                "or in a family.json"
            )
    if read.fields.get("moe_latent_size") and (
        family.experts is None or family.experts.latent == 0
    ):
        raise NotYetError(
            f'{read.source}: field "moe_latent_size" asks for experts in a latent space, which '
            f"{family.path} does not"
            " have; describe them there or in a family.json"
        )
    shared = read.fields.get("shared_expert_intermediate_size")
    if shared and family.experts is not None and family.experts.shared_width == 0:
        raise NotYetError(
            f'{read.source}: field "shared_expert_intermediate_size" asks for shared experts, '
            f"which {family.path} does"
            " not have; describe them there or in a family.json"
        )


def _model(read: Reader, family: Family, name: str, source: str, notes: list[str]) -> ModelConfig:
    rules = Rules(read)
    compressed = latent(rules, family)
    layers = read.count("num_hidden_layers", default=listed_layers(read, family), most=MAX_LAYERS)
    layers *= family.sublayers
    dtype = _dtype(read, notes)
    positions = _context_tokens(read, family)
    named = named_kinds(rules, family, layers)
    kinds, window = layer_kinds(rules, family, named, positions)
    shapes = read_shapes(rules, family, named, compressed)
    model = ModelConfig(
        name=name,
        model_type=read.text("model_type"),
        hidden_size=read.count("hidden_size"),
        num_layers=layers,
        num_attention_heads=shapes.first.heads,
        num_key_value_heads=shapes.first.kv_heads,
        head_dim=shapes.first.key_dim,
        intermediate_size=shapes.width,
        **shapes.fields,
        vocab_size=read.count("vocab_size"),
        max_position_embeddings=positions,
        dtype=dtype,
        weight_dtype=dtype,
        tie_word_embeddings=read.flag("tie_word_embeddings", family.tie_word_embeddings),
        layer_kinds=kinds,
        window=window,
        latent=compressed,
        compressed=pooled(rules, family),
        hyper=hyper(rules, family),
        residual_sources=residual_sources(rules, family, layers),
        hashed_layers=hashed_layers(rules, family, layers),
        layer_inputs=layer_inputs(rules, family, layers),
        sublayers=family.sublayers,
        **sparse(rules, family, named),
        layers_with_ffn=layers_with_ffn(read, family, kinds),
        linear=linear(rules, family) if {"linear", "both"} & {*kinds} else None,
        family=family.path,
        source=source,
        notes=tuple(notes),
        **_details(rules, family),
        **moe_fields(rules, family, layers),
    )
    if family.kv_cache_dtype:
        model = replace(model, kv_cache_dtype=family.kv_cache_dtype)
    return _quantised(read, model)


def _quantised(read: Reader, model: ModelConfig) -> ModelConfig:
    """The model with its weights as the checkpoint stores them."""
    found = read_quantization(read, model.dtype, layers_of_parts(model))
    return replace(
        model,
        weight_dtype=found.weight_dtype,
        weight_block=found.block,
        scale_bits=found.scale_bits,
        fixed_input_scales=found.fixed_input_scales,
        plain_parts=found.plain_parts,
        part_formats=found.part_formats,
        kv_cache_dtype=found.kv_cache_dtype or model.kv_cache_dtype,
        notes=(*model.notes, *found.notes),
    )


def _details(rules: Rules, family: Family) -> dict[str, Any]:
    """Which projections and norms carry a bias, and the smaller things that change a
    layer's shape.
    """
    normed = family.qk_norm != "none" and rules.flag(family.qk_norm_if)
    return {
        "attention_bias": rules.flag(family.qkv_bias),
        "o_proj_bias": rules.flag(family.o_bias),
        "mlp_bias": rules.flag(family.mlp_bias),
        "lm_head_bias": rules.flag(family.lm_head_bias),
        "mlp_gated": family.gated_mlp,
        "layer_norm": family.layer_norm,
        "norm_bias": family.layer_norm and rules.flag(family.norm_bias),
        "norm_weight": rules.flag(family.norm_weight),
        "embedding_norm": family.embedding_norm,
        "norms_per_layer": _norms(rules, family),
        "parallel": rules.flag(family.parallel),
        "one_sum": family.one_sum and rules.flag(family.parallel),
        "rotary": rules.flag(family.rotary),
        "position_rows": rows + family.position_offset
        if (rows := rules.optional(family.position_rows))
        else 0,
        "qk_norm": normed,
        "value_norm": family.value_norm,
        "qk_norm_whole": normed and family.qk_norm == "whole",
        "qk_norm_weightless": normed and family.qk_norm == "weightless",
        "attention_gate": rules.flag(family.attention_gate),
        "query_rank": rules.optional(family.query_rank),
        "attention_sinks": family.attention_sinks,
    }


def _norms(rules: Rules, family: Family) -> int:
    norms = rules.count(family.norms_per_layer)
    if norms not in (1, 2, 4):
        raise InputError(
            f"{family.path}: norms_per_layer gives {norms} for {rules.read.source}; it may be 1, "
            "2 or 4"
        )
    return norms


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
        raise InputError(
            f'{read.source}: field "{key}" is "{dtype}"; it must be bfloat16, float16 or float32'
        )
    return dtype


def _context_tokens(read: Reader, family: Family) -> int:
    """The longest context, as vLLM derives it: RoPE scaling extends it except where the field
    already counts it.
    """
    positions = read.count("max_position_embeddings")
    rope = read.table("rope_scaling") or read.table("rope_parameters")
    if rope is None or "factor" not in rope.fields or family.context_scaled:
        return positions
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind in SCALED_KINDS:
        return positions
    factor = rope.fields["factor"]
    if (
        isinstance(factor, bool)
        or not isinstance(factor, int | float)
        or not 1 <= factor <= MAX_EXPERTS
    ):
        raise InputError(
            f'{rope.source}: field "factor" is {shown(factor)}; it must be a number >= 1'
        )
    return int(rope.count("original_max_position_embeddings", default=positions) * factor)

"""Reads a Hugging Face config.json, unchanged, into a ModelConfig; what this version cannot run is refused by field."""

from collections.abc import Mapping
from typing import Any

from llmsim.config.errors import InputError, NotYetError, nearest
from llmsim.model.types import ModelConfig, short_dtype

Fields = Mapping[str, Any]

SUPPORTED_TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "phimoe")
MOE_TYPES = ("qwen3_moe", "mixtral", "phimoe")
MAX_SHOWN = 60
MAX_COUNT = 1 << 24
MAX_LAYERS = 10_000
MAX_EXPERTS = 1 << 16
"""No published dimension comes near these; far beyond them byte counts would leave int64."""

UNSUPPORTED_FIELDS: Mapping[str, str] = {
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "q_lora_rank": "multi-head latent attention (MLA)",
    "linear_num_key_heads": "linear attention",
    "linear_num_value_heads": "linear attention",
    "linear_attn_config": "linear attention",
    "full_attention_interval": "linear attention",
    "attn_layer_period": "state-space layers",
    "ssm_state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "vision_config": "multimodal input",
    "audio_config": "multimodal input",
    "text_config": "multimodal input",
    "n_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "shared experts",
    "attention_chunk_size": "chunked local attention",
}
QUANT_DTYPES: Mapping[str, str] = {"fp8": "fp8", "fbgemm_fp8": "fp8", "int8": "int8"}


class Reader:
    """Typed access to the fields of one config.json; every error names file and field. Read only."""

    def __init__(self, fields: Fields, source: str) -> None:
        self.fields = fields
        self.source = source

    def present(self, key: str) -> bool:
        """The field is there and not null."""
        return self.fields.get(key) is not None

    def count(self, *keys: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """The first present of `keys` as an integer in [1, most]; `default` if none is, InputError without one."""
        key = next((key for key in keys if self.present(key)), None)
        if key is None:
            if default is not None:
                return default
            close = nearest(keys[0], self.fields)
            raise InputError(f'{self.source}: field "{keys[0]}" is missing{close}; it must be an integer >= 1')
        value = self.fields[key]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InputError(f'{self.source}: field "{key}" is {_short(value)}; it must be an integer from 1 to {most}')
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean field."""
        value = self.fields[key] if self.present(key) else default
        if not isinstance(value, bool):
            raise InputError(f'{self.source}: field "{key}" is {_short(value)}; it must be true or false')
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string field."""
        value = self.fields[key] if self.present(key) else default
        if value is None:
            raise InputError(f'{self.source}: field "{key}" is missing{nearest(key, self.fields)}; it must be a string')
        if not isinstance(value, str):
            raise InputError(f'{self.source}: field "{key}" is {_short(value)}; it must be a string')
        return value

    def table(self, key: str) -> "Reader | None":
        """A nested object; None if absent."""
        if not self.present(key):
            return None
        value = self.fields[key]
        if not isinstance(value, dict):
            raise InputError(f'{self.source}: field "{key}" is {_short(value)}; it must be an object')
        return Reader(value, f"{self.source}: {key}")

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of integers >= 0; empty if absent."""
        value = self.fields[key] if self.present(key) else []
        if not isinstance(value, list) or any(isinstance(x, bool) or not isinstance(x, int) or x < 0 for x in value):
            raise InputError(f'{self.source}: field "{key}" is {_short(value)}; it must be a list of integers >= 0')
        return tuple(value)


def _short(value: object) -> str:
    """A value as an error shows it: never a screenful."""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a number beyond 64 bits"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def parse_config(fields: Fields, *, name: str, source: str) -> ModelConfig:
    """A ModelConfig from the object of a config.json.

    `source` is the file that errors name. Raises InputError (missing, wrong type, impossible) or NotYetError (a family
    or feature that this version does not run), one sentence with the field.
    """
    read = Reader(fields, source)
    model_type = _supported_type(read)
    heads = read.count("num_attention_heads")
    hidden = read.count("hidden_size")
    kv_heads = read.count("num_key_value_heads", default=heads)
    head_dim = _head_dim(read, hidden, heads)
    if heads % kv_heads:
        raise InputError(
            f"{source}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads};"
            " every KV head must serve the same number of heads"
        )
    layers = read.count("num_hidden_layers", most=MAX_LAYERS)
    notes: list[str] = []
    dtype = _dtype(read, notes)
    positions = _context_tokens(read)
    _check_window(read, positions)
    weight_dtype, block = _quantization(read, dtype)
    moe = _moe_fields(read, model_type, layers)
    return ModelConfig(
        name=name,
        model_type=model_type,
        hidden_size=hidden,
        num_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=read.count("intermediate_size", "ffn_dim"),
        vocab_size=read.count("vocab_size"),
        max_position_embeddings=positions,
        dtype=dtype,
        weight_dtype=weight_dtype,
        weight_block=block,
        tie_word_embeddings=read.flag("tie_word_embeddings", False),
        mlp_bias=read.flag("mlp_bias", False),
        source=source,
        notes=tuple(notes),
        **_biases(read, model_type),
        **moe,
    )


def _supported_type(read: Reader) -> str:
    model_type = read.text("model_type")
    for key, feature in UNSUPPORTED_FIELDS.items():
        if read.fields.get(key):
            raise NotYetError(
                f'{read.source}: field "{key}" asks for {feature}, which this version does not run;'
                f" it runs {', '.join(SUPPORTED_TYPES)} without it"
            )
    if model_type not in SUPPORTED_TYPES:
        raise NotYetError(
            f'{read.source}: field "model_type" is {_short(model_type)}, a family that this'
            f" version does not run; it runs {', '.join(SUPPORTED_TYPES)}"
        )
    return model_type


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


def _context_tokens(read: Reader) -> int:
    """The longest context, as vLLM derives it: RoPE scaling extends it except where the field already counts it."""
    positions = read.count("max_position_embeddings")
    rope = read.table("rope_scaling") or read.table("rope_parameters")
    if rope is None or "factor" not in rope.fields:
        return positions
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind in ("default", "llama3", "longrope", "su", "mrope"):
        return positions
    factor = rope.fields["factor"]
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= MAX_EXPERTS:
        raise InputError(f'{rope.source}: field "factor" is {_short(factor)}; it must be a number >= 1')
    return int(rope.count("original_max_position_embeddings", default=positions) * factor)


def _check_window(read: Reader, positions: int) -> None:
    """A window no narrower than the longest context changes nothing; Qwen states one and switches it off."""
    kinds = read.fields.get("layer_types") or []
    other = next((kind for kind in kinds if kind != "full_attention"), None) if isinstance(kinds, list) else kinds
    if other is not None:
        raise NotYetError(
            f'{read.source}: field "layer_types" holds {_short(other)}; this version runs "full_attention" layers only'
        )
    if not read.fields.get("sliding_window") or not read.flag("use_sliding_window", True):
        return
    window = read.count("sliding_window")
    if window < positions:
        raise NotYetError(
            f'{read.source}: field "sliding_window" is {window}, shorter than max_position_embeddings {positions}, and'
            " sliding-window attention does not run in this version; set it to null to simulate full attention"
        )


def _quantization(read: Reader, dtype: str) -> tuple[str, tuple[int, int] | None]:
    """Weight dtype and scale block of the linear layers; only 8-bit methods that vLLM runs as such."""
    config = read.table("quantization_config")
    if config is None:
        return dtype, None
    method = config.text("quant_method")
    if method not in QUANT_DTYPES:
        raise NotYetError(
            f'{config.source}: field "quant_method" is {_short(method)}, which this version does'
            f" not run; it runs {', '.join(QUANT_DTYPES)}"
        )
    block = config.counts("weight_block_size")
    if not block:
        return QUANT_DTYPES[method], None
    if len(block) != len(("rows", "columns")) or 0 in block:
        raise InputError(f'{config.source}: field "weight_block_size" is {list(block)}; it must be two integers >= 1')
    return QUANT_DTYPES[method], (block[0], block[1])


def _moe_fields(read: Reader, model_type: str, layers: int) -> dict[str, Any]:
    """Mixtral and PhiMoE: every layer, `intermediate_size` is an expert's; Qwen3-MoE: a sparse step and exceptions."""
    if model_type not in MOE_TYPES:
        return {"moe_layers": (False,) * layers}
    experts = read.count("num_local_experts", "num_experts", most=MAX_EXPERTS)
    topk = read.count("num_experts_per_tok")
    if topk > experts:
        raise InputError(f'{read.source}: field "num_experts_per_tok" is {topk}, more than the {experts} experts')
    width_keys = ("moe_intermediate_size",) if model_type == "qwen3_moe" else ("intermediate_size",)
    dense = set(read.counts("mlp_only_layers"))
    step = read.count("decoder_sparse_step", default=1)
    # As transformers decides: layer i is sparse when (i + 1) % decoder_sparse_step == 0 and it is not listed as dense.
    return {
        "moe_layers": tuple(i not in dense and (i + 1) % step == 0 for i in range(layers)),
        "num_experts": experts,
        "num_experts_per_tok": topk,
        "moe_intermediate_size": read.count(*width_keys),
    }


def _biases(read: Reader, model_type: str) -> dict[str, Any]:
    """Which projections and norms carry a bias, by family (vLLM's model files).

    Qwen2 always has it on qkv; `attention_bias` puts it on qkv, and in Llama and PhiMoE on o_proj too. PhiMoE's norms
    are LayerNorms, with a bias.
    """
    bias = model_type == "qwen2" or read.flag("attention_bias", False)
    return {
        "attention_bias": bias,
        "o_proj_bias": bias and model_type in ("llama", "phimoe"),
        "qk_norm": model_type in ("qwen3", "qwen3_moe"),
        "norm_bias": model_type == "phimoe",
        "lm_head_bias": model_type == "phimoe" and read.flag("lm_head_bias", False),
    }

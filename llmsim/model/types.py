"""The nouns of a model and its device: what the weights look like, how they are split, what runs, on which silicon."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from llmsim.config.errors import InputError, nearest

Kind = Literal["gemm", "attention", "elementwise", "moe", "embedding", "sampler", "collective"]
Feature = Literal["tokens", "sequences", "attention", "gathered"]
Part = Literal["prologue", "layer", "head"]
PowerClass = Literal["compute", "memory", "link"]
Collective = Literal["", "all_reduce", "all_gather"]

DTYPES: Mapping[str, Fraction] = {
    "fp32": Fraction(4),
    "bf16": Fraction(2),
    "fp16": Fraction(2),
    "fp8": Fraction(1),
    "int8": Fraction(1),
}
"""Bytes per element of the dtypes by their short names."""

DTYPE_ALIASES: Mapping[str, str] = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def short_dtype(name: str) -> str:
    """The short name ("bf16") of a dtype as vLLM, torch or this package spell it; InputError if unknown."""
    word = name.lower().removeprefix("torch.")
    word = DTYPE_ALIASES.get(word, word)
    if word not in DTYPES:
        known = [*DTYPES, *DTYPE_ALIASES]
        raise InputError(f'unknown dtype "{name}"{nearest(word, known)}; known: {", ".join(known)}')
    return word


def dtype_bytes(name: str) -> int | Fraction:
    """Bytes per element of a dtype (short or long name); a Fraction only below one byte; InputError if unknown."""
    size = DTYPES[short_dtype(name)]
    return int(size) if size.denominator == 1 else size


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer, as its config.json states it; immutable, counts are per whole model."""

    name: str
    model_type: str
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    dtype: str
    """Activations, norms, embeddings, lm_head and router: "bf16", "fp16" or "fp32"."""
    weight_dtype: str
    """The linear layers' weights: as `dtype` unless the config carries a quantization_config."""
    tie_word_embeddings: bool
    qk_norm: bool
    attention_bias: bool
    """The fused qkv projection has a bias."""
    moe_layers: tuple[bool, ...]
    """One entry per layer: True where the MLP is a mixture of experts."""
    source: str
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    num_shared_experts: int = 0
    shared_expert_intermediate_size: int = 0
    o_proj_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    """LayerNorm (weight and bias) instead of RMSNorm (weight only)."""
    lm_head_bias: bool = False
    weight_block: tuple[int, int] | None = None
    """Rows and columns that share one fp32 scale in block-quantised weights; None: scales are negligible."""
    notes: tuple[str, ...] = ()
    """What the loader assumed where the config.json was silent; one sentence each, for the user."""

    @property
    def num_moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return sum(self.moe_layers)


@dataclass(frozen=True)
class Layout:
    """How one model replica is split: `tp` ranks, of which the experts are spread over `ep` (1: every rank has all)."""

    tp: int = 1
    ep: int = 1


@dataclass(frozen=True)
class Dtypes:
    """Element types of one deployment (short or long names): linear weights, activations, KV cache."""

    weight: str = "bf16"
    activation: str = "bf16"
    kv: str = "bf16"


@dataclass(frozen=True)
class Operator:
    """One kernel of an iteration on one tensor-parallel rank; executed `repeat` times per step.

    All sizes are per rank. "per token" means per unit of `feature`: a scheduled token for "tokens" and "attention", a
    scheduled sequence for "sequences". Bytes are what an ideal cache would move: inputs once, outputs once; weights are
    in `weight_bytes` (per execution) and never in `read_bytes_per_token`.
    """

    name: str
    kind: Kind
    feature: Feature
    part: Part
    repeat: int
    power_class: PowerClass
    gemm_n: int = 0
    """Output width; the GEMM is (tokens or sequences) x gemm_k by gemm_k x gemm_n; 0 where the operator is no GEMM."""
    gemm_k: int = 0
    heads: int = 0
    kv_heads: int = 0
    """Replicated: at least 1, also when tp exceeds the model's KV heads."""
    head_dim: int = 0
    experts_total: int = 0
    experts_local: int = 0
    topk: int = 0
    moe_inter: int = 0
    """Width of one expert on this rank."""
    hidden: int = 0
    weight_dtype: str = ""
    """Of this operator's weights ("" if it has none): router and lm_head stay 16 bit in a quantised model."""
    weight_bytes: int = 0
    read_bytes_per_token: int = 0
    write_bytes_per_token: int = 0
    flops_per_token: int = 0
    """2 per multiply-add. Attention: 0, see `flops_per_context_token`."""
    collective: Collective = ""
    collective_bytes_per_token: int = 0
    """Size of the full tensor that is reduced or gathered, per token or sequence."""
    kv_bytes_per_context_token: int = 0
    """Attention only: K and V bytes read for every cached token that a sequence attends to."""
    flops_per_context_token: int = 0
    """Attention only: for each (new token, attended token) pair."""


@dataclass(frozen=True)
class Hardware:
    """A device's data sheet; a number's origin is in `sources` under its field name, else in `source`."""

    name: str
    vendor: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: int
    flops: Mapping[str, int]
    """Dense peak flop/s (op/s for int8) by short dtype name; absent: the device has no such units."""
    last_level_cache_bytes: int
    num_sms: int
    """Streaming multiprocessors, compute units, or tensor cores of a TPU chip."""
    silicon_system: str | None
    """Folder of the device in aiconfigurator-core's database; None: not measured there."""
    attention_kernel: str
    """What vLLM picks by default: "fa2", "fa3", "flashinfer", "triton", "pallas"."""
    tdp_w: int | None
    """None: not published."""
    intra_node_link_bytes_per_s: int
    """One direction, per device, to its peers in the node (NVLink, xGMI, ICI, else PCIe)."""
    source: str
    decode_skew_stream_bytes_per_s: int | None = None
    """Speed at which one thread block streams the KV of one head; prices the longest sequence of a decode batch."""
    l2_bandwidth_bytes_per_s: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name -> origin, for the fields whose number does not come from `source`; always for measured constants."""


def resolve_dtypes(model: ModelConfig, dtype: str | None = None, kv_cache_dtype: str = "auto") -> Dtypes:
    """The element types of a deployment from the engine's `dtype` (None or "auto": the model's) and `kv_cache_dtype`.

    A 16- or 32-bit dtype is the activations'; the linear weights follow unless the checkpoint is quantised. "fp8" and
    "int8" quantise the linear weights and leave the rest as the model has it. KV "auto" is the activations' dtype.
    Raises InputError for an unknown name.
    """
    wanted = model.dtype if dtype in (None, "auto") else short_dtype(str(dtype))
    weight, activation = model.weight_dtype, wanted
    if wanted in ("fp8", "int8"):
        weight, activation = wanted, model.dtype
    elif model.weight_dtype == model.dtype:
        weight = wanted
    kv = activation if kv_cache_dtype == "auto" else short_dtype(kv_cache_dtype)
    return Dtypes(weight=weight, activation=activation, kv=kv)

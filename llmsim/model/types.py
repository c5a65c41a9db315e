"""The nouns of a model and its device: what the weights look like, how they are split, what runs, on which silicon."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llmsim.model.dtypes import short_dtype

Kind = Literal["gemm", "attention", "linear_attention", "elementwise", "moe", "embedding", "sampler", "collective"]
Feature = Literal["tokens", "sequences", "attention", "gathered"]
Part = Literal["prologue", "layer", "head"]
PowerClass = Literal["compute", "memory", "link"]
Collective = Literal["", "all_reduce", "all_gather", "reduce_scatter", "send"]
LayerKind = Literal["full", "sliding", "chunked", "linear"]
"""What a layer attends to: everything before, the last `window` tokens, its own `window`-aligned chunk, or a state."""
LAYER_KINDS: tuple[LayerKind, ...] = ("full", "sliding", "chunked", "linear")


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): widths in elements."""

    q_rank: int
    """Rank of the compressed query; 0: queries come straight from the hidden state."""
    kv_rank: int
    nope_dim: int
    """Of one query or key head, without the rotated part."""
    rope_dim: int
    """Of one query head, and of the one key part that all heads share."""
    v_dim: int

    @property
    def cached_width(self) -> int:
        """Elements that one token leaves in the cache of one layer, for all heads together."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True)
class LinearAttention:
    """A gated delta net (arXiv 2412.06464) as Qwen3-Next has it: heads and their sizes, and the causal convolution."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_kernel: int

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values pass through the convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def state_bytes(self, state_size: int, conv_size: int) -> int:
        """Of one sequence in one layer: a key x value matrix per value head, and the convolution's last inputs."""
        matrix = self.value_heads * self.key_dim * self.value_dim * state_size
        return matrix + (self.conv_kernel - 1) * self.conv_channels * conv_size


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
    """Rows and columns that share one scale in block-quantised weights; None: scales are negligible."""
    scale_bits: int = 32
    """Bits of one block's scale (and zero point); fp32 in block fp8, 8 in MXFP4 and NVFP4."""
    plain_parts: frozenset[str] = frozenset()
    """Of "attention", "mlp", "shared" and "experts": what a quantised checkpoint leaves in `dtype`."""
    layer_kinds: tuple[LayerKind, ...] = ()
    """What each layer attends to; empty: everything, in all of them."""
    window: int = 0
    """Tokens that "sliding" and "chunked" layers see; 0 where there are none."""
    latent: LatentAttention | None = None
    linear: LinearAttention | None = None
    """Shape of the "linear" layers."""
    attention_gate: bool = False
    """The query projection has a second half that gates the attention's output."""
    attention_sinks: bool = False
    """One learned logit per query head."""
    qk_norm_whole: bool = False
    """The norm of queries and keys has a weight for every element of all heads, not one head's."""
    qk_norm_weightless: bool = False
    norms_per_layer: int = 2
    """4: also behind attention and MLP (Gemma 2 and 3)."""
    mlp_gated: bool = True
    """gate_up and down; False: up and down."""
    router_bias: bool = False
    expert_bias: bool = False
    shared_expert_gate: bool = False
    kv_cache_dtype: str = ""
    """Of the KV cache, where the checkpoint says so ("auto" takes it); "": as `dtype`."""
    family: str = ""
    """The file of llmsim/presets/families (or of the user) that described it."""
    notes: tuple[str, ...] = ()
    """What the loader assumed where the config.json was silent; one sentence each, for the user."""

    @property
    def num_moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return sum(self.moe_layers)

    def layers_of(self, kind: LayerKind) -> int:
        """Layers that attend in this way."""
        return self.layer_kinds.count(kind) if self.layer_kinds else self.num_layers * (kind == "full")

    @property
    def softmax_layers(self) -> int:
        """Layers that keep keys and values of single tokens."""
        return self.num_layers - self.layers_of("linear")


@dataclass(frozen=True)
class Layout:
    """How one model replica is split: `tp` ranks, of which the experts are spread over `ep` (1: every rank has all).

    With `dp` > 1 that many replicas share one set of experts: `ep` counts over all of their tp x dp ranks, and tokens
    travel to the experts and back. `stage_layers` are the layers of each pipeline stage (empty: one stage), `stage` the
    one whose share is meant.
    """

    tp: int = 1
    ep: int = 1
    dp: int = 1
    stage_layers: tuple[int, ...] = ()
    stage: int = 0
    redundant_experts: int = 0
    """Second copies of experts, spread over the ranks like the experts themselves."""

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return max(1, len(self.stage_layers))

    @property
    def expert_ranks(self) -> int:
        """Ranks of one stage that share the experts: each holds 1 / ep of them, cut in expert_ranks / ep."""
        return self.tp * self.dp


@dataclass(frozen=True)
class Dtypes:
    """Element types of one deployment (short or long names): linear weights, activations, KV cache."""

    weight: str = "bf16"
    activation: str = "bf16"
    kv: str = "bf16"

    def of(self, model: ModelConfig, part: str) -> str:
        """The weights of one part of a block: as `weight`, unless the checkpoint leaves that part alone."""
        left = part in model.plain_parts and self.weight == model.weight_dtype
        return self.activation if left else self.weight


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
    window: int = 0
    """Attention only: sees the last `window` tokens (or, `chunked`, its own window-aligned chunk); 0: all."""
    chunked: bool = False
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
    """Size of the full tensor that is reduced or gathered, per token or sequence; of a send, what each rank sends."""
    kv_bytes_per_context_token: int = 0
    """Attention only: K and V bytes read for every cached token that a sequence attends to."""
    flops_per_context_token: int = 0
    """Attention only: for each (new token, attended token) pair; of prefills, where decodes differ."""
    decode_flops_per_context_token: int = 0
    """The same for decodes: latent attention computes them on the compressed cache."""
    state_bytes_per_sequence: int = 0
    """Linear attention only: the state that a step reads and writes for every sequence."""


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
    decode_cold_ns: tuple[tuple[int, int], ...] = ()
    """(thread blocks, ns), ascending: what a decode call with a cache far beyond the last-level cache takes beyond its
    bytes at the memory's rate; one thread block for each sequence and KV head. Empty: never measured with cold KV."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name -> origin, for the fields whose number does not come from `source`; always for measured constants."""


def resolve_dtypes(model: ModelConfig, dtype: str | None = None, kv_cache_dtype: str = "auto") -> Dtypes:
    """The element types of a deployment from the engine's `dtype` (None or "auto": the model's) and `kv_cache_dtype`.

    A 16- or 32-bit dtype is the activations'; the linear weights follow unless the checkpoint is quantised. "fp8" and
    "int8" quantise the linear weights and leave the rest as the model has it. KV "auto" is the checkpoint's, if it says
    so, else the activations' dtype.
    Raises InputError for an unknown name.
    """
    wanted = model.dtype if dtype in (None, "auto") else short_dtype(str(dtype))
    weight, activation = model.weight_dtype, wanted
    if wanted in ("fp8", "int8"):
        weight, activation = wanted, model.dtype
    elif model.weight_dtype == model.dtype:
        weight = wanted
    kv = (model.kv_cache_dtype or activation) if kv_cache_dtype == "auto" else short_dtype(kv_cache_dtype)
    return Dtypes(weight=weight, activation=activation, kv=kv)

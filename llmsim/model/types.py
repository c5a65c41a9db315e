"""The nouns of a model and its device: what the weights look like, how they are split, what runs, on which silicon."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llmsim.model.dtypes import short_dtype

LayerKind = Literal["full", "sliding", "chunked", "linear"]
"""What a layer attends to: everything before, the last `window` tokens, its own `window`-aligned chunk, or a state."""


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
    """Heads and their sizes of a gated delta net (arXiv 2412.06464) as Qwen3-Next has it, with the causal convolution,
    or (`delta` false) of lightning attention (arXiv 2501.08313), whose state decays by a constant of each head."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_kernel: int
    """0: none."""
    delta: bool = True
    whole_norm: bool = False
    """The output's norm has a weight for every element of all heads, not one head's."""
    state_dtype: str = ""
    """Of the states that engines keep (`mamba_ssm_dtype` of the config.json); empty: that of activations."""

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values pass through the convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def state_bytes(self, state_size: int, conv_size: int) -> int:
        """Of one sequence in one layer: a key x value matrix per value head, and the convolution's last inputs."""
        matrix = self.value_heads * self.key_dim * self.value_dim * state_size
        return matrix + max(0, self.conv_kernel - 1) * self.conv_channels * conv_size


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
    architectures: tuple[str, ...] = ()
    """As the config.json names them, the wrapper's where there is one; empty: it does not."""
    num_experts: int = 0
    num_experts_per_tok: int = 0
    expert_groups: int = 1
    """Groups of experts, of which a token chooses `groups_per_token` before its experts (DeepSeek-V2 and V3)."""
    groups_per_token: int = 1
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    o_proj_bias: bool = False
    mlp_bias: bool = False
    layer_norm: bool = False
    """LayerNorm instead of RMSNorm."""
    norm_bias: bool = False
    """Norms have a bias beside their weight."""
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
    """1: one for attention and MLP (Falcon, Command R); 4: also behind attention and MLP (Gemma 2 and 3)."""
    parallel: bool = False
    """Attention and MLP both read the layer's input, and their outputs are added to it."""
    one_sum: bool = False
    """Of parallel layers: ranks add attention and MLP up before one all-reduce."""
    rotary: bool = True
    position_rows: int = 0
    """Of a learned table of positions; 0: none."""
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
    similar_to: str | None = None
    """A measured device of the same chip or generation, whose kernels' times are scaled for this one."""
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

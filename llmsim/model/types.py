"""The nouns of a model and its device: what the weights look like, how they are split, what runs,
on which silicon.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from llmsim.model.dtypes import dtype_bytes, short_dtype
from llmsim.model.operators.attention_variants import (
    SCALE_BYTES,
    SCALED,
    AttentionShape,
    CompressedAttention,
    Indexer,
    LatentAttention,
    LayerInputs,
    LinearAttention,
)
from llmsim.model.operators.streams import HyperConnections
from llmsim.model.vision import VisionTower

LayerKind = Literal[
    "full", "sliding", "chunked", "linear", "both", "none", "compressed", "compressed_sparse",
    "block_sparse",
]  # fmt: skip
"""What a layer attends to: everything before, the last `window` tokens, its own `window`-aligned
chunk, a state, both everything and a state side by side, nothing (an FFN alone), the last
`window` tokens beside a compressed context, all of it or what an indexer chooses, or blocks of
tokens that an indexer chooses.
"""

PER_LAYER = (
    "moe_layers",
    "layer_kinds",
    "layers_with_ffn",
    "indexer_layers",
    "layer_shapes",
    "kv_sharing_layers",
    "ffn_widths",
    "hashed_layers",
    "residual_sources",
)
"""Fields of a ModelConfig with one entry for each layer, or none."""
BESIDE_EACH_OTHER = ("full", "linear")
"""Kinds that a layer with "both" has."""


NVFP4_BLOCK = 16
"""Elements that share a scale in NVFP4."""


class WeightFormat(Struct, frozen=True):
    """How linear weights are stored: element type, and rows x columns that share a scale of
    `scale_bits`.
    """

    dtype: str
    block: tuple[int, int] | None = None
    scale_bits: int = 32

    @property
    def narrow_inputs(self) -> bool:
        """Whether products take inputs of the weights' type, which a kernel makes first: fp8, and
        NVFP4, whose blocks have 16 elements. MXFP4, with 32, and int4 have inputs of 16 bits.
        """
        if self.dtype == "fp4":
            return self.block is not None and self.block[1] == NVFP4_BLOCK
        return self.dtype == "fp8"


class ModelConfig(Struct, frozen=True, dict=True):
    """The shape of a decoder-only transformer, as its config.json states it; immutable, counts are
    per whole model.
    """

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
    vision: VisionTower | None = None
    """The tower that computes the tokens of images; None: there is none, or it is not described."""
    num_experts: int = 0
    num_experts_per_tok: int = 0
    expert_groups: int = 1
    """Groups of experts, of which a token chooses `groups_per_token` before its experts
    (DeepSeek-V2 and V3).
    """
    groups_per_token: int = 1
    moe_intermediate_size: int = 0
    expert_latent_size: int = 0
    """Width that tokens are projected to before the experts and from behind them; 0: experts see
    hidden states.
    """
    shared_expert_intermediate_size: int = 0
    shared_with_experts: bool = False
    """The engine runs the shared expert, which is as wide as the others, in their kernel."""
    o_proj_bias: bool = False
    mlp_bias: bool = False
    layer_norm: bool = False
    """LayerNorm instead of RMSNorm."""
    norm_bias: bool = False
    """Norms have a bias beside their weight."""
    norm_weight: bool = True
    """Norms of the hidden state have a weight for each element."""
    embedding_norm: bool = False
    """The embedding is normed in front of the first layer (BLOOM)."""
    lm_head_bias: bool = False
    weight_block: tuple[int, int] | None = None
    """Rows and columns that share one scale in block-quantised weights; None: scales are
    negligible.
    """
    scale_bits: int = 32
    """Bits of one block's scale (and zero point); fp32 in block fp8, 8 in MXFP4 and NVFP4."""
    fixed_input_scales: bool = False
    """The checkpoint states the scales of the inputs of 8-bit matrices; else each step finds them.
    """
    plain_parts: frozenset[str] = frozenset()
    """Parts of a layer (`quantized_modules.PARTS`) that a quantised checkpoint leaves in `dtype`.
    """
    part_formats: tuple[tuple[str, WeightFormat], ...] = ()
    """Parts of a layer that a quantised checkpoint stores in another format than `weight_dtype`."""
    layer_kinds: tuple[LayerKind, ...] = ()
    """What each layer attends to; empty: everything, in all of them."""
    layers_with_ffn: tuple[bool, ...] = ()
    """One entry per layer: False where it has neither MLP nor experts; empty: all have."""
    window: int = 0
    """Tokens that "sliding" and "chunked" layers see; 0 where there are none."""
    attention_shapes: tuple[AttentionShape, ...] = ()
    """The shapes of softmax attention, where layers have several, or where keys and values have
    different sizes; empty: that of num_attention_heads, num_key_value_heads and head_dim.
    """
    layer_shapes: tuple[int, ...] = ()
    """One entry per layer: which of `attention_shapes` it has; empty: all have the first."""
    kv_sharing_layers: tuple[bool, ...] = ()
    """One entry per layer: True where it attends to the keys and values of an earlier layer of its
    kind, and has none of its own; empty: no layer does.
    """
    ffn_widths: tuple[int, ...] = ()
    """One entry per layer: the width of its dense MLP; empty: all have `intermediate_size`."""
    latent: LatentAttention | None = None
    indexer: Indexer | None = None
    """Latent attention is sparse, or that to a compressed context."""
    compressed: CompressedAttention | None = None
    """Shape of attention where layers see a compressed context."""
    hyper: HyperConnections | None = None
    """Several residual streams; None: one."""
    indexer_layers: tuple[bool, ...] = ()
    """One entry per layer: False where it sees what an earlier one chose; empty: every layer
    chooses.
    """
    linear: LinearAttention | None = None
    """Shape of the "linear" layers."""
    query_rank: int = 0
    """Width of the latent that queries come from, normed, in multi-matrix factorisation attention;
    0: they come from the hidden state.
    """
    attention_gate: bool = False
    """The query projection has a second half that gates the attention's output."""
    attention_sinks: bool = False
    """One learned logit per query head."""
    qk_norm_whole: bool = False
    """The norm of queries and keys has a weight for every element of all heads, not one head's."""
    qk_norm_weightless: bool = False
    value_norm: bool = False
    """Values are normed, without a weight."""
    norms_per_layer: int = 2
    """1: one for attention and MLP (Falcon, Command R); 4: also behind attention and MLP (Gemma 2
    and 3).
    """
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
    residual_sources: tuple[int, ...] = ()
    """One entry per layer: how many earlier residuals both halves attend to (attention residuals);
    empty: the residual is a sum.
    """
    latent_norm: bool = False
    """What experts give back in a latent space is normed."""
    hashed_layers: tuple[bool, ...] = ()
    """One entry per layer: True where a token's id chooses its experts, so that the router has no
    correction bias; empty: nowhere.
    """
    zero_experts: int = 0
    """Entries of the router beside the experts whose choice returns the token as it is (LongCat);
    `num_experts_per_tok` are the experts that a token finds behind its choices on average.
    """
    router_scales: bool = False
    """The router has a scale for each element that it reads and for each expert (Gemma 4)."""
    dense_beside_experts: bool = False
    """Layers with experts have a dense MLP, too (Gemma 4, LongCat)."""
    norms_around_experts: int = 0
    """Norms of such layers behind the dense MLP, in front of the experts and behind them."""
    sublayers: int = 1
    """So many layers make one of the config's, which pipeline stages do not cut (LongCat)."""
    layer_inputs: LayerInputs | None = None
    expert_bias: bool = False
    shared_expert_gate: bool = False
    kv_cache_dtype: str = ""
    """Of the KV cache, where the checkpoint says so ("auto" takes it); "": as `dtype`."""
    family: str = ""
    """The file of llmsim/presets/families (or of the user) that described it."""
    notes: tuple[str, ...] = ()
    """What the loader assumed where the config.json was silent; one sentence each, for the user."""

    @property
    def sources_per_norm(self) -> Fraction:
        """Earlier residuals that a half layer attends to, on average."""
        return Fraction(sum(self.residual_sources), max(1, 2 * len(self.residual_sources)))

    @property
    def norm_parameters(self) -> int:
        """Weights and biases of one norm of the hidden state."""
        return self.hidden_size * (self.norm_weight + self.norm_bias)

    @property
    def num_moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return sum(self.moe_layers)

    @property
    def num_indexer_layers(self) -> int:
        """Layers that choose which tokens they attend to."""
        if self.indexer is None:
            return 0
        if self.compressed is not None:
            return self.layers_of("compressed_sparse")
        if self.indexer.block:
            return self.layers_of("block_sparse")
        return sum(self.indexer_layers) if self.indexer_layers else self.num_layers

    @property
    def num_hashed(self) -> int:
        """Layers with experts that a token's id chooses."""
        return sum(self.hashed_layers)

    def latent_row_bytes(self, kv: str) -> int:
        """Bytes that a token leaves in the latent cache of one layer with elements of type `kv`;
        keys of the indexer aside. vLLM's sparse kernels keep a cache in fp8 with scales and the
        rotated part in 16 bits (fp8_ds_mla).
        """
        assert self.latent is not None, "the caller looked"
        size = int(dtype_bytes(kv))
        if self.indexer is None or size > 1:
            return self.latent.cached_width * size
        rank = self.latent.kv_rank
        return rank + -(-rank // SCALED) * SCALE_BYTES + 2 * self.latent.rope_dim

    @property
    def expert_hidden(self) -> int:
        """Width of what the experts read and write."""
        return self.expert_latent_size or self.hidden_size

    @property
    def router_rows(self) -> int:
        """Scores that the router gives each token."""
        return self.num_experts + self.zero_experts

    @property
    def ffn_layers(self) -> int:
        """Layers with an MLP or experts."""
        return sum(self.layers_with_ffn) if self.layers_with_ffn else self.num_layers

    @property
    def num_dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.ffn_layers - self.num_moe_layers * (not self.dense_beside_experts)

    def layers_of(self, kind: LayerKind) -> int:
        """Layers that attend in this way, alone or beside another."""
        if not self.layer_kinds:
            return self.num_layers * (kind == "full")
        return self.layer_kinds.count(kind) + (
            kind in BESIDE_EACH_OTHER and self.layer_kinds.count("both")
        )

    @cached_property
    def attention_shape(self) -> AttentionShape:
        """The shape of softmax attention in the layers, of the first of several."""
        if self.attention_shapes:
            return self.attention_shapes[0]
        return AttentionShape(
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            self.head_dim,
            sinks=self.attention_sinks,
        )

    @cached_property
    def softmax_groups(self) -> "tuple[SoftmaxLayers, ...]":
        """The layers with softmax attention, those of one shape together, in the order of the first
        of each.
        """
        everywhere: LayerKind = "full"
        kinds = self.layer_kinds or (everywhere,) * self.num_layers
        which = self.layer_shapes or (0,) * self.num_layers
        sharing = self.kv_sharing_layers or (False,) * self.num_layers
        own: dict[int, dict[LayerKind, list[int]]] = {}
        shared: dict[int, dict[LayerKind, list[int]]] = {}
        for number, kind in enumerate(kinds):
            shape = which[number]
            if kind in ("linear", "none"):
                continue
            found = own.setdefault(shape, {}), shared.setdefault(shape, {})
            seen: LayerKind = "full" if kind == "both" else kind
            found[sharing[number]].setdefault(seen, []).append(number)
        shapes = self.attention_shapes or (self.attention_shape,)
        return tuple(
            SoftmaxLayers(shapes[one], _frozen(own[one]), _frozen(shared[one])) for one in own
        )

    @property
    def caches_alike(self) -> bool:
        """Whether all layers with keys and values of their own store as much for a token."""
        widths = {
            (group.shape.kv_heads, group.shape.key_dim + group.shape.value_dim)
            for group in self.softmax_groups
            if group.with_keys
        }
        return len(widths) <= 1

    @property
    def twice_loaded(self) -> int:
        """Weights of keys that engines load as those of the values, too, and hold twice."""
        return self.hidden_size * sum(
            len(group.with_keys) * group.shape.kv_heads * group.shape.value_dim
            for group in self.softmax_groups
            if group.shape.values_are_keys
        )

    @cached_property
    def dense_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Widths of the dense MLPs and the numbers of their layers, narrowest first."""
        ffn = self.layers_with_ffn or (True,) * self.num_layers
        widths = self.ffn_widths or (self.intermediate_size,) * self.num_layers
        found: dict[int, list[int]] = {}
        for number, (width, has, moe) in enumerate(zip(widths, ffn, self.moe_layers, strict=True)):
            if has and (self.dense_beside_experts or not moe):
                found.setdefault(width, []).append(number)
        return tuple((width, tuple(found[width])) for width in sorted(found))

    @property
    def softmax_layers(self) -> int:
        """Layers that keep keys and values of single tokens."""
        return self.num_layers - self.layer_kinds.count("linear") - self.layer_kinds.count("none")

    @property
    def keeps_states_alone(self) -> bool:
        """Whether no layer has keys and values of single tokens (Mamba)."""
        return self.linear is not None and self.softmax_layers == 0

    @property
    def mixer_layers(self) -> int:
        """Layers with attention of any kind."""
        return self.num_layers - self.layer_kinds.count("none")

    def layers_with(self, *kinds: LayerKind) -> tuple[int, ...]:
        """Numbers of the layers whose mixer is one of `kinds`."""
        own = self.layer_kinds or ("full",) * self.num_layers
        return tuple(number for number, kind in enumerate(own) if kind in kinds)

    @property
    def layers_with_mixers(self) -> tuple[int, ...]:
        """Numbers of the layers that have a mixer."""
        without = self.layers_with("none")
        return tuple(number for number in range(self.num_layers) if number not in without)

    @property
    def layers_with_softmax(self) -> tuple[int, ...]:
        """Numbers of the layers that keep keys and values of single tokens."""
        without = self.layers_with("linear", "none")
        return tuple(number for number in range(self.num_layers) if number not in without)

    @property
    def layers_with_ffns(self) -> tuple[int, ...]:
        """Numbers of the layers that have an FFN."""
        has = self.layers_with_ffn or (True,) * self.num_layers
        return tuple(number for number in range(self.num_layers) if has[number])

    @property
    def layers_with_experts(self) -> tuple[int, ...]:
        """Numbers of the layers whose FFN is a mixture of experts."""
        return tuple(number for number, moe in enumerate(self.moe_layers) if moe)

    @property
    def layers_with_indexers(self) -> tuple[int, ...]:
        """Numbers of the layers that choose tokens themselves."""
        own = self.indexer_layers or (True,) * self.num_layers
        return tuple(number for number in range(self.num_layers) if own[number])

    @property
    def main_format(self) -> WeightFormat:
        """How the checkpoint stores quantised weights where a part of a layer has no own format."""
        return WeightFormat(self.weight_dtype, self.weight_block, self.scale_bits)

    def format_of(self, part: str) -> WeightFormat:
        """How the checkpoint stores the quantised weights of a part of a layer."""
        return dict(self.part_formats).get(part, self.main_format)

    def layers_between(self, first: int, last: int) -> "ModelConfig":
        """The model with its layers first, ..., last - 1 alone."""
        cut = {name: getattr(self, name)[first:last] for name in PER_LAYER}
        return replace(self, num_layers=last - first, **cut)


class SoftmaxLayers(Struct, frozen=True):
    """Layers whose softmax attention has one shape, by what they see."""

    shape: AttentionShape
    own: Mapping[LayerKind, tuple[int, ...]]
    """Numbers of the layers with keys and values of their own."""
    sharing: Mapping[LayerKind, tuple[int, ...]]
    """Numbers of the layers that attend to those of an earlier one."""

    @property
    def with_keys(self) -> tuple[int, ...]:
        """Layers with keys and values of their own."""
        return tuple(sorted(number for some in self.own.values() for number in some))

    @property
    def without_keys(self) -> tuple[int, ...]:
        """Layers that have queries alone."""
        return tuple(sorted(number for some in self.sharing.values() for number in some))

    @property
    def layers(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(sorted((*self.with_keys, *self.without_keys)))

    def has(self, kind: LayerKind) -> bool:
        """Whether some see this much."""
        return kind in self.own or kind in self.sharing


def _frozen(numbers: Mapping[LayerKind, list[int]]) -> Mapping[LayerKind, tuple[int, ...]]:
    return {kind: tuple(some) for kind, some in numbers.items()}


class Dtypes(Struct, frozen=True):
    """Element types of one deployment (short or long names): linear weights,
    activations, KV cache.
    """

    weight: str = "bf16"
    activation: str = "bf16"
    kv: str = "bf16"

    def of(self, model: ModelConfig, part: str) -> str:
        """The weights of one part of a block: as `weight`, unless the checkpoint leaves that part
        alone.
        """
        if self.weight != model.weight_dtype:
            return self.weight
        if part in model.plain_parts:
            return self.activation
        return model.format_of(part).dtype


LEAST_NVLINK_BYTES_PER_S = 100 * 10**9
"""No PCIe of the data sheets has this rate in one direction, and every NVLink has it."""


class Hardware(Struct, frozen=True):
    """A device's data sheet; a number's origin is in `sources` under its field name, else in
    `source`.
    """

    name: str
    vendor: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: int
    flops: Mapping[str, int]
    """Dense peak flop/s (op/s for int8) by short dtype name; absent: the device has no such units.
    """
    last_level_cache_bytes: int
    num_sms: int
    """Streaming multiprocessors, compute units, or the cores of another accelerator."""
    attention_kernel: str
    """What vLLM or its plug-in for the device picks by default: "fa2", "fa3", "flashinfer",
    "triton", "pallas", "fused_sdpa" (Gaudi), "nki" (Trainium), "ascend_fa".
    """
    tdp_w: int | None
    """None: not published."""
    intra_node_link_bytes_per_s: int
    """One direction, per device, to its peers in the node (NVLink, xGMI, ICI, else PCIe)."""
    source: str
    compute_capability: float | None = None
    """CUDA's number of the generation: 9.0 is Hopper, 10.0 and 10.3 are Blackwell of data centres;
    None: unknown, or not an NVIDIA device.
    """
    silicon_system: str | None = None
    """Folder of the device in aiconfigurator-core's database; None: not measured there."""
    decode_skew_stream_bytes_per_s: int | None = None
    """Speed at which one thread block streams the KV of one head; prices the longest sequence of a
    decode batch.
    """
    l2_bandwidth_bytes_per_s: int | None = None
    decode_cold_ns: tuple[tuple[int, int], ...] = ()
    """(thread blocks, ns), ascending: what a decode call with a cache far beyond the last-level
    cache takes beyond its bytes at the memory's rate; one thread block for each sequence and KV
    head. Empty: never measured with cold KV.
    """
    matrix_flops: Mapping[str, int] = field(default_factory=dict)
    """Most flop/s that matrices of any size were measured to reach, by short dtype name, where that
    is far below the peak; absent: nobody measured it.
    """
    idle_w: int | None = None
    """Board power of a device that does nothing; None: unknown."""
    switching_fj_per_flop: int | None = None
    """Energy of one operation of dense matrices in 16 bit at the full clock, with random data and
    above the idle power; None: unknown.
    """
    traffic_fj_per_byte: int | None = None
    """Energy of one byte that its memory reads or writes, above the idle power; None: unknown."""
    power_window_ms: int | None = None
    """Over which the card averages its power before it lowers its clock; None: unknown, and each
    matrix meets the limit by itself.
    """
    collective_constants: str | None = None
    """File of llmsim/presets/collectives with what collectives of this device take, where it is not
    that of `silicon_system`.
    """
    link_domain_devices: int | None = None
    """Devices that links of `intra_node_link_bytes_per_s` join at most, in a server or NVLink
    domain; None: unknown.
    """
    network_card_bytes_per_s: int | None = None
    """One direction, per device, of the network cards of its servers; None: unknown."""
    similar_to: str | None = None
    """A measured device of the same chip or generation, whose kernels' times are scaled for this
    one.
    """
    price_per_device_hour: float | None = None
    """USD of one device and hour; None: the list price of its name, if there is one."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name -> origin, for the fields whose number does not come from `source`; always for
    measured constants.
    """

    @property
    def on_nvlink(self) -> bool:
        """Whether the devices of a server are joined by NVLink, and not by PCIe alone."""
        rate = self.intra_node_link_bytes_per_s or 0
        return self.vendor == "NVIDIA" and rate >= LEAST_NVLINK_BYTES_PER_S


def resolve_dtypes(
    model: ModelConfig, dtype: str | None = None, kv_cache_dtype: str = "auto"
) -> Dtypes:
    """The element types of a deployment from the engine's `dtype` (None or "auto": the model's) and
    `kv_cache_dtype`.

    A 16- or 32-bit dtype is the activations'; the linear weights follow unless the checkpoint is
    quantised. "fp8" and "int8" quantise the linear weights and leave the rest as the model has it.
    KV "auto" is the checkpoint's, if it says so, else the activations' dtype. Raises InputError for
    an unknown name.
    """
    wanted = model.dtype if dtype in (None, "auto") else short_dtype(str(dtype))
    weight, activation = model.weight_dtype, wanted
    if wanted in ("fp8", "int8"):
        weight, activation = wanted, model.dtype
    elif model.weight_dtype == model.dtype:
        weight = wanted
    kv = (
        (model.kv_cache_dtype or activation)
        if kv_cache_dtype == "auto"
        else short_dtype(kv_cache_dtype)
    )
    return Dtypes(weight=weight, activation=activation, kv=kv)

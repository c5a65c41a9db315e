"""Shapes of what a layer has in place of plain attention: latent attention, its indexer, states."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from llmsim.model.dtypes import dtype_bytes

SCALED, SCALE_BYTES = 128, 4
"""fp8 elements that share a scale in the caches of sparse attention."""
WIDE_KEY_BYTES = 2
ROW_SCALED = 64
"""The same in rows of a compressed context."""

PooledKind = Literal["compressed", "compressed_sparse"]
"""Kinds of layers that see a compressed context: all of it, or what an indexer chooses."""
LinearKind = Literal["delta", "kda", "lightning", "mamba1", "short_conv", "state_space"]


class LatentAttention(Struct, frozen=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): widths
    in elements.
    """

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


class AttentionShape(Struct, frozen=True):
    """Heads of softmax attention in one layer; sizes in elements of one head."""

    heads: int
    kv_heads: int
    key_dim: int
    """Of queries, too."""
    value_dim: int
    sinks: bool = False
    """One learned logit per query head."""
    gate_dim: int = 0
    """Numbers of each head that a projection of its own makes, to gate the output; 0: none."""
    index_heads: int = 0
    """Query heads of an indexer, which one matrix makes with queries, keys and values; 0: none."""
    index_dim: int = 0
    """Of such a head, and of the one key that it scores."""
    values_are_keys: bool = False
    """The checkpoint has one matrix for keys and values; engines load it twice, and cache both."""

    @property
    def cached_width(self) -> int:
        """Elements that one token leaves in the cache."""
        return self.kv_heads * (self.key_dim + self.value_dim)

    @property
    def index_width(self) -> int:
        """Of the indexer's queries and key."""
        return (self.index_heads + 1) * self.index_dim

    @property
    def query_width(self) -> int:
        """Of all queries of a token."""
        return self.heads * self.key_dim

    @property
    def output_width(self) -> int:
        """Of what the output projection reads."""
        return self.heads * self.value_dim

    def on_rank(self, tp: int) -> "AttentionShape":
        """Its share on one of `tp` ranks; KV heads are replicated where there are fewer."""
        return replace(
            self,
            heads=self.heads // tp,
            kv_heads=max(1, self.kv_heads // tp),
            index_heads=max(1, self.index_heads // tp) if self.index_heads else 0,
        )

    def rules(self, tp: int) -> list[tuple[bool, str]]:
        """Whether each rule of vLLM about its heads on `tp` ranks holds, and the rule."""
        kv_heads = self.kv_heads
        kv_fits = kv_heads % tp == 0 if kv_heads >= tp else tp % kv_heads == 0
        return [
            (self.heads % tp == 0, f"tp must divide num_attention_heads {self.heads}"),
            (
                kv_fits,
                f"tp must divide num_key_value_heads {kv_heads} or be a multiple of it",
            ),
        ]


class LayerInputs(Struct, frozen=True):
    """An embedding of each token for every layer (Gemma 3n and 4): a second table has `width`
    elements for each layer, to which a projection of the first embedding is added; behind each
    layer a gate mixes them into the hidden state.
    """

    rows: int
    """Of the second table."""
    width: int
    layers: int
    """Of the whole model."""

    @property
    def total_width(self) -> int:
        """Elements of one token for all layers."""
        return self.width * self.layers

    def parameters(self, hidden: int) -> int:
        """Outside of the layers: the table, the projection and its norm."""
        return (self.rows + hidden) * self.total_width + self.width

    def layer_parameters(self, hidden: int) -> int:
        """Of one layer: the gate, the projection back, and a norm."""
        return 2 * hidden * self.width + hidden


class Indexer(Struct, frozen=True):
    """What chooses the tokens that a query of sparse latent attention sees (DeepSeek-V3.2, arXiv
    2512.02556, section 2.1): small heads score every token before it, and the `topk` best are
    attended to.
    """

    heads: int
    dim: int
    topk: int
    block: int = 0
    """Tokens of a block, where whole blocks are chosen, so many tokens of them as `topk` says, for
    each KV head (MiniMax M3); 0: tokens.
    """

    @property
    def cached_bytes(self) -> int:
        """That one token leaves in one layer: a key in fp8 with an fp32 scale for 128 elements; of
        blocks in 16 bits (vLLM).
        """
        if self.block:
            return WIDE_KEY_BYTES * self.dim
        return self.dim + -(-self.dim // SCALED) * SCALE_BYTES


class CompressedAttention(Struct, frozen=True):
    """Attention of one KV head, whose rows are key and value at once, to the last tokens and to a
    compressed context: each group of tokens is pooled into a row, by weights that every token
    brings (DeepSeek-V4; shapes: vLLM's deepseek_v4 and transformers). Widths in elements.
    """

    q_rank: int
    dim: int
    """Of a query head and of a cached row."""
    rope_dim: int
    out_groups: int
    """Groups of heads, whose outputs are each projected to `out_rank` before the sum."""
    out_rank: int
    ratios: tuple[tuple[PooledKind, int], ...] = (("compressed", 128), ("compressed_sparse", 4))
    """Tokens in a row of the compressed context, by kind of layer."""

    def ratio(self, kind: str) -> int:
        """Tokens in a row; 1: the layers have no compressed context."""
        return next((ratio for known, ratio in self.ratios if known == kind), 1)

    def overlap(self, kind: str) -> int:
        """Rows that each token contributes to: sparse layers pool over twice their ratio."""
        return 2 if kind == "compressed_sparse" else 1

    def row_bytes(self, kv: str) -> int:
        """Of a cached row: in fp8 with the rotated part in 16 bits and a scale byte for 64
        elements, rounded up to 8 (vLLM's fp8_ds_mla).
        """
        size = int(dtype_bytes(kv))
        if size > 1:
            return self.dim * size
        plain = self.dim - self.rope_dim
        return plain + 2 * self.rope_dim + -(-plain // ROW_SCALED // 8) * 8

    def pool_weights(self, kind: str, dim: int, hidden: int) -> int:
        """Of the pooling to rows of `dim` elements: two projections, positions, a norm."""
        wide = self.overlap(kind) * dim
        return 2 * wide * hidden + self.ratio(kind) * wide + dim

    def state_bytes(self, kind: str, dim: int) -> int:
        """That one token leaves for the pooling: value and weight of each element, in fp32."""
        return 2 * self.overlap(kind) * dim * 4

    def state_tokens(self, kind: str) -> int:
        """Tokens whose values are still to be pooled."""
        return self.overlap(kind) * self.ratio(kind)

    def parameters(self, hidden: int, heads: int) -> int:
        """Of one layer without pooling and indexer; sinks included."""
        down = (self.q_rank + self.dim) * (hidden + 1)
        out = heads * self.dim * self.out_rank + self.out_groups * self.out_rank * hidden
        return down + self.q_rank * heads * self.dim + out + heads

    def indexer_parameters(self, indexer: Indexer, hidden: int) -> int:
        """Of one sparse layer's indexer, whose keys are pooled likewise."""
        queries = indexer.heads * indexer.dim * self.q_rank + indexer.heads * hidden
        return queries + self.pool_weights("compressed_sparse", indexer.dim, hidden)


class LinearAttention(Struct, frozen=True):
    """Heads and their sizes of a layer that keeps a state: a gated delta net (arXiv 2412.06464) as
    Qwen3-Next has it, Kimi delta attention (arXiv 2510.26692), whose state decays by a number of
    each key's element, lightning attention (arXiv 2501.08313), whose state decays by a constant of
    each head, or a state space (Mamba-2, arXiv 2405.21060), whose keys and queries are B and C of
    each group of heads and whose values are the inputs. A short convolution (LFM2) keeps its last
    inputs alone: one value head as wide as the hidden state, and no keys. A state space of the
    first generation (Mamba, arXiv 2312.00752) has a state of `key_dim` elements for each channel:
    one group, and a head of one element for each channel.
    """

    key_heads: int
    """Of a state space: groups."""
    key_dim: int
    """Of a state space: the size of the state for one element of the input."""
    value_heads: int
    value_dim: int
    conv_kernel: int
    """0: none."""
    kind: LinearKind = "delta"
    norm: Literal["head", "whole", "none"] = "head"
    """The output's norm has a weight for every element of one head, of all heads, or is left out.
    """
    conv_bias: bool = False
    bias: bool = False
    """Of the projections into and out of the layer."""
    gate_rank: int = 0
    """Of Kimi delta attention: rank of the projections to decay and output gate; 0: one matrix
    each. Of Mamba-1: rank of the projection to the step's size.
    """
    full_gate: bool = False
    """Of Kimi delta attention: the output's gate has one matrix, whatever the decays' rank."""
    step_norm: bool = False
    """Of Mamba-1: the step's latent, B and C are normed (Jamba)."""
    chunk: int = 64
    """Tokens of a prompt from one state that kernels hand out to the next."""
    state_dtype: str = ""
    """Of the matrices, where the config.json names it; empty: as the activations, like the
    convolution's inputs.
    """

    @property
    def gates(self) -> int:
        """Numbers of each value head that a token brings: decay and correction of the state, its
        step, or none.
        """
        return {"delta": 2, "kda": 1, "state_space": 1}.get(self.kind, 0)

    @property
    def head_weights(self) -> int:
        """Learned numbers of each value head: A, which Mamba-1 has for each element of the state,
        and the step's bias, which Kimi delta attention has for each key's element, and D of a state
        space.
        """
        numbers = {
            "delta": 2,
            "kda": 1 + self.key_dim,
            "mamba1": 2 + self.key_dim,
            "state_space": 3,
        }
        return numbers.get(self.kind, 0)

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values pass through the convolution; of Mamba-1 the inputs alone."""
        if self.kind == "mamba1":
            return self.value_heads * self.value_dim
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def norm_weights(self) -> int:
        """Elements of the output norm's weight."""
        return {"whole": self.value_heads * self.value_dim, "head": self.value_dim, "none": 0}[
            self.norm
        ]

    def gate_parameters(self, hidden: int) -> int:
        """Of the projections of Kimi delta attention to its decays and to the output's gate; of
        Mamba-1 those to the step's latent, B and C, and to the step.
        """
        if self.kind == "mamba1":
            chosen = self.step_width
            return self.value_heads * (chosen + self.gate_rank) + chosen * self.step_norm
        if self.kind != "kda":
            return 0
        decays, gates = self.value_heads * self.key_dim, self.value_heads * self.value_dim
        widths, rank = decays + gates, self.gate_rank
        if rank and self.full_gate:
            return rank * (hidden + decays) + hidden * gates
        return rank * (2 * hidden + widths) if rank else hidden * widths

    @property
    def step_width(self) -> int:
        """Of Mamba-1: the step's latent, B and C of one token."""
        return self.gate_rank + 2 * self.key_dim

    @property
    def flops_per_token(self) -> int:
        """Of the recurrence. A gated delta net decays the state, takes k S, adds an outer product
        and reads q S: 7 flops for each element of the state (arXiv 2412.06464, equation 10); so
        does Kimi delta attention (arXiv 2510.26692, equation 1). Lightning attention does without
        k S: 5 (arXiv 2501.08313, equation 10). So does a state space, S <- exp(dt A) S + B (dt x),
        y = C S + D x: 5 (arXiv 2405.21060, equation 16; dt x and D x are small beside them).
        Mamba-1 takes exp(dt A) for each element, too: 7 (arXiv 2312.00752, equations 2 and 4).
        """
        each = 7 if self.kind in ("delta", "kda", "mamba1") else 5
        return each * self.value_heads * self.key_dim * self.value_dim

    def on_rank(self, tp: int) -> "LinearAttention":
        """Its share on one of `tp` ranks: whole heads; a single group of a state space is on every
        rank; a short convolution is cut by its channels.
        """
        if self.kind == "short_conv":
            return replace(self, value_dim=self.value_dim // tp)
        return replace(self, key_heads=-(-self.key_heads // tp), value_heads=self.value_heads // tp)

    def rule(self, tp: int) -> tuple[bool, str]:
        """Whether so many ranks can share the layer, and the rule (of state spaces: vLLM's
        MambaMixer2).
        """
        groups, heads = self.key_heads, self.value_heads
        if self.kind == "short_conv":
            return (
                self.value_dim % tp == 0,
                f"tp must divide the {self.value_dim} channels of its convolutions",
            )
        if self.kind not in ("mamba1", "state_space"):
            return (
                groups % tp == 0,
                f"tp must divide the {groups} key heads of its linear-attention layers",
            )
        fits = heads % tp == 0 and (groups % tp == 0 or groups == 1)
        return (
            fits,
            (
                f"tp must divide the {heads} heads and, unless it is one, the {groups} groups of "
                "its state spaces"
            ),
        )

    def state_bytes(self, activation: str) -> int:
        """Of one sequence in one layer: a key x value matrix per value head, and the convolution's
        last inputs.
        """
        conv_size = int(dtype_bytes(activation))
        matrix = (
            self.value_heads
            * self.key_dim
            * self.value_dim
            * int(dtype_bytes(self.state_dtype or activation))
        )
        return matrix + max(0, self.conv_kernel - 1) * self.conv_channels * conv_size

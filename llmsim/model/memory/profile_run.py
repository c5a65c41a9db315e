"""What vLLM's memory profile finds besides weights and KV: its peak, tables, kernels and CUDA
graphs.
"""

from msgspec import Struct

from llmsim.config.engine.profile import MODES_OF_DECODES, MemoryRules
from llmsim.model.dtypes import dtype_bytes
from llmsim.model.layout import Layout
from llmsim.model.types import Dtypes, ModelConfig

FILTER_BYTES_PER_LOGIT = 4
"""Of the buffer of the top-k/top-p kernel, one row per running thread block
(`apply_top_k_top_p_triton`).
"""

DEFAULT_NUM_SMS = 132
"""Where there is no data sheet: an H100's. A row of the filter's buffer is 0.5 MB for a vocabulary
of 128k.
"""

Lines = tuple[tuple[str, int], ...]
"""(label, bytes)."""


class ProfileRun(Struct, frozen=True):
    """One device's profile run: everything that its result depends on."""

    model: ModelConfig
    layout: Layout
    dtypes: Dtypes
    max_num_seqs: int
    max_num_batched_tokens: int
    rules: MemoryRules
    cuda_graph_sizes: tuple[int, ...]
    num_sms: int
    cudagraph_mode: str = "FULL_AND_PIECEWISE"

    @property
    def lines(self) -> Lines:
        """All of it. Sizes follow from shapes; what does not is in the engine's `MemoryRules`, each
        with its origin.
        """
        if not self.rules.profiles_a_batch:
            return (*self._rotary, ("kernels and workspaces", self.rules.kernel_bytes))
        if self.layout.domain == "ffn":  # it neither attends nor samples
            return (self._layer, *self._graphs)
        return (*self._rotary, *self._peak, *self._filter, *self._graphs)

    @property
    def _activation_bytes(self) -> int:
        return int(dtype_bytes(self.dtypes.activation))

    @property
    def _rotary(self) -> Lines:
        """vLLM's cos_sin_cache: one for all layers, for every position that the model knows."""
        latent, positions = self.model.latent, self.model.max_position_embeddings
        if not self.model.rotary:
            return ()
        pooled = self.model.compressed
        width = latent.rope_dim if latent is not None else self.model.head_dim
        if pooled is not None:  # two tables, with angles of their own for pooled rows
            width = 2 * pooled.rope_dim
        row = width * self._activation_bytes
        return ((f"rotary tables, {positions} positions x {row} B", positions * row),)

    @property
    def _peak(self) -> Lines:
        """A layer on a full batch, or, after it, the sampler beside the hidden states, whichever is
        more.
        """
        tokens, seqs, vocab = self.max_num_batched_tokens, self.max_num_seqs, self.model.vocab_size
        hidden = tokens * self.model.hidden_size * self._activation_bytes
        label, layer = self._layer
        per_logit = self._activation_bytes + self.rules.sampled_bytes_per_logit
        if layer > hidden + seqs * vocab * per_logit:
            return ((label, layer),)
        return (  # all ranks gather the whole vocabulary
            (f"sampler, {seqs} sequences x {vocab} x {per_logit} B", seqs * vocab * per_logit),
            (f"hidden states, {tokens} tokens", hidden),
        )

    @property
    def _layer(self) -> tuple[str, int]:
        tokens, size = self.max_num_batched_tokens, self._activation_bytes
        hidden = tokens * self.model.hidden_size * size
        layer = 2 * hidden + tokens * self._widest_elements * size
        return f"activations of a layer, {tokens} tokens", layer

    @property
    def _widest_elements(self) -> int:
        """Of one token between a layer's hidden states: the MLP's projections and its activation,
        or q, k, v and the attention's output, whichever is more.
        """
        model, tp = self.model, self.layout.tp
        attention = self._attention_elements // tp
        if self.layout.domain == "attention":
            return attention
        mlp = (
            0
            if not model.num_dense_layers
            else (3 if model.mlp_gated else 2) * model.dense_groups[-1][0] // tp
        )
        if model.num_experts:
            wide = model.moe_intermediate_size // (tp if self.layout.ep == 1 else 1)
            # The fused kernel keeps one buffer for both projections' outputs and one for the
            # activation.
            mlp = max(mlp, model.num_experts_per_tok * (max(2 * wide, model.hidden_size) + wide))
        return mlp if self.layout.domain == "ffn" else max(mlp, attention)

    @property
    def _attention_elements(self) -> int:
        """Queries, keys, values and outputs of one token on all ranks, in the widest layer."""
        model = self.model
        if model.latent is not None:
            heads = 2 * model.num_attention_heads + 2 * model.num_key_value_heads
            return heads * model.head_dim
        shapes = [group.shape for group in model.softmax_groups] or [model.attention_shape]
        return max(one.query_width + one.cached_width + one.output_width for one in shapes)

    @property
    def _filter(self) -> Lines:
        """Rows for as many thread blocks as run at once: a power of two, at most one per
        multiprocessor.
        """
        if not self.rules.filters_in_blocks:
            return ()
        programs = min(self.num_sms, self.max_num_seqs)
        rows, vocab = min(1 << (programs - 1).bit_length(), self.num_sms), self.model.vocab_size
        return (
            (
                f"top-k/top-p buffer, {rows} rows x {vocab} x 4 B",
                rows * vocab * FILTER_BYTES_PER_LOGIT,
            ),
        )

    @property
    def _graphs(self) -> Lines:
        """Captured: one for each size of a mixed batch, and one for each that a batch of decodes
        can have.
        """
        rules, sizes = self.rules, self.cuda_graph_sizes
        kernels = ("kernels and workspaces", rules.kernel_bytes)
        if not sizes:
            return (kernels,)
        left = ("left by the first capture of CUDA graphs", rules.first_capture_bytes)
        if not rules.graphs_charged:
            return kernels, left
        decodes = (
            sum(size <= self.max_num_seqs for size in sizes)
            if self.cudagraph_mode in MODES_OF_DECODES
            else 0
        )
        graphs = decodes + (len(sizes) if self.cudagraph_mode != "FULL_DECODE_ONLY" else 0)
        estimate = rules.first_capture_bytes + max(0, graphs - 2) * rules.bytes_per_graph
        return kernels, left, (f"CUDA graphs, estimate for {graphs}", estimate)

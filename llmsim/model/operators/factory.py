"""Makes the operators of one rank: their shapes, what they read and write, what they compute (see
operators.py).
"""

from typing import Literal

from msgspec.structs import replace

from llmsim.model.dtypes import dtype_bytes, short_dtype
from llmsim.model.layout import Layout
from llmsim.model.operator import (
    Attention,
    Block,
    Collective,
    Elementwise,
    Embedding,
    Gemm,
    Moe,
    Operator,
    ResidualNorm,
    Sampler,
    Sees,
)
from llmsim.model.operators.attention_variants import AttentionShape
from llmsim.model.parallel.sharding import RankShape, padded_vocab_size, rank_shape
from llmsim.model.types import Dtypes, ModelConfig

TOKEN_ID_BYTES = 4


class OperatorFactory:
    """Makes the operators of one (model, layout, dtypes); holds what they share. Read only after
    construction.
    """

    def __init__(self, model: ModelConfig, layout: Layout, dtypes: Dtypes) -> None:
        self.model = model
        self.layout = layout
        self.dtypes = dtypes
        self.shape: RankShape = rank_shape(model, layout)
        self.wide_dtype = short_dtype(dtypes.activation)
        self.wide_size = int(dtype_bytes(dtypes.activation))
        self.kv_size = int(dtype_bytes(dtypes.kv))

    def weight_dtype(self, part: str) -> str:
        """Of the linear layers of one part of a block."""
        return short_dtype(self.dtypes.of(self.model, part))

    def linear_bytes(self, n: int, k: int, part: str) -> int:
        """Weights of an n x k linear layer, with its block scales where the checkpoint has them."""
        dtype = self.weight_dtype(part)
        size = -int(-n * k * dtype_bytes(dtype) // 1)
        stored = self.model.format_of(part)
        block = stored.block
        if block is None or dtype != stored.dtype:
            return size
        return size + -(-(-(-n // block[0]) * -(-k // block[1]) * stored.scale_bits) // 8)

    def norms(self, repeat: int, *, feeds_ffn: bool = False) -> list[Operator]:
        """The pre-block norm, repeated `layers` times; empty if `layers` is 0."""
        norm = replace(self.norm("layernorm", "layer", repeat), feeds_ffn=feeds_ffn)
        return [self.attending(norm)] if repeat else []

    def attending(self, norm: ResidualNorm) -> ResidualNorm:
        """The norm with attention residuals (Kimi K3; vLLM's attn_res): one kernel scores the sum
        so far and the residuals that were kept every few layers, each normed, by one vector, and
        mixes them by their softmax.
        """
        model = self.model
        if not model.residual_sources:
            return norm
        hidden, sources = model.hidden_size, model.sources_per_norm
        kept = -(-hidden * sources.numerator // sources.denominator)
        return replace(
            norm,
            weight_bytes=norm.weight_bytes + 2 * hidden * self.wide_size,
            read_bytes_per_token=norm.read_bytes_per_token + kept * self.wide_size,
            flops_per_token=norm.flops_per_token + 8 * (kept + hidden),
        )

    def norm(self, name: str, part: str, repeat: int) -> ResidualNorm:
        """RMSNorm or LayerNorm of the hidden state, with the residual added."""
        hidden, size = self.model.hidden_size, self.wide_size
        tensors = 2 if self.model.hyper is None else 1  # streams keep the residual
        return ResidualNorm(
            name=name,
            part="head" if part == "head" else "layer",
            repeat=repeat,
            reduces=True,
            feeds_projection=True,
            hidden=hidden,
            weight_dtype=self.wide_dtype,
            weight_bytes=self.model.norm_parameters * size,
            read_bytes_per_token=tensors * hidden * size,
            write_bytes_per_token=tensors * hidden * size,
            flops_per_token=(8 if self.model.layer_norm else 5) * hidden,
        )

    def embedding_norm(self) -> list[Operator]:
        """The norm of the embedding in front of the first layer, where the model has one."""
        if not self.model.embedding_norm:
            return []
        hidden, weights = self.model.hidden_size, self.model.norm_parameters
        flops = (7 if self.model.layer_norm else 4) * hidden
        norm = self.elementwise(
            "embedding_norm",
            1,
            reads=hidden,
            writes=hidden,
            flops=flops,
            weights=weights,
            reduces=True,
        )
        return [replace(norm, part="prologue")]

    def gemm(
        self,
        name: str,
        n: int,
        k: int,
        *,
        part: str,
        repeat: int,
        bias: int = 0,
        block: Block = "",
        cut: Literal["", "columns", "rows"] = "",
        reads_attention: bool = False,
    ) -> Gemm:
        """A linear layer of a block; `bias` is the number of its bias elements, part "wide" is
        never quantised.
        """
        wide = part == "wide"
        weights = n * k * self.wide_size if wide else self.linear_bytes(n, k, part)
        return Gemm(
            name=name,
            repeat=repeat,
            block=block,
            gemm_n=n,
            gemm_k=k,
            cut=cut,
            reads_attention=reads_attention,
            hidden=self.model.hidden_size,
            weight_dtype=self.wide_dtype if wide else self.weight_dtype(part),
            weight_bytes=weights + bias * self.wide_size,
            read_bytes_per_token=k * self.wide_size,
            write_bytes_per_token=n * self.wide_size,
            flops_per_token=2 * n * k,
        )

    def elementwise(
        self,
        name: str,
        repeat: int,
        *,
        reads: int,
        writes: int,
        flops: int,
        weights: int = 0,
        block: Block = "",
        reduces: bool = False,
        kernels: int = 1,
    ) -> Elementwise:
        """An operator of a block that streams; `reads`, `writes` and `weights` in elements."""
        return Elementwise(
            name=name,
            repeat=repeat,
            block=block,
            reduces=reduces,
            kernels=kernels,
            hidden=self.model.hidden_size,
            weight_dtype=self.wide_dtype if weights else "",
            weight_bytes=weights * self.wide_size,
            read_bytes_per_token=reads * self.wide_size,
            write_bytes_per_token=writes * self.wide_size,
            flops_per_token=flops,
        )

    def inner_norm(
        self,
        name: str,
        repeat: int,
        width: int,
        *,
        weights: int,
        block: Block = "attention",
        kernels: int = 1,
    ) -> Elementwise:
        """A norm of `width` elements of each token inside a block, which are written back."""
        return self.elementwise(
            name,
            repeat,
            reads=width,
            writes=width,
            flops=4 * width,
            weights=weights,
            block=block,
            reduces=True,
            kernels=kernels,
        )

    def post_norm(self, repeat: int) -> ResidualNorm:
        """A norm behind the output of attention or MLP."""
        hidden, size = self.model.hidden_size, self.wide_size
        return ResidualNorm(
            name="post_norm",
            repeat=repeat,
            reduces=True,
            feeds_projection=False,
            hidden=hidden,
            weight_dtype=self.wide_dtype,
            weight_bytes=hidden * size,
            read_bytes_per_token=hidden * size,
            write_bytes_per_token=hidden * size,
            flops_per_token=4 * hidden,
        )

    def all_reduce(self, repeat: int, *, prologue: bool = False) -> list[Operator]:
        """The sum of the ranks' partial hidden states; nothing on a single rank."""
        if self.layout.tp == 1 or repeat == 0:
            return []
        return [
            Collective(
                name="all_reduce",
                part="prologue" if prologue else "layer",
                repeat=repeat,
                hidden=self.model.hidden_size,
                collective="all_reduce",
                sums_hidden=True,
                collective_bytes_per_token=self.model.hidden_size * self.wide_size,
            )
        ]

    def embedding(self) -> Embedding:
        """One row of the table per token, and one of the table of positions."""
        hidden, size, rows = self.model.hidden_size, self.wide_size, self.model.position_rows
        return Embedding(
            name="embedding",
            part="prologue",
            repeat=1,
            hidden=hidden,
            weight_dtype=self.wide_dtype,
            weight_bytes=(self.shape.vocab + rows) * hidden * size,
            read_bytes_per_token=TOKEN_ID_BYTES + hidden * size * (2 if rows else 1),
            write_bytes_per_token=hidden * size,
            flops_per_token=hidden if rows else 0,
        )

    def attention(
        self,
        kind: Sees,
        shape: AttentionShape,
        repeat: int,
        *,
        caching: int | None = None,
    ) -> Attention:
        """Softmax attention of `repeat` layers of one kind, whose rank has the heads of `shape`;
        `caching` of them (None: all) have keys and values of their own, the others read those that
        an earlier layer has cached. What these do not read and write is a mean over all.
        """
        model, latent, dealt = self.model, self.model.latent, self.layout.context_ranks
        # Ranks share a prompt's tokens and a decode's context, and so the pairs.
        parts = self.layout.prefill_context
        sinks = shape.heads * shape.sinks
        # A token sees as many others as through a window of the indexer's choice.
        chooses = latent is not None or kind == "block_sparse"
        chosen = model.indexer.topk if model.indexer is not None and chooses else 0
        name = "attention" if kind == "full" else f"attention_{kind}"
        if chosen:
            name = "attention_sparse"
        if latent is None:
            new, cached = shape.cached_width, shape.cached_width * self.kv_size
            reads, outputs = shape.query_width + new, shape.output_width
            decode = prefill = 2 * (shape.query_width + outputs)
        else:
            new, cached = 0, model.latent_row_bytes(self.dtypes.kv)
            reads = shape.query_width + latent.cached_width
            outputs = shape.heads * latent.v_dim
            decode = 2 * shape.heads * (latent.cached_width + latent.kv_rank)
            # Sparse attention runs prompts on the compressed cache as well.
            prefill = decode if model.indexer is not None else 2 * (shape.query_width + outputs)
        written = -(-cached // dealt)
        if caching is not None and caching < repeat:
            reads -= new * (repeat - caching) // repeat
            written = -(-written * caching // repeat)
        return Attention(
            name=name,
            feature="attention",
            repeat=repeat,
            block="attention",
            hidden=model.hidden_size,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.key_dim,
            value_dim=0 if latent is not None else shape.value_dim,
            sees=kind,
            window=chosen if kind in ("full", "block_sparse") else model.window,
            sparse=chosen > 0,
            weight_dtype=self.wide_dtype if sinks else "",
            weight_bytes=sinks * self.wide_size,
            read_bytes_per_token=reads * self.wide_size,
            write_bytes_per_token=outputs * self.wide_size + written,
            kv_bytes_per_context_token=-(-cached // dealt),
            flops_per_context_token=-(-prefill // parts),
            decode_flops_per_context_token=-(-decode // parts),
            context_ranks=dealt,
            query_ranks=self.layout.decode_context,
        )

    def experts(self) -> Moe:
        """Expected values: a token's topk choices fall on a rank's experts in proportion to their
        number.
        """
        model, shape = self.model, self.shape
        hidden, width, ep = model.expert_hidden, shape.moe_intermediate, self.layout.ep
        topk = model.num_experts_per_tok
        ways = 2 if model.mlp_gated else 1
        per_expert = self.linear_bytes(ways * width, hidden, "experts") + self.linear_bytes(
            hidden, width, "experts"
        )
        per_expert += (ways * width + hidden) * self.wide_size * model.expert_bias
        between = (ways + 1) * width  # what moves between the two GEMMs
        always = int(model.shared_with_experts)
        of_all_ranks = topk + always * ep  # experts of a token, the shared one on every rank
        return Moe(
            name="moe",
            repeat=model.num_moe_layers,
            block="experts",
            hidden=hidden,
            experts_total=model.num_experts,
            experts_local=shape.experts,
            topk=topk,
            always=always,
            expert_groups=(model.expert_groups, model.groups_per_token),
            moe_inter=width,
            weight_dtype=self.weight_dtype("experts"),
            weight_bytes=(shape.experts + always) * per_expert,
            read_bytes_per_token=-(-of_all_ranks * (2 * hidden + between) * self.wide_size // ep),
            write_bytes_per_token=-(-of_all_ranks * (hidden + between) * self.wide_size // ep)
            + hidden * self.wide_size,
            flops_per_token=-(-of_all_ranks * 2 * (ways + 1) * hidden * width // ep),
        )

    def lm_head(self) -> Gemm:
        """Logits of the sequences that sample."""
        vocab, hidden, size = self.shape.vocab, self.model.hidden_size, self.wide_size
        return Gemm(
            name="lm_head",
            feature="sequences",
            part="head",
            repeat=1,
            gemm_n=vocab,
            gemm_k=hidden,
            hidden=hidden,
            weight_dtype=self.wide_dtype,
            weight_bytes=vocab * (hidden + self.model.lm_head_bias) * size,
            read_bytes_per_token=hidden * size,
            write_bytes_per_token=vocab * size,
            flops_per_token=2 * vocab * hidden,
        )

    def logits_gather(self) -> list[Operator]:
        """Every rank collects the whole vocabulary."""
        if self.layout.tp == 1:
            return []
        return [
            Collective(
                name="logits_gather",
                feature="sequences",
                part="head",
                repeat=1,
                collective="all_gather",
                collective_bytes_per_token=padded_vocab_size(self.model) * self.wide_size,
            )
        ]

    def sampler(self) -> Sampler:
        """Greedy: V1 converts the logits to fp32 and takes the argmax; every rank samples the whole
        vocabulary.
        """
        vocab = self.model.vocab_size
        return Sampler(
            name="sampler",
            feature="sequences",
            part="head",
            repeat=1,
            read_bytes_per_token=(self.wide_size + 4) * vocab,
            write_bytes_per_token=4 * vocab,
            flops_per_token=2 * vocab,
        )

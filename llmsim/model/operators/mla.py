"""The projections of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) on one rank.

Hidden -> (q_rank, kv_rank + rope_dim), the same on every rank; norms; q_rank -> the rank's query
heads; kv_rank -> the rank's keys and values. vLLM computes decodes on the compressed cache: W_UK is
applied to the queries and W_UV to the outputs, which for one token is as many flops, and the same
weights, as kv_b_proj on it: one operator stands for both.
"""

from functools import partial

from msgspec.structs import replace

from llmsim.model.operator import ContextExpansion, IndexerScores, Operator
from llmsim.model.operators.attention_variants import AttentionShape
from llmsim.model.operators.factory import OperatorFactory

INDEX_BYTES = 4
"""Of a chosen token."""


def latent_projections(make: OperatorFactory) -> list[Operator]:
    """Everything before the attention kernel, but for the indexer."""
    model, shape, repeat = make.model, make.shape, make.model.softmax_layers
    latent = model.latent
    assert latent is not None, "the caller checks"
    hidden, query = model.hidden_size, shape.heads * model.head_dim
    down = latent.q_rank + latent.cached_width
    bias = down if model.attention_bias else 0
    first = "qkv_a_proj" if latent.q_rank else "kv_a_proj"
    gemm = partial(make.gemm, part="attention", block="attention", repeat=repeat)
    stream = partial(make.elementwise, block="attention")
    program: list[Operator] = [gemm(first, down, hidden, bias=bias)]
    normed = latent.q_rank + latent.kv_rank
    program.append(make.inner_norm("latent_norm", repeat, normed, weights=normed))
    if latent.q_rank:
        program.append(gemm("q_b_proj", query, latent.q_rank))
    else:
        program.append(gemm("q_proj", query, hidden))
    wide = shape.heads * (latent.nope_dim + latent.v_dim)
    program.append(gemm("kv_b_proj", wide, latent.kv_rank))
    rotated = (shape.heads + 1) * latent.rope_dim
    reads = rotated + latent.rope_dim
    if model.rotary:
        program.append(stream("rotary_emb", repeat, reads=reads, writes=rotated, flops=3 * rotated))
    return program


def context_expansion(make: OperatorFactory, heads: int) -> ContextExpansion | None:
    """Keys and values of cached tokens, for the prompts that have some: vLLM gathers their rows,
    runs kv_b_proj on them, lays the shared rotated part beside each head's keys, and merges two
    attentions by their softmax sums (MLACommonImpl._compute_prefill_context). None where prompts
    attend to the latents: sparse attention.
    """
    model = make.model
    latent = model.latent
    if latent is None or model.indexer is not None:
        return None
    keys = heads * (latent.nope_dim + latent.rope_dim)
    values = heads * latent.v_dim
    stream = partial(make.elementwise, repeat=1, flops=0, block="attention")
    gather = stream("context_gather", reads=0, writes=latent.cached_width)
    expand = make.gemm(
        "context_kv_b_proj",
        heads * latent.nope_dim + values,
        latent.kv_rank,
        part="attention",
        block="attention",
        repeat=1,
    )
    lay = stream("context_keys", reads=heads * latent.nope_dim + latent.rope_dim, writes=keys)
    merge = stream("merge_attentions", reads=2 * values, writes=values)
    cached_bytes = model.latent_row_bytes(make.dtypes.kv)
    return ContextExpansion(
        (replace(gather, read_bytes_per_token=cached_bytes), expand, lay), merge
    )


def latent_indexer(make: OperatorFactory) -> list[Operator]:
    """Sparse attention's choice of tokens, whole on every rank (DeepSeek-V3.2, arXiv 2512.02556,
    equation 1; shapes: vLLM's Indexer, deepseek_v2.py): queries from the queries' latent, one key
    and the heads' weights from the hidden state in one GEMM that is never quantised; a LayerNorm of
    the key, rotation, both in fp8. Then every head scores every token before: 2 heads dim flops in
    fp8 for a pair, which reads the token's key.
    """
    model = make.model
    indexer, latent, repeat = model.indexer, model.latent, model.num_indexer_layers
    assert indexer is not None and latent is not None, "the caller checks"
    if not repeat:
        return []
    width, cached = indexer.heads * indexer.dim, indexer.cached_bytes
    both = width + indexer.dim
    scores = IndexerScores(
        name="indexer",
        feature="attention",
        repeat=repeat,
        block="indexer",
        hidden=model.hidden_size,
        heads=indexer.heads,
        kv_heads=1,
        head_dim=indexer.dim,
        weight_dtype="fp8",
        read_bytes_per_token=both,
        write_bytes_per_token=cached + indexer.topk * INDEX_BYTES,
        kv_bytes_per_context_token=cached,
        flops_per_context_token=2 * width,
        decode_flops_per_context_token=2 * width,
    )
    gemm = partial(make.gemm, block="indexer", repeat=repeat)
    return [
        gemm("indexer_q_proj", width, latent.q_rank, part="attention"),
        gemm("indexer_k_proj", indexer.dim + indexer.heads, model.hidden_size, part="wide"),
        make.elementwise(
            "indexer_norm",
            repeat,
            reads=both,
            writes=-(-both // make.wide_size),
            flops=8 * both,
            weights=2 * indexer.dim,
            block="indexer",
        ),
        scores,
    ]


def block_indexer(make: OperatorFactory, shape: AttentionShape, repeat: int) -> list[Operator]:
    """The choice of blocks by a rank's index heads, whose queries and key come with the layer's
    own projections: norms and rotation of both, and the score of every token before (MiniMax M3;
    shapes: vLLM's MiniMaxM3SparseAttention and transformers' MiniMaxM3VLIndexer). A block has its
    best token's score.
    """
    indexer = make.model.indexer
    if indexer is None or not shape.index_heads:
        return []
    width, cached = shape.index_heads * shape.index_dim, indexer.cached_bytes
    both = width + shape.index_dim
    norm = make.elementwise(
        "indexer_norm",
        repeat,
        reads=both,
        writes=both,
        flops=7 * both,
        weights=2 * shape.index_dim,
        block="indexer",
        reduces=True,
    )
    scores = IndexerScores(
        name="indexer",
        feature="attention",
        repeat=repeat,
        block="indexer",
        hidden=make.model.hidden_size,
        heads=shape.index_heads,
        kv_heads=1,
        head_dim=shape.index_dim,
        read_bytes_per_token=both * make.wide_size,
        write_bytes_per_token=cached
        + shape.index_heads * indexer.topk // indexer.block * INDEX_BYTES,
        kv_bytes_per_context_token=cached,
        flops_per_context_token=2 * width,
        decode_flops_per_context_token=2 * width,
    )
    return [norm, scores]

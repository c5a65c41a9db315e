"""The operators of attention to the last tokens and to a compressed context on one rank
(DeepSeek-V4; shapes: vLLM's DeepseekV4Attention, DeepseekCompressor and DeepseekV4Indexer).

Hidden -> (queries' latent, one row), the same on every rank; norms; latent -> the rank's query
heads, normed and rotated. Layers with a compressed context pool every 128 tokens, or every 4 over a
window of 8, into one more row: two projections in 16 bits, kept in fp32 until their group is whole.
Sparse layers have an indexer with pooled keys, which chooses rows. One kernel attends to the window
and to the rows. Outputs pass through a matrix for each group of heads, and one to the hidden state.
"""

from functools import partial

from msgspec.structs import replace

from llmsim.model.operator import Attention, IndexerScores, Operator, SeenBeside, Sees
from llmsim.model.operators.attention_variants import CompressedAttention
from llmsim.model.operators.factory import OperatorFactory
from llmsim.model.operators.mla import INDEX_BYTES
from llmsim.model.types import LayerKind

STATE_BYTES = 4
"""Of an element that waits to be pooled."""
KINDS: tuple[Sees, ...] = ("sliding", "compressed", "compressed_sparse")


def compressed_layers(make: OperatorFactory) -> list[Operator]:
    """The mixer of all layers; nothing where the model attends otherwise."""
    model, shape = make.model, make.model.compressed
    if shape is None:
        return []
    program = _projections(make, shape)
    for kind in ("compressed", "compressed_sparse"):
        if layers := model.layers_with(kind):
            pool = _pooling(make, shape, kind, shape.dim, "pool_" + kind, len(layers))
            program += [replace(op, in_layers=layers) for op in pool]
    if layers := model.layers_with("compressed_sparse"):
        program += [replace(op, in_layers=layers) for op in _indexer(make, shape, len(layers))]
    for kind in KINDS:
        if layers := model.layers_with(kind):
            program.append(_attention(make, shape, kind, layers))
    return program + _output(make, shape)


def _projections(make: OperatorFactory, shape: CompressedAttention) -> list[Operator]:
    repeat, heads, hidden = make.model.softmax_layers, make.shape.heads, make.model.hidden_size
    gemm = partial(make.gemm, part="attention", block="attention", repeat=repeat)
    down, width = shape.q_rank + shape.dim, heads * shape.dim
    rotated = (heads + 1) * shape.rope_dim
    return [
        gemm("qkv_a_proj", down, hidden),
        make.inner_norm("latent_norm", repeat, down, weights=down),
        gemm("q_b_proj", width, shape.q_rank),
        make.elementwise(
            "rotary_emb",
            repeat,
            reads=width + shape.dim + shape.rope_dim,
            writes=width,
            flops=4 * width + 3 * rotated,
            block="attention",
            reduces=True,
        ),
    ]


def _pooling(
    make: OperatorFactory, shape: CompressedAttention, kind: LayerKind, dim: int, name: str, n: int
) -> list[Operator]:
    """Two projections, and the pooling of as many elements as they make: each is read when its
    group is whole, once for every row that it is part of.
    """
    wide = 2 * shape.overlap(kind) * dim
    state = shape.state_bytes(kind, dim)
    positions = shape.ratio(kind) * shape.overlap(kind) * dim
    gemm = make.gemm(name, wide, make.model.hidden_size, part="wide", block="attention", repeat=n)
    gemm = replace(gemm, write_bytes_per_token=wide * STATE_BYTES)
    pool = make.elementwise(
        f"{name}_rows", n, reads=0, writes=0, flops=5 * wide, block="attention", reduces=True
    )
    return [
        gemm,
        replace(
            pool,
            weight_dtype="fp32",
            weight_bytes=positions * STATE_BYTES + dim * make.wide_size,
            read_bytes_per_token=wide * STATE_BYTES + state,
            write_bytes_per_token=state + -(-dim * make.kv_size // shape.ratio(kind)),
        ),
    ]


def _indexer(make: OperatorFactory, shape: CompressedAttention, repeat: int) -> list[Operator]:
    """Whole on every rank: queries from their latent, the heads' weights, pooled keys, scores."""
    indexer, hidden = make.model.indexer, make.model.hidden_size
    assert indexer is not None, "sparse layers have one"
    width, ratio = indexer.heads * indexer.dim, shape.ratio("compressed_sparse")
    gemm = partial(make.gemm, block="indexer", repeat=repeat)
    pool = _pooling(make, shape, "compressed_sparse", indexer.dim, "indexer_k_proj", repeat)
    flops, cached = -(-2 * width // ratio), -(-indexer.cached_bytes // ratio)
    scores = IndexerScores(
        name="indexer",
        feature="attention",
        repeat=repeat,
        block="indexer",
        hidden=hidden,
        heads=indexer.heads,
        kv_heads=1,
        head_dim=indexer.dim,
        weight_dtype="fp8",
        read_bytes_per_token=width,
        write_bytes_per_token=cached + indexer.topk * INDEX_BYTES,
        kv_bytes_per_context_token=cached,
        flops_per_context_token=flops,
        decode_flops_per_context_token=flops,
    )
    norm = make.elementwise(
        "indexer_norm",
        repeat,
        reads=width,
        writes=-(-width // make.wide_size),
        flops=5 * width,
        block="indexer",
    )
    return [
        gemm("indexer_q_proj", width, shape.q_rank, part="attention"),
        gemm("indexer_weights_proj", indexer.heads, hidden, part="wide"),
        *(replace(op, block="indexer") for op in pool),
        norm,
        scores,
    ]


def _attention(
    make: OperatorFactory, shape: CompressedAttention, kind: Sees, layers: tuple[int, ...]
) -> Operator:
    """To the rows of a compressed context, counted in its tokens, and to the last tokens beside;
    of layers without one to the last tokens alone.
    """
    model, heads = make.model, make.shape.heads
    ratio, row = shape.ratio(kind), shape.row_bytes(make.dtypes.kv)
    pair = 4 * heads * shape.dim  # products with keys and with values
    sparse = kind == "compressed_sparse"
    chosen = model.indexer.topk * ratio if sparse and model.indexer is not None else 0
    width = heads * shape.dim
    alone = kind == "sliding"
    return Attention(
        name={"sliding": "attention_sliding", "compressed": "attention_compressed"}.get(
            kind, "attention_sparse"
        ),
        feature="attention",
        repeat=len(layers),
        in_layers=layers,
        block="attention",
        hidden=model.hidden_size,
        heads=heads,
        kv_heads=1,
        head_dim=shape.dim,
        sees=kind,
        window=model.window if alone else chosen,
        sparse=sparse,
        weight_dtype=make.wide_dtype,
        weight_bytes=heads * STATE_BYTES,
        read_bytes_per_token=(width + shape.dim) * make.wide_size,
        write_bytes_per_token=width * make.wide_size + row,
        kv_bytes_per_context_token=-(-row // ratio),
        flops_per_context_token=-(-pair // ratio),
        decode_flops_per_context_token=-(-pair // ratio),
        beside=None if alone else SeenBeside(model.window, row, pair),
    )


def _output(make: OperatorFactory, shape: CompressedAttention) -> list[Operator]:
    """The rank's groups of heads, each through its own matrix, and back to the hidden state."""
    model, repeat = make.model, make.model.softmax_layers
    groups = shape.out_groups // make.layout.tp
    width = model.num_attention_heads * shape.dim // shape.out_groups
    gemm = partial(make.gemm, block="attention", repeat=repeat)
    first = gemm("o_a_proj", groups * shape.out_rank, width, part="attention")
    return [
        replace(first, read_bytes_per_token=groups * width * make.wide_size),
        gemm("o_proj", model.hidden_size, groups * shape.out_rank, part="attention_out"),
    ]

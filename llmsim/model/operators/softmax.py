"""The operators of softmax attention on one rank: projections, norms, rotation, the attention
itself, its gate and the output projection. Layers of one shape share their operators; the layers of
a second shape have operators of their own, whose names end with what these layers see.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from msgspec.structs import replace

from llmsim.model.operator import Operator, Sees
from llmsim.model.operators.attention_variants import AttentionShape
from llmsim.model.operators.factory import OperatorFactory
from llmsim.model.operators.mla import (
    block_indexer,
    context_expansion,
    latent_indexer,
    latent_projections,
)
from llmsim.model.types import SoftmaxLayers

KINDS: tuple[Sees, ...] = ("full", "sliding", "chunked", "block_sparse")


def softmax_layers(make: OperatorFactory) -> list[Operator]:
    """The mixer of all layers with softmax attention; nothing where there are none."""
    program: list[Operator] = []
    if make.model.latent is not None:
        return _latent_layers(make)
    for suffix, group in _named_groups(make):
        shape = group.shape.on_rank(make.layout.tp)
        program += _projections(make, group, shape, suffix)
        program += placed(block_indexer(make, shape, len(group.layers)), group.layers)
        for kind in KINDS:
            program += _attention(make, group, shape, kind)
        program += placed(_output(make, shape, len(group.layers), suffix), group.layers)
    return program


def placed(program: Iterable[Operator], layers: tuple[int, ...]) -> list[Operator]:
    """The operators of the layers with these numbers alone."""
    return [replace(op, in_layers=layers) for op in program]


def _named_groups(make: OperatorFactory) -> Iterator[tuple[str, SoftmaxLayers]]:
    """Each shape's layers, and how the names of their operators end: "" for the first shape's."""
    used: set[str] = set()
    for group in make.model.softmax_groups:
        kind = next(kind for kind in KINDS if group.has(kind))
        suffix, again = f"_{kind}" if used else "", 2
        while suffix in used:
            suffix, again = f"_{kind}_{again}", again + 1
        used.add(suffix)
        yield suffix, group


def _latent_layers(make: OperatorFactory) -> list[Operator]:
    model = make.model
    assert model.latent is not None, "the caller looked"
    if not (layers := model.layers_with_softmax):
        return []
    rank, sinks = make.shape, model.attention_sinks
    shape = AttentionShape(rank.heads, rank.kv_heads, model.head_dim, 0, sinks=sinks)
    program = placed(latent_projections(make), layers)
    if model.indexer is not None:
        program += placed(latent_indexer(make), model.layers_with_indexers)
    for kind in KINDS:
        if seen := model.layers_with(kind, *(("both",) if kind == "full" else ())):
            attention = make.attention(kind, shape, len(seen))
            expansion = context_expansion(make, shape.heads)
            program += placed([replace(attention, expansion=expansion)], seen)
    gate = model.attention_shape.gate_dim
    out = AttentionShape(shape.heads, 1, 0, model.latent.v_dim, gate_dim=gate)
    return program + placed(_output(make, out, len(layers), ""), layers)


def _projections(
    make: OperatorFactory, group: SoftmaxLayers, shape: AttentionShape, suffix: str
) -> list[Operator]:
    """Queries, keys and values of the softmax layers, their norms and rotation."""
    if make.model.query_rank:
        program = _factorised_queries(make)
    else:
        program = _plain_projections(make, group, shape, suffix)
    program += placed(_around(make, shape, len(group.with_keys), suffix), group.with_keys)
    alone = _around_queries(make, shape, len(group.without_keys), suffix)
    return program + placed(alone, group.without_keys)


def _around(
    make: OperatorFactory, shape: AttentionShape, repeat: int, suffix: str
) -> list[Operator]:
    """Norm and rotation of queries and keys."""
    rotated = (shape.heads + shape.kv_heads) * shape.key_dim
    names = (f"qk_norm{suffix}", f"rotary_emb{suffix}")
    return _normed_and_rotated(make, names, repeat, rotated, shape.key_dim, sides=2)


def _around_queries(
    make: OperatorFactory, shape: AttentionShape, repeat: int, suffix: str
) -> list[Operator]:
    """Norm and rotation of queries alone."""
    rotated = shape.heads * shape.key_dim
    names = (f"query_norm{suffix}", f"query_rotary_emb{suffix}")
    return _normed_and_rotated(make, names, repeat, rotated, shape.key_dim, sides=1)


def _normed_and_rotated(
    make: OperatorFactory,
    names: tuple[str, str],
    repeat: int,
    width: int,
    key_dim: int,
    *,
    sides: int,
) -> list[Operator]:
    """Norm and rotation, as far as the model has them; `sides`: queries, or queries and keys, each
    with a norm of its own.
    """
    model = make.model
    program: list[Operator] = []
    if repeat and model.qk_norm:
        weights = width if model.qk_norm_whole else sides * key_dim
        if model.qk_norm_weightless:
            weights = 0
        program.append(make.inner_norm(names[0], repeat, width, weights=weights, kernels=sides))
    if repeat and model.rotary:
        rotation = make.elementwise(
            names[1],
            repeat,
            reads=width + key_dim,
            writes=width,
            flops=3 * width,
            block="attention",
        )
        program.append(rotation)
    return program


def _plain_projections(
    make: OperatorFactory, group: SoftmaxLayers, shape: AttentionShape, suffix: str
) -> list[Operator]:
    """One matrix for queries, keys and values; queries alone where a layer uses the keys of an
    earlier one.
    """
    model = make.model
    query = shape.query_width * (1 + model.attention_gate)
    biased = model.attention_bias
    gemm = partial(make.gemm, part="attention", block="attention", k=model.hidden_size)
    program: list[Operator] = []
    if own := group.with_keys:
        width = query + shape.cached_width + shape.index_width
        made = [gemm(f"qkv_proj{suffix}", width, repeat=len(own), bias=width * biased)]
        program += placed(made, own)
    if others := group.without_keys:
        made = [gemm(f"q_proj{suffix}", query, repeat=len(others), bias=query * biased)]
        program += placed(made, others)
    if own and model.value_norm:
        program += placed([_value_norm(make, shape, len(own), suffix)], own)
    return program


def _value_norm(make: OperatorFactory, shape: AttentionShape, repeat: int, suffix: str) -> Operator:
    values = shape.kv_heads * shape.value_dim
    return make.inner_norm(f"value_norm{suffix}", repeat, values, weights=0)


def _factorised_queries(make: OperatorFactory) -> list[Operator]:
    """Multi-matrix factorisation attention: one matrix makes the queries' latent, keys and values
    on every rank; the normed latent gives the rank's query heads (vLLM: Step3TextAttention).
    """
    model, shape, rank = make.model, make.shape, make.model.query_rank
    repeat = model.softmax_layers
    gemm = partial(make.gemm, part="attention", block="attention", repeat=repeat)
    width = rank + 2 * model.num_key_value_heads * model.head_dim
    return [
        gemm("qkv_a_proj", width, model.hidden_size),
        make.inner_norm("query_norm", repeat, rank, weights=rank),
        gemm("q_b_proj", shape.heads * model.head_dim, rank),
    ]


def _attention(
    make: OperatorFactory, group: SoftmaxLayers, shape: AttentionShape, kind: Sees
) -> list[Operator]:
    """The attention of a shape's layers that see as much."""
    own, sharing = group.own.get(kind, ()), group.sharing.get(kind, ())
    if not own and not sharing:
        return []
    layers = tuple(sorted((*own, *sharing)))
    return placed([make.attention(kind, shape, len(layers), caching=len(own))], layers)


def _output(
    make: OperatorFactory, shape: AttentionShape, repeat: int, suffix: str
) -> list[Operator]:
    """The gate, where there is one, and the output projection. Row-parallel: the bias is on every
    rank.
    """
    model, width = make.model, shape.output_width
    program: list[Operator] = []
    if shape.gate_dim:
        gates = shape.heads * shape.gate_dim
        program.append(
            make.gemm(
                f"gate_proj{suffix}",
                gates,
                model.hidden_size,
                part="attention",
                block="attention",
                repeat=repeat,
            )
        )
    if model.attention_gate or shape.gate_dim:
        gates = shape.heads * shape.gate_dim or width
        gate = make.elementwise(
            f"attention_gate{suffix}",
            repeat,
            reads=gates + width,
            writes=width,
            flops=5 * width,
            block="attention",
        )
        program.append(gate)
    bias = model.hidden_size if model.o_proj_bias else 0
    program.append(
        make.gemm(
            f"o_proj{suffix}",
            model.hidden_size,
            width,
            part="attention_out",
            block="attention",
            repeat=repeat,
            bias=bias,
            reads_attention=not (shape.gate_dim or model.attention_gate),
        )
    )
    return program

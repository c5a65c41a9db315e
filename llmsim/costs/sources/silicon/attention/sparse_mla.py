"""Sparse latent attention from the silicon database: vLLM's whole modules of DeepSeek-V3.2 and
GLM-5.

A row is the time from hidden state to hidden state: projections, indexer, top-k, and the attention
to what it chose. The operator "indexer" takes all of it, since it sees every token; the others of
the module, attention among them, take nothing. Other shapes and weights, and cards without these
tables, take the data sheet for indexer and attention and GEMMs for the projections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.core import Provenance
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.interpolation_grid import geometric_axis
from llmsim.costs.source import AttentionCost, OpCost, SplitAttention, SplitGrid, to_ps
from llmsim.costs.sources.silicon.attention.dense import AttentionRows
from llmsim.costs.sources.silicon.attention.grid import PrefillGrid, decode_grid, prompt_times
from llmsim.costs.sources.silicon.attention.mla import GEMM_TYPES, INSIDE, rows_of_heads
from llmsim.model import Attention, Indexer, LatentAttention, short_dtype

if TYPE_CHECKING:
    from llmsim.costs.source import CostRequest
    from llmsim.costs.sources.silicon.database import Database
    from llmsim.model import Attention

Floats = NDArray[np.float64]

MODELS = {
    "deepseek-ai/DeepSeek-V3.2": (
        7168,
        LatentAttention(q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128),
        Indexer(heads=64, dim=128, topk=2048),
    ),
    "zai-org/GLM-5": (
        6144,
        LatentAttention(q_rank=2048, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256),
        Indexer(heads=32, dim=128, topk=2048),
    ),
}
"""Hidden size and attention of the models that were measured, by their names in the tables."""
INSIDE_SPARSE = (*INSIDE, "rotary_emb", "indexer_q_proj", "indexer_k_proj", "indexer_norm")
"""Operators that the rows contain, besides the two kinds of attention."""
Modules = tuple[AttentionRows, AttentionRows]
"""Of prompts and of decodes."""


class WholeModules(Struct, frozen=True):
    """Measured modules of attention, by the operator that takes all of a module's time, and the
    operators that its rows contain besides attention.
    """

    rows: Mapping[str, Modules]
    inside: tuple[str, ...]


def find_sparse(database: Database, request: CostRequest) -> WholeModules | None:
    """Rows of the model's own module, which the indexer's operator takes.

    None if it was not measured, or if layers reuse another layer's token selection.
    """
    model = request.model
    gemm = GEMM_TYPES.get(short_dtype(request.dtypes.of(model, "attention")))
    shape = (model.hidden_size, model.latent, model.indexer)
    name = next((name for name, measured in MODELS.items() if measured == shape), None)
    if name is None or gemm is None or model.num_indexer_layers < model.num_layers:
        return None
    op = next(op for op in request.operators if isinstance(op, Attention) and op.sparse)
    rows = module_rows(database, request, op, ("sparse_context", "sparse_generation"), gemm, name)
    if rows is None:
        return None
    return WholeModules({"indexer": rows}, INSIDE_SPARSE)


def module_rows(
    database: Database,
    request: CostRequest,
    op: Attention,
    tables: tuple[str, str],
    gemm: str,
    model: str,
) -> Modules | None:
    """Rows of prompts and decodes in two tables, for the heads of `op`; prompts without a cached
    prefix.
    """
    context = rows_of_heads(database.tables(tables[0]), op, request, gemm, model)
    generation = rows_of_heads(database.tables(tables[1]), op, request, gemm, model)
    if context is None or generation is None:
        return None
    uncached = context.numbers("step") == 0
    whole = {name: column[uncached] for name, column in context.columns.items()}
    return replace(context, columns=whole), generation


def sparse_attention(
    op: Attention, modules: WholeModules, request: CostRequest, peak_rates: PeakRates
) -> AttentionCost:
    """The whole module's time where the operator takes it; nothing for what is inside another's
    rows.
    """
    rows = modules.rows.get(op.name)
    if rows is None:
        inside = "inside the indexer's rows"
        return SplitAttention(
            repeat=op.repeat,
            grid=_nothing(request),
            skew_ps_per_token_q20=0,
            source=inside,
            skew_source=inside,
        )
    context, generation = rows
    decode = decode_grid(generation, request, op, peak_rates)
    prefill = _prefill(context, request)
    split = SplitGrid(
        prefill.q_axis, prefill.k_axis, prefill.ps, prefill.provenance,
        decode.n_axis, decode.kv_axis, decode.ps, decode.provenance, 0,
    )  # fmt: skip
    label = f"{context.label}; {generation.label} (whole modules of sparse attention)"
    return SplitAttention(
        repeat=op.repeat,
        grid=split,
        skew_ps_per_token_q20=0,
        source=label,
        skew_source="the rows are of equal lengths",
    )


def _prefill(rows: AttentionRows, request: CostRequest) -> PrefillGrid:
    """q new tokens on k cached, from the time T that the device needs for one whole prompt: at
    least T(q), and at least what the tokens behind the first k take in a prompt of k + q, T(k + q)
    - T(k). Beyond the longest prompt a token takes as much more than one before as over the last
    two octaves: only the indexer's part grows.
    """
    lengths, times_us = _on_device(rows)
    q_axis = geometric_axis(1, request.table_tokens, 8)
    k_axis = np.insert(geometric_axis(1, max(request.max_model_len, 2), 4), 0, 0)
    q, k = np.meshgrid(q_axis.astype(np.float64), k_axis.astype(np.float64), indexing="ij")
    alone = _whole(lengths, times_us, q)
    us = np.maximum(alone, _whole(lengths, times_us, k + q) - _whole(lengths, times_us, k))
    marks = np.full(
        us.shape, Provenance.INTERPOLATED if rows.exact else Provenance.SCALED, dtype=np.uint8
    )
    if rows.exact:
        marks[np.isin(q_axis, lengths), 0] = Provenance.MEASURED
    marks[k + q > lengths[-1]] = Provenance.EXTRAPOLATED
    us = np.maximum.accumulate(us, axis=1)
    return PrefillGrid(q_axis, k_axis, to_ps(us), marks)


def _whole(lengths: Floats, times_us: Floats, at: Floats) -> Floats:
    """Time of a prompt: linear between the measured lengths, beyond them quadratic with the last
    slopes.
    """
    inside = np.interp(at, lengths, times_us)
    slopes = np.diff(times_us[-3:]) / np.diff(lengths[-3:])
    middles = (lengths[-2:] + lengths[-3:-1]) / 2
    grows = max(0.0, float((slopes[1] - slopes[0]) / (middles[1] - middles[0])))
    beyond = np.maximum(at - lengths[-1], 0.0)
    last_slope = slopes[1] + grows * (lengths[-1] - middles[1])
    return np.asarray(inside + beyond * last_slope + grows * beyond**2 / 2)


def _nothing(request: CostRequest) -> SplitGrid:
    q, k, n = (np.array([1, max(2, last)]) for last in _last(request))
    none, marks = np.zeros((2, 2), dtype=np.int64), np.zeros((2, 2), dtype=np.uint8)
    return SplitGrid(q, k - 1, none, marks, n, k, none, marks, 0)


def _last(request: CostRequest) -> tuple[int, int, int]:
    return request.table_tokens, request.max_model_len + 1, request.table_sequences


def least_prompt_us(modules: WholeModules) -> float:
    """The shortest measured prompt; of several modules the longest of theirs."""
    return max(float(prompt_times(context)[1][0]) for context, _ in modules.rows.values())


def _on_device(rows: AttentionRows) -> tuple[Floats, Floats]:
    """(lengths, microseconds) of one whole prompt among many, whose kernels the host launches once
    for all of them: the least share of a prompt in the batches that were measured.
    """
    lengths, owner = np.unique(rows.numbers("isl"), return_inverse=True)
    times_us = np.full(len(lengths), np.inf)
    np.minimum.at(times_us, owner, rows.numbers("latency") * 1e3 / rows.numbers("batch_size"))
    return lengths, np.maximum.accumulate(times_us * rows.scale_compute)


def sparse_prefills(modules: WholeModules, request: CostRequest) -> list[OpCost]:
    """What a step with prompts waits for the host in each layer: the shortest prompt's time, less
    what the device needs for as many tokens at least.
    """
    repeats = {op.name: op.repeat for op in request.operators}
    return [
        _waiting(name, context, repeats[name], request)
        for name, (context, _) in modules.rows.items()
        if name in repeats
    ]


def _waiting(name: str, context: AttentionRows, repeat: int, request: CostRequest) -> OpCost:
    lengths, times_us = _on_device(context)
    least = float(prompt_times(context)[1][0])
    tokens = np.arange(request.counts("prefills") + 1)
    ps = to_ps(np.maximum(least - tokens * float((times_us / lengths).min()), 0.0))
    ps[0] = 0
    mark = Provenance.MEASURED if context.exact else Provenance.SCALED
    marks = np.full(len(ps), mark, dtype=np.uint8)
    own = "sparse_prefills" if name == "indexer" else f"{name}_prefills"
    label = f"{context.label}, the shortest prompt"
    return OpCost(own, "layer", repeat, "prefills", ps, marks, label)

"""Latent attention from the silicon database: modules of DeepSeek-V3's shape, or the attention
kernel of any model's.

vLLM's own rows are whole modules, from hidden state to hidden state, of one model (and of Kimi K2,
whose shape it is). For other hidden sizes, query ranks and weights, and where ranks share sequences
by tokens, the kernel's rows of the other frameworks stand in; they depend on the heads and on the
latent's widths, which all published models have in common. Projections then are GEMMs like any
other. On decodes SGLang and vLLM run the same kernels; prompts take TensorRT-LLM's rows first: like
vLLM it expands keys and values and runs plain attention, while SGLang's rows on Hopper attend on
the compressed cache, which takes more than twice as long. What vLLM's module does between its
kernels (copies, small matrices for each head) is what its rows of DeepSeek-V3 have beyond kernel
and projections. SGLang measured the small matrices of decodes themselves, which its own rows give
to a SGLang server, as kernels and projections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.costs.sources.silicon.attention.dense import KV_DTYPES, AttentionRows
from llmsim.costs.sources.silicon.attention.grid import decode_times, prompt_times
from llmsim.costs.sources.silicon.database import TablePath, read_columns
from llmsim.costs.sources.silicon.gemm import GemmTable
from llmsim.model import LatentAttention, short_dtype

if TYPE_CHECKING:
    from llmsim.costs.source import CostRequest
    from llmsim.model import Attention

Floats = NDArray[np.float64]

KERNEL_WIDTHS = {"kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "v_dim": 128}
"""Of the latent attention that the kernels' rows were measured with."""
COLUMNS = [
    "num_heads",
    "batch_size",
    "isl",
    "step",
    "kv_cache_dtype",
    "gemm_type",
    "latency",
    "kernel_source",
]
KERNEL_COLUMNS = [name for name in COLUMNS if name != "gemm_type"]
MEASURED_SHAPE = (
    7168,
    LatentAttention(q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128),
)
"""Hidden size and attention of DeepSeek-V3 (and Kimi K2), which the tables were measured with."""
INSIDE = ("qkv_a_proj", "kv_a_proj", "q_proj", "q_b_proj", "kv_b_proj", "latent_norm", "o_proj")
"""Operators that the rows contain: the profiler times the whole block, from hidden state to hidden
state. So is the rotation, which has the name of other models' and is matched apart.
"""
GEMM_TYPES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8_block"}


def find_modules(
    tables: list[TablePath], op: Attention, request: CostRequest
) -> AttentionRows | None:
    """Rows of the module on one rank; None where the model has another shape, or no table its
    weights' type.
    """
    model = request.model
    gemm = GEMM_TYPES.get(short_dtype(request.dtypes.of(model, "attention")))
    if request.layout.decode_context > 1:  # its attention has other heads than its projections
        return None
    if model.latent is None or (model.hidden_size, model.latent) != MEASURED_SHAPE or gemm is None:
        return None
    return rows_of_heads(tables, op, request, gemm)


def find_kernels(
    tables: list[TablePath], op: Attention, request: CostRequest
) -> AttentionRows | None:
    """Rows of the attention kernel alone, for the operator's heads; None where the model's latent
    has other widths.

    Never measured: another framework's kernel, without what vLLM's module does between its kernels.
    """
    latent = request.model.latent
    if latent is None or any(
        getattr(latent, name) != width for name, width in KERNEL_WIDTHS.items()
    ):
        return None
    found = rows_of_heads(tables, op, request, None)
    return None if found is None else replace(found, exact=False)


ON_LATENTS = ("flash_attention", "flashinfer", "triton")
"""SGLang's kernels whose rows of prompts attend to the cached latents."""


def find_kernels_on_latents(
    tables: list[TablePath], op: Attention, request: CostRequest
) -> AttentionRows | None:
    """As `find_kernels`, of prompts that attend to the cached latents."""
    return find_kernels([table for table in tables if _is_on_latents(table)], op, request)


def _is_on_latents(table: TablePath) -> bool:
    kernels = set(read_columns(table.path, ["kernel_source"])["kernel_source"].tolist())
    return kernels <= set(ON_LATENTS)


def between_kernels(
    module: AttentionRows, kernel: AttentionRows, gemms: GemmTable, heads: int, *, prompts: bool
) -> tuple[Floats, Floats]:
    """(tokens, microseconds): the time of the measured module of as many heads beyond its kernel
    and its projections.

    Of prompts, or of decodes at the shortest KV. The streaming kernels beside them are still in it.
    """
    if prompts:
        (tokens, us), (points, attention) = prompt_times(module), prompt_times(kernel)
    else:
        tokens, _, whole = decode_times(module)
        points, _, alone = decode_times(kernel)
        us, attention = np.nanmin(whole, axis=1), np.nanmin(alone, axis=1)
    us = us - np.interp(tokens, points, attention)
    hidden, latent = MEASURED_SHAPE
    shapes = (
        (latent.q_rank + latent.cached_width, hidden),
        (heads * (latent.nope_dim + latent.rope_dim), latent.q_rank),
        (heads * (latent.nope_dim + latent.v_dim), latent.kv_rank),
        (hidden, heads * latent.v_dim),
    )
    for n, k in shapes:
        us = us - gemms.curve_us(n, k, tokens)[0]
    return tokens, us


PRODUCTS = ("mla_gen_pre", "mla_gen_post")
"""Of a decode's queries with the keys' matrix of each head, and of what attention gives with the
values'.
"""
PRODUCT_COLUMNS = ["op_name", "bmm_dtype", "num_tokens", "num_heads", "latency"]


def absorbed_products(
    tables: list[TablePath], op: Attention, request: CostRequest
) -> tuple[str, Floats, Floats] | None:
    """(source, tokens, microseconds) of both products of a decode with the matrices of its heads,
    which stand in for the projection of its keys and values; None where nobody measured them.
    """
    attention = short_dtype(request.dtypes.of(request.model, "attention"))
    dtype = "fp8" if attention == "fp8" else "bfloat16"
    for table in tables:
        rows = read_columns(table.path, PRODUCT_COLUMNS)
        keep = rows["bmm_dtype"] == dtype
        if not bool(keep.any()):
            continue
        known = np.unique(rows["num_heads"][keep].astype(np.int64))
        heads = int(known[min(int(np.searchsorted(known, op.heads)), len(known) - 1)])
        keep &= rows["num_heads"] == heads
        tokens = np.unique(rows["num_tokens"][keep].astype(np.float64))
        us = np.zeros_like(tokens)
        for name in PRODUCTS:
            of_one = keep & (rows["op_name"] == name)
            order = np.argsort(rows["num_tokens"][of_one], kind="stable")
            points = rows["num_tokens"][of_one][order].astype(np.float64)
            us += np.interp(tokens, points, rows["latency"][of_one][order] * 1e3)
        return f"{table.label} {dtype}", tokens, us * op.heads / heads
    return None


def rows_of_heads(
    tables: list[TablePath], op: Attention, request: CostRequest, gemm: str | None, model: str = ""
) -> AttentionRows | None:
    """Rows of a number of heads, of modules with weights of type `gemm` (and of one `model`), or
    (None) of kernels.

    A number of heads that was not measured takes the next larger one's rows, scaled by the heads.
    """
    wanted_kv = KV_DTYPES[short_dtype(request.dtypes.kv)]
    for dtype in dict.fromkeys((wanted_kv, "bfloat16")):
        for table in tables:
            columns = COLUMNS if gemm else KERNEL_COLUMNS
            rows = read_columns(table.path, [*columns, "model"] if model else columns)
            keep = rows["kv_cache_dtype"] == dtype
            if model:
                keep &= rows["model"] == model
            if gemm:
                keep &= rows["gemm_type"] == gemm
            if not bool(keep.any()):
                continue
            known = np.unique(rows["num_heads"][keep].astype(np.int64))
            heads = int(known[min(int(np.searchsorted(known, op.heads)), len(known) - 1)])
            keep &= rows["num_heads"] == heads
            label = (
                f"{table.label} {gemm}, {dtype} cache" if gemm else f"{table.label}, {dtype} cache"
            )
            if heads != op.heads:
                label += f", scaled from heads={heads}"
            scale = op.heads / heads
            kept = {name: column[keep] for name, column in rows.items()}
            return AttentionRows(label, heads == op.heads and dtype == wanted_kv, scale, 1.0, kept)
    return None

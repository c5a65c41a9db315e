"""Cost source: measured kernels of the silicon database in aiconfigurator-core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.core import Provenance
from llmsim.costs.context_expansion import with_expansion
from llmsim.costs.hardware_limits import PeakRates, peak_rates_of
from llmsim.costs.source import (
    AttentionCost,
    CostRequest,
    CostSource,
    Curve,
    OpCost,
    SplitAttention,
    SplitGrid,
    to_ps,
)
from llmsim.costs.sources.decode_skew import mixed_decode_q20, skew_note, skew_q20
from llmsim.costs.sources.roofline import RooflineSource
from llmsim.costs.sources.silicon.attention.dense import AttentionRows, find_rows
from llmsim.costs.sources.silicon.attention.grid import (
    SINKS_LABEL,
    decode_grid,
    prefill_grid,
    sinks_on_triton,
)
from llmsim.costs.sources.silicon.attention.linear import linear_curve
from llmsim.costs.sources.silicon.attention.mla import (
    INSIDE,
    absorbed_products,
    between_kernels,
    find_kernels,
    find_modules,
    rows_of_heads,
)
from llmsim.costs.sources.silicon.attention.on_latents import Others, latent_grid
from llmsim.costs.sources.silicon.attention.sparse_mla import (
    WholeModules,
    find_sparse,
    least_prompt_us,
    sparse_attention,
    sparse_prefills,
)
from llmsim.costs.sources.silicon.auxiliary_kernels import expert_choices, kv_writes
from llmsim.costs.sources.silicon.block_modules import find_blocks
from llmsim.costs.sources.silicon.compressed_modules import find_compressed
from llmsim.costs.sources.silicon.database import Database, TablePath
from llmsim.costs.sources.silicon.experts.curve import moe_curve
from llmsim.costs.sources.silicon.gemm import GemmTable, load_gemm
from llmsim.costs.sources.silicon.input_scaling import InputScaling, input_scaling
from llmsim.costs.sources.silicon.memory_bound import Streaming, streaming
from llmsim.costs.sources.silicon.streams import streams_curve
from llmsim.costs.sources.silicon.sustained_clock import sustained
from llmsim.model import (
    Attention,
    Collective,
    Gemm,
    IndexerScores,
    Moe,
    StateSpace,
    StreamMix,
    dtype_bytes,
    short_dtype,
)

if TYPE_CHECKING:
    from llmsim.model import Operator

Floats = NDArray[np.float64]

KERNEL_GAP_PS = 0
"""Idle time between two kernels of a replayed graph or a full launch queue, for each kernel.

0, because the tables already hold a fixed part for every kernel: a 1 x 32 x 32 GEMM, which computes
next to nothing, takes 1.8 us (RTX PRO 6000) to 2.6 us (H100) there, the shortest attention call 8
to 12 us, a streaming kernel 1.5 to 2.2 us. Another microsecond would count that twice, and nothing
but an end-to-end log argues for it. A positive value becomes the operator `kernel_gap`, so that it
is seen.
"""
WIDE = "bf16"
LEAST_MS_US = 100
"""Shorter times are said in microseconds."""
DECODE_ROWS = 256
"""Narrow weights are compared with wide ones at batches of up to so many tokens."""
NARROW_LOSS = 1.2
"""From this ratio on, a note says that narrow weights do not pay: below, the two were measured
alike.
"""
SCALED_ELSEWHERE = ", less the scaling of its input that the operator before does"
KINDS = {"gemm": "matrices", "moe": "experts"}
LATENT_FEATURES: tuple[Literal["prefills", "decodes"], ...] = ("prefills", "decodes")
GEMM_DTYPES = {
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16",),
    "fp8": ("fp8", "fp8_block"),
    "int8": ("int8_wo",),
    "fp32": (),
    "fp4": ("nvfp4",),
    "int4": ("int4_wo",),
}


class SiliconSource(CostSource):
    """Times of vLLM's kernels on a measured card, operator by operator; nothing is
    fitted to a run.
    """

    name = "silicon"
    kind = "silicon"
    measured_routing = "POWER_LAW"
    in_bursts = True
    enforce_floor = True

    def __init__(self, request: CostRequest, database: Database) -> None:
        peak_rates = peak_rates_of(request)
        if peak_rates is None:
            raise AssertionError("a card of the database has a data sheet")
        self._request = request
        self._database = database
        self._peak_rates: PeakRates = peak_rates
        self._gemms: dict[str, GemmTable | None] = {}
        self._scalings: dict[tuple[TablePath, str], InputScaling | None] = {}
        self._notes: list[str] = []
        self._beside_wide: dict[tuple[str, str], list[float]] = {}
        self._streaming: Streaming | None = None
        self._sparse = whole_modules(database, request)
        sparse = request.model.indexer is not None or request.model.compressed is not None
        latent = request.model.latent is not None and not sparse
        self._modules = (
            latent
            and not self._has_own_products()
            and self._module_rows(self._any_attention()) is not None
        )

    def operator(self, op: Operator, last: int) -> Curve | None:
        """Times for 1..last; None for collectives and for what the database lacks (the caller says
        so).
        """
        if isinstance(op, Collective):
            return None
        if op.name in self._inside():
            zero = np.zeros(last + 1, dtype=np.int64)
            return Curve(
                zero,
                zero.astype(np.uint8),
                "inside the latent attention's rows of the silicon database",
            )
        linear = linear_curve(self._state_tables(), op, self._request, last)
        if linear is not None:
            return self._lit(op, linear)
        match op:
            case StateSpace():
                return None
            case StreamMix() if (mixed := self._streams(op, last)) is not None:
                return self._lit(op, mixed)
            case Gemm() | Moe():
                curve = self._matrices(op, last)
                if curve is None:
                    return None
                self._compare_with_wide(op, curve)
                if not self._request.sustained_clock:
                    return curve
                return sustained(curve, op, self._request.hardware)
            case _:
                return self._lit(op, self._elementwise(op, last))

    def _state_tables(self) -> list[TablePath]:
        """Of the kernels of layers with a state."""
        linear = self._request.model.linear
        kda = linear is not None and linear.kind == "kda"
        return self._database.tables("kda" if kda else "linear_attention")

    def _streams(self, op: StreamMix, last: int) -> Curve | None:
        return streams_curve(self._database.tables("streams"), op, last)

    def _inside(self) -> tuple[str, ...]:
        """Operators whose time is in the rows of whole modules."""
        if self._modules:
            return (*INSIDE, "rotary_emb")
        return self._sparse.inside if self._sparse is not None else ()

    def _matrices(self, op: Gemm | Moe, last: int) -> Curve | None:
        if isinstance(op, Gemm):
            return self._gemm(op, last)
        element = float(dtype_bytes(op.weight_dtype or self._request.dtypes.weight))
        curve = moe_curve(
            self._database.tables("moe"), op, self._request, self._peak_rates, element, last
        )
        return self._lit(op, curve) if curve is not None else None

    def _compare_with_wide(self, op: Gemm | Moe, curve: Curve) -> None:
        """Keeps how long the narrow weights of `op` take at batches of decodes, beside bfloat16."""
        dtype = short_dtype(op.weight_dtype or self._request.dtypes.weight)
        widening = dtype_bytes(WIDE) / dtype_bytes(dtype)
        if widening <= 1 or len(curve.ps) < 2:
            return
        wide_op = replace(op, weight_dtype=WIDE, weight_bytes=round(op.weight_bytes * widening))
        wide = self._matrices(wide_op, len(curve.ps) - 1)
        if wide is not None:
            counts = slice(1, DECODE_ROWS + 1)
            ratio = float(np.mean(curve.ps[counts] / np.maximum(wide.ps[counts], 1)))
            self._beside_wide.setdefault((op.kind, dtype), []).append(ratio)

    def _any_attention(self) -> Attention:
        return next(op for op in self._request.operators if isinstance(op, Attention))

    def _module_rows(self, op: Attention) -> tuple[AttentionRows, AttentionRows] | None:
        context = find_modules(self._database.tables("mla_context"), op, self._request)
        generation = find_modules(self._database.tables("mla_generation"), op, self._request)
        return (context, generation) if context is not None and generation is not None else None

    def _has_own_products(self) -> bool:
        """Whether the engine's framework measured latent attention kernel by kernel, not whole."""
        own = self._database.own_tables
        return bool(own("mla_products")) and not own("mla_generation")

    def _kernel_rows(self, op: Attention) -> tuple[AttentionRows, AttentionRows] | None:
        context = find_kernels(self._database.tables("mla_context_kernel")[::-1], op, self._request)
        generation = find_kernels(self._database.tables("mla_generation_kernel"), op, self._request)
        return (context, generation) if context is not None and generation is not None else None

    def attention(self, op: Attention) -> AttentionCost | None:
        """Prefill and decode of the head shape; mixed steps and unequal lengths by the card's
        measured constants.
        """
        if in_module(op, self._request):
            if self._sparse is None:
                return None
            return sparse_attention(op, self._sparse, self._request, self._peak_rates)
        if self._request.model.latent is not None:
            found = self._module_rows(op) if self._modules else self._kernel_rows(op)
            if found is None:
                return None
            context, generation = found
        else:
            context = find_rows(
                self._database.tables("context_attention"), op, self._request.dtypes.kv
            )
            generation = find_rows(
                self._database.tables("generation_attention"), op, self._request.dtypes.kv
            )
        decode = decode_grid(generation, self._request, op, self._peak_rates)
        prefill = prefill_grid(context, decode, self._request, op, self._peak_rates)
        kappa, how = skew_q20(self._request, op)
        if not kappa:
            self._notes.append(skew_note(how))
        on_triton = SINKS_LABEL if sinks_on_triton(self._request) else ""
        split = SplitGrid(
            prefill.q_axis,
            prefill.k_axis,
            prefill.ps,
            prefill.provenance,
            decode.n_axis,
            decode.kv_axis,
            decode.ps,
            decode.provenance,
            mixed_decode_q20(self._request, op),
            prefill.shared_ppm,
        )
        expanding, whose = with_expansion(split, op, self._request, self._context_kernel)
        latents, whose_latents = latent_grid(
            self._database.tables("mla_context_kernel"),
            op,
            self._request,
            self._peak_rates,
            Others(prefill, decode, self._modules),
        )
        return SplitAttention(
            repeat=op.repeat,
            grid=replace(expanding, on_latents=latents),
            skew_ps_per_token_q20=kappa,
            source=f"{context.label}{on_triton}; {generation.label}{whose}{whose_latents}",
            skew_source=how,
        )

    def _context_kernel(self, op: Operator, last: int) -> Curve:
        """Times of a kernel over cached tokens; from the data sheet where the database has none."""
        if not isinstance(op, Gemm):
            return self._lit(op, self._elementwise(op, last))
        measured = self._gemm(op, last)
        return RooflineSource(self._request).operator(op, last) if measured is None else measured

    def extra_ops(self) -> list[OpCost]:
        """Kernels without a table of their own, and the gap between kernels while it is not 0."""
        if self._streaming is None:
            self._streaming = self._streaming_kernels()
        pooled = self._request.model.compressed is not None  # written with the rotation
        apart = [
            op
            for op in self._request.operators
            if isinstance(op, Attention) and not (self._sparse and in_module(op, self._request))
        ]
        inside = self._modules or pooled
        writes = [] if inside else kv_writes(self._request, self._streaming, apart)
        beside = writes + expert_choices(self._request, self._streaming)
        if self._sparse is not None:
            beside += sparse_prefills(self._sparse, self._request)
        return beside + self._between_latent_kernels() + self._kernel_gap()

    def _between_latent_kernels(self) -> list[OpCost]:
        """What a module of latent attention does besides the operators that stand for it, scaled
        from DeepSeek-V3's.
        """
        gemms, model = self._gemm_table(WIDE), self._request.model
        if gemms is None or model.latent is None or model.indexer is not None or self._modules:
            return []
        op = self._any_attention()
        kernels = self._kernel_rows(op)
        if kernels is None:
            return []
        products = self._decode_products(op)
        found = [] if products is None else [products]
        for kernel, kind, feature in zip(
            kernels, ("context", "generation"), LATENT_FEATURES, strict=True
        ):
            if kind == "generation" and products is not None:
                continue
            module = rows_of_heads(
                self._database.tables(f"mla_{kind}"), op, self._request, GEMM_DTYPES[WIDE][0]
            )
            if module is None:
                continue
            tokens, us = between_kernels(module, kernel, gemms, op.heads, prompts=kind == "context")
            counts = np.arange(self._request.counts(feature) + 1)
            ps = to_ps(np.interp(counts, tokens, us))
            for beside in self._request.operators:
                if beside.name in ("latent_norm", "rotary_emb"):
                    ps = ps - self._elementwise(beside, len(ps) - 1).ps
            ps = np.where(counts > 0, np.maximum(ps, 0), 0)
            marks = np.full(len(ps), Provenance.SCALED, dtype=np.uint8)
            source = f"{module.label}, beyond its kernels"
            found.append(
                OpCost(f"latent_{feature}", "layer", op.repeat, feature, ps, marks, source)
            )
        return found

    def _decode_products(self, op: Attention) -> OpCost | None:
        """The products that decodes run in place of the projection of their keys and values, beyond
        that projection; None where the engine's framework did not measure them.
        """
        if not self._has_own_products():
            return None
        measured = absorbed_products(self._database.own_tables("mla_products"), op, self._request)
        if measured is None:
            return None
        source, tokens, us = measured
        feature = LATENT_FEATURES[1]
        counts = np.arange(self._request.counts(feature) + 1)
        ps = to_ps(np.interp(counts, tokens, us))
        for replaced in self._request.operators:
            if not isinstance(replaced, Gemm) or replaced.name != "kv_b_proj":
                continue
            curve = self._gemm(replaced, len(ps) - 1)
            if curve is not None:
                ps = ps - curve.ps
        ps = np.where(counts > 0, np.maximum(ps, 0), 0)
        marks = np.full(len(ps), Provenance.INTERPOLATED, dtype=np.uint8)
        return OpCost(f"latent_{feature}", "layer", op.repeat, feature, ps, marks, source)

    def _kernel_gap(self) -> list[OpCost]:
        if KERNEL_GAP_PS == 0:
            return []
        kernels = sum(op.repeat for op in self._request.operators)
        ps = np.full(self._request.table_tokens + 1, KERNEL_GAP_PS, dtype=np.int64)
        ps[0] = 0
        marks = np.full(len(ps), Provenance.ANALYTIC, dtype=np.uint8)
        return [
            OpCost(
                "kernel_gap",
                "layer",
                kernels,
                "tokens",
                ps,
                marks,
                "constant of the silicon source",
            )
        ]

    def notes(self) -> list[str]:
        """What the database could not say, and where it says that narrow weights do not pay."""
        narrow = [
            f"{KINDS[kind]} with {dtype} weights take {float(np.mean(ratios)):.1f} times as long "
            f"as with bfloat16 at batches of up to {DECODE_ROWS} tokens: so their kernels were "
            "measured; another kernel may do better (--cost-source roofline has no such losses)"
            for (kind, dtype), ratios in self._beside_wide.items()
            if float(np.mean(ratios)) > NARROW_LOSS
        ]
        return [*self._notes, *self._sparse_notes(), *narrow]

    def _sparse_notes(self) -> list[str]:
        if self._sparse is None:
            return []
        least_us = least_prompt_us(self._sparse)
        least = f"{least_us / 1e3:.1f} ms" if least_us >= LEAST_MS_US else f"{least_us:.0f} us"
        return [
            f"steps with prompts take at least {least} in each layer of sparse attention: so "
            "vLLM's module was timed, at the pace at which the host launches its kernels"
        ]

    def _gemm(self, op: Gemm, last: int) -> Curve | None:
        table = self._gemm_table(short_dtype(op.weight_dtype or self._request.dtypes.weight))
        if table is None:
            return None
        counts = np.arange(last + 1, dtype=np.float64)
        us, marks, label = table.curve_us(op.gemm_n, op.gemm_k, counts)
        absent_us = self._absent_scaling_us(op, table, counts)
        if bool(absent_us.any()):
            us = us - absent_us
            marks = np.where(marks == Provenance.MEASURED, np.uint8(Provenance.INTERPOLATED), marks)
            label += SCALED_ELSEWHERE
        ps = to_ps(us)
        ps[0] = 0
        return self._lit(op, Curve(ps, marks, label))

    def _absent_scaling_us(self, op: Gemm, table: GemmTable, counts: Floats) -> Floats:
        """What rows of fp8 matrices contain and this engine's server has not."""
        if table.rows is None or not self._request.fused_scaling:
            return np.zeros_like(counts)
        if table.rows not in self._scalings:
            self._scalings[table.rows] = input_scaling(self._database, *table.rows)
        scaling = self._scalings[table.rows]
        if scaling is None:
            return np.zeros_like(counts)
        fixed = self._request.model.fixed_input_scales
        return scaling.absent_us(op, counts, fused=self._request.compiles_scaling, fixed=fixed)

    def _gemm_table(self, dtype: str) -> GemmTable | None:
        if dtype not in self._gemms:
            names = GEMM_DTYPES.get(dtype, ())
            model = self._request.model
            if dtype == "fp8" and model.weight_dtype == "fp8" and model.weight_block is not None:
                names = tuple(reversed(names))
            size = float(dtype_bytes(dtype))
            tables = self._database.tables("gemm")
            self._gemms[dtype] = (
                load_gemm(tables, names, size, self._peak_rates.peak(dtype), self._peak_rates)
                if names
                else None
            )
        return self._gemms[dtype]

    def _streaming_kernels(self) -> Streaming:
        of_card = self._request.card_streaming
        return streaming(self._database, self._peak_rates, of_card=of_card)

    def _elementwise(self, op: Operator, last: int) -> Curve:
        """By the bytes that it moves: the card's own streaming kernel at equal bytes
        (streaming.py).
        """
        if self._streaming is None:
            self._streaming = self._streaming_kernels()
        ps = to_ps(self._streaming.curve_us(op, np.arange(last + 1, dtype=np.float64)))
        ps[0] = 0
        marks = np.full(last + 1, self._streaming.provenance, dtype=np.uint8)
        return Curve(ps, marks, self._streaming.label)

    def _lit(self, op: Operator, curve: Curve) -> Curve:
        """Raises what is below the speed of light to it, marked analytic."""
        counts = np.arange(len(curve.ps), dtype=np.float64)
        least = np.ceil(
            self._peak_rates.operator_us(op, counts, self._request.dtypes.activation) * 1e6
        ).astype(np.int64)
        low = curve.ps < least
        if not bool(low.any()):
            return curve
        marks = np.where(low, np.uint8(Provenance.ANALYTIC), curve.provenance)
        return Curve(
            np.maximum(curve.ps, least),
            marks.astype(np.uint8),
            f"{curve.source}, raised to the speed of light",
        )


def whole_modules(database: Database, request: CostRequest) -> WholeModules | None:
    """Measured modules of the layers whose indexer chooses, or that pool their context; None for
    other models, and where the model's were not measured.
    """
    model = request.model
    if model.compressed is not None:
        return find_compressed(database, request)
    if model.indexer is None:
        return None
    return find_blocks(database, request) if model.indexer.block else find_sparse(database, request)


def in_module(op: Attention, request: CostRequest) -> bool:
    """Whether the operator's layers are of such a kind."""
    model = request.model
    if model.indexer is not None and model.indexer.block:
        return op.sparse or isinstance(op, IndexerScores)
    return model.indexer is not None or model.compressed is not None

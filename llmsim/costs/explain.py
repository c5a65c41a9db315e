"""Shows compiled cost tables to a person: every operator's time at a few sizes, and where the
numbers come from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from llmsim.core import Int64, Provenance
from llmsim.costs.source import AttentionCost, CompiledCosts, MixedAttention, SplitAttention

SIZES = (1, 16, 128, 512, 2048, 8192)
DECODE_BATCHES = (1, 8, 32, 128)
CONTEXT_TOKENS = (256, 1024, 4096, 16384)
PS_PER_US = 1e6


def explain(compiled: CompiledCosts) -> str:
    """A plain-text report: microseconds of one execution per operator, attention, sources and
    notes.
    """
    lines = ["microseconds of one execution, by tokens (head: by sequences)"]
    lines.append(_row("operator", "x", [str(size) for size in SIZES], "source"))
    for op in compiled.ops:
        cells = [f"{op.ps[size] / PS_PER_US:.1f}" if size < len(op.ps) else "" for size in SIZES]
        lines.append(_row(op.name, str(op.repeat), cells, op.source))
    for attention in compiled.attentions:
        lines += _attention_lines(attention)
    where = "the links of the cluster" if compiled.link_collectives else "tables, or none needed"
    lines.append(f"collectives: {where}")
    lines.append(f"confidence (table cells): {_confidence(compiled)}")
    lines += [f"note: {note}" for note in compiled.notes]
    lines.append(f"table hash: {compiled.table_hash}")
    return "\n".join(lines)


def decode_us(attention: AttentionCost, n: int, cached_tokens: int) -> float:
    """Attention of one layer for a pure decode of n sequences of equal length, us; as the core
    interpolates it.
    """
    if isinstance(attention, MixedAttention):
        grid = attention.grid
        return _bilinear(grid.n_axis, grid.kv_axis, grid.ps[0, 0], n, cached_tokens) / PS_PER_US
    assert isinstance(attention, SplitAttention)
    split = attention.grid
    return _bilinear(split.n_axis, split.kv_axis, split.decode_ps, n, cached_tokens) / PS_PER_US


def prefill_us(attention: AttentionCost, new_tokens: int, cached_tokens: int) -> float:
    """Attention of one layer for one sequence of new tokens on cached ones, us; as the core
    interpolates it.
    """
    if isinstance(attention, MixedAttention):
        grid = attention.grid
        plane = grid.ps[:, :, 0, 0]
        return (
            _bilinear(grid.chunk_axis, grid.kv_prefill_axis, plane, new_tokens, cached_tokens)
            / PS_PER_US
        )
    assert isinstance(attention, SplitAttention)
    split = attention.grid
    return (
        _bilinear(split.q_axis, split.k_axis, split.prefill_ps, new_tokens, cached_tokens)
        / PS_PER_US
    )


def _attention_lines(attention: AttentionCost) -> list[str]:
    sees = (
        f", of {'a chunk of' if attention.chunked else 'the last'} {attention.window} tokens"
        if attention.window
        else ""
    )
    lines = [f"{attention.name}{sees} x{attention.repeat}: {attention.source}"]
    lines.append(_row("cached tokens", "", [str(size) for size in CONTEXT_TOKENS], ""))
    for n in DECODE_BATCHES:
        lines.append(
            _row(
                f"decode of {n}",
                "",
                [f"{decode_us(attention, n, kv):.1f}" for kv in CONTEXT_TOKENS],
                "",
            )
        )
    for new in SIZES[1:5]:
        cells = [f"{prefill_us(attention, new, kv):.1f}" for kv in CONTEXT_TOKENS]
        lines.append(_row(f"prefill of {new}", "", cells, ""))
    lines += _latent_lines(attention)
    kappa_ns = attention.skew_ps_per_token_q20 / (1 << 20) / 1e3
    lines.append(f"skew: {kappa_ns:.2f} ns per token of (longest - mean); {attention.skew_source}")
    return lines


def _latent_lines(attention: AttentionCost) -> list[str]:
    """Prompts that run on the cached latents; nothing where none do."""
    if not isinstance(attention, SplitAttention) or attention.grid.on_latents is None:
        return []
    latents = attention.grid.on_latents
    on_latents = replace(attention, grid=replace(attention.grid, prefill_ps=latents.ps))
    return [
        _row(
            f"prefill of {new} on latents",
            "",
            [f"{prefill_us(on_latents, new, kv):.1f}" for kv in CONTEXT_TOKENS],
            "",
        )
        for new in SIZES[1:5]
    ]


def _bilinear(rows: Int64, columns: Int64, ps: Int64, row: int, column: int) -> float:
    i, s = _place(rows, row)
    j, t = _place(columns, column)
    low = (1 - t) * ps[i, j] + t * ps[i, j + 1]
    high = (1 - t) * ps[i + 1, j] + t * ps[i + 1, j + 1]
    return float((1 - s) * low + s * high)


def _place(axis: Int64, value: int) -> tuple[int, float]:
    """Left neighbour and share of the way: clamped below the axis, linear beyond it."""
    index = int(np.clip(np.searchsorted(axis, value, side="right") - 1, 0, len(axis) - 2))
    return index, max(0.0, float((value - axis[index]) / (axis[index + 1] - axis[index])))


def _confidence(compiled: CompiledCosts) -> str:
    totals = np.zeros(len(Provenance), dtype=np.int64)
    for op in compiled.ops:
        totals += np.bincount(op.provenance[1:], minlength=len(Provenance))
    return ", ".join(
        f"{name.name.lower()} {totals[name] / max(totals.sum(), 1):.0%}" for name in Provenance
    )


def _row(name: str, repeat: str, cells: Sequence[str], source: str) -> str:
    return (
        f"{name:<16}{repeat:>5} "
        + "".join(f"{cell:>10}" for cell in cells)
        + f"  {source}".rstrip()
    )

"""Tables of Vidur (mlp, attention, all_reduce) and of Frontier (linear_op, attention, moe),
milliseconds both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmsim.profiler.importing.bundle import BundleRows, points_of
from llmsim.profiler.importing.links import note_links
from llmsim.profiler.importing.report import Report
from llmsim.profiler.importing.sources import SourceTable
from llmsim.profiler.importing.target import Target

US_PER_MS = 1000.0
LINEAR = {
    "embedding": ("emb",),
    "qkv_proj": ("attn_pre_proj",),
    "rotary_emb": ("attn_rope",),
    "o_proj": ("attn_post_proj",),
    "gate_up_proj": ("mlp_up_proj",),
    "act_fn": ("mlp_act",),
    "down_proj": ("mlp_down_proj",),
    "moe_gate": ("moe_gating_linear",),
}
"""Layer -> operations whose times add up to it."""
NORMS = ("input_layernorm", "post_attention_layernorm")
EXPERT_PARTS = ("moe_gating_routing_topk", "moe_shuffling", "moe_grouped_gemm")
ATTENTION_PARTS = ("attn_kv_cache_save", "attn_input_reshape", "attn_output_reshape")
KERNEL_ONLY, CUDA_EVENT = "KERNEL_ONLY", "CUDA_EVENT"


def read_vidur(tables: Sequence[SourceTable], target: Target, report: Report) -> BundleRows:
    """Rows of the target's shape and degree; of Frontier's two kinds of time, kernels alone where
    there are any.
    """
    rows = BundleRows()
    prefills: dict[tuple[int, int], list[float]] = {}
    decodes: dict[tuple[int, int], list[float]] = {}
    for table in tables:
        if table.kind == "vidur linear":
            _linear(table, target, report, rows)
        elif table.kind == "vidur attention":
            _attention(table, target, report, prefills, decodes)
        elif table.kind == "vidur moe":
            _experts(table, target, report, rows)
        else:
            note_links(table, "num_workers", "size", _time(table, "all_reduce"), report)
    if prefills and decodes:
        rows.add_split_attention(
            points_of(prefills),
            points_of(decodes),
            target.max_tokens,
            target.max_seqs,
            target.max_kv,
        )
    report.note(
        "lm_head and the sampler are not in these tables: they come from the next cost source"
    )
    report.note(
        "mixed batches are the sum of their prefill and their decodes, which were measured apart"
    )
    return rows


def _time(table: SourceTable, operation: str) -> list[float]:
    """Median of an operation in microseconds, NaN where it is blank."""
    return [value * US_PER_MS for value in table.numbers(f"time_stats.{operation}.median")]


def _kept(table: SourceTable, target: Target, report: Report, shape: dict[str, int]) -> list[int]:
    """Indices of the rows of this shape, degree and kind of time; the others are reported."""
    wanted = {"num_tensor_parallel_workers": target.tp, **shape}
    columns = {name: table.numbers(name) for name in wanted if name in table.header}
    kinds = table.text("measurement_type")
    kind = KERNEL_ONLY if KERNEL_ONLY in kinds else (kinds[0] if kinds and kinds[0] else "")
    precision = table.text("profiling_precision")
    file, kept = table.path.name, []
    for row in range(len(table.rows)):
        other = [name for name, column in columns.items() if column[row] != wanted[name]]
        if other:
            report.skip(file, f"{other[0]} is not {wanted[other[0]]}")
        elif kinds[row] != kind:
            report.skip(file, f"measurement_type is not {kind}")
        elif precision[row] and precision[row].lower() not in (target.dtype, target.long_dtype):
            report.skip(file, f"profiling_precision is not {target.dtype}")
        else:
            kept.append(row)
    return kept


def _linear(table: SourceTable, target: Target, report: Report, rows: BundleRows) -> None:
    model = target.model
    shape = {
        "n_head": model.num_attention_heads,
        "n_kv_head": model.num_key_value_heads,
        "n_embd": model.hidden_size,
    }
    kept = _kept(table, target, report, shape)
    tokens = table.numbers("num_tokens")
    for layer, parts in LINEAR.items():
        if all(f"time_stats.{part}.median" in table.header for part in parts):
            times = np.sum([_time(table, part) for part in parts], axis=0)
            _add(rows, report, table, layer, kept, tokens, times)
    norms = [name for name in NORMS if f"time_stats.{name}.median" in table.header]
    if norms:
        mean = np.mean([_time(table, name) for name in norms], axis=0)
        add = (
            _time(table, "add")
            if "time_stats.add.median" in table.header
            else [0.0] * len(table.rows)
        )
        _add(rows, report, table, "layernorm", kept, tokens, mean + np.nan_to_num(np.array(add)))
        _add(rows, report, table, "final_layernorm", kept, tokens, np.array(_time(table, norms[0])))


def _add(
    rows: BundleRows,
    report: Report,
    table: SourceTable,
    layer: str,
    kept: list[int],
    tokens: list[float],
    times: np.ndarray,
) -> None:
    good = [
        row for row in kept if not math.isnan(float(times[row])) and not math.isnan(tokens[row])
    ]
    for row in good:
        rows.add("dense", layer, table.count("num_tokens", row), float(times[row]))
    if good:
        report.took(table.path.name, f"dense.csv {layer}", len(good))
    report.skip(table.path.name, f"no time for {layer}", len(kept) - len(good))


def _attention(
    table: SourceTable,
    target: Target,
    report: Report,
    prefills: dict[tuple[int, int], list[float]],
    decodes: dict[tuple[int, int], list[float]],
) -> None:
    model, file = target.model, table.path.name
    shape = {
        "n_q_head": model.num_attention_heads,
        "n_kv_head": model.num_key_value_heads,
        "n_embd": model.hidden_size,
    }
    kept = _kept(table, target, report, shape)
    batch = table.numbers("batch_size")
    phase = [cell.lower() in ("true", "1") for cell in table.text("is_prefill")]
    mixed = [cell.lower() in ("true", "1", "1.0") for cell in table.text("is_true_mixed_batch")]
    around = np.sum(
        [np.nan_to_num(np.array(_time(table, part))) for part in ATTENTION_PARTS], axis=0
    )
    times = {True: _time(table, "attn_prefill"), False: _time(table, "attn_decode")}
    for row in kept:
        us = times[phase[row]][row] + float(around[row])
        if mixed[row]:
            report.skip(
                file,
                (
                    "batches of prefills and decodes together have no place of their own in "
                    "Vidur's split"
                ),
            )
        elif math.isnan(us):
            report.skip(file, "there is no time in the row")
        elif phase[row] and batch[row] > 1:
            report.skip(
                file, "prefills of several sequences: one at a time is what the bundle holds"
            )
        elif phase[row]:
            point = (table.count("prefill_chunk_size", row, 1), table.count("kv_cache_size", row))
            prefills.setdefault(point, []).append(us)
            report.took(file, "attention.csv prefill", 1)
        else:
            point = (table.count("batch_size", row, 1), table.count("kv_cache_size", row))
            decodes.setdefault(point, []).append(us)
            report.took(file, "attention.csv decode", 1)


def _experts(table: SourceTable, target: Target, report: Report, rows: BundleRows) -> None:
    """Whole experts on one device; the share of experts that the row's tokens touched is in the
    table.
    """
    model = target.model
    shape = {"num_experts": model.num_experts, "router_topk": model.num_experts_per_tok,
             "hidden_dim": model.hidden_size, "expert_hidden_dim": model.moe_intermediate_size,
             "expert_parallel_size": 1, "num_tensor_parallel_workers": 1}  # fmt: skip
    kept = _kept(table, target, report, shape)
    used = table.numbers("expert_utilization")
    parts = [
        np.array(_time(table, part))
        for part in EXPERT_PARTS
        if f"time_stats.{part}.median" in table.header
    ]
    gate = np.array(_time(table, "moe_gating_linear"))
    for row in kept:
        us = float(np.sum([part[row] for part in parts]))
        active = round(used[row] * model.num_experts) if not math.isnan(used[row]) else 0
        if math.isnan(us) or active < 1:
            report.skip(table.path.name, "no time of every part, or no expert_utilization")
            continue
        tokens = table.count("num_tokens", row, 1)
        rows.moe.setdefault((tokens, active), []).append(us)
        report.took(table.path.name, "moe.csv", 1)
        if not math.isnan(gate[row]):
            rows.add("dense", "moe_gate", tokens, float(gate[row]))

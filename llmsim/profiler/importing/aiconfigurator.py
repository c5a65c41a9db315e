"""Tables of AIConfigurator (gemm, context and generation attention, moe, all-reduce), milliseconds;
CSV or Parquet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmsim.model import Attention, Collective, Gemm, Moe, Operator
from llmsim.profiler.importing.bundle import BundleRows, points_of
from llmsim.profiler.importing.links import note_links
from llmsim.profiler.importing.report import Report
from llmsim.profiler.importing.sources import SourceTable
from llmsim.profiler.importing.target import Target

US_PER_MS = 1000.0
Times = dict[tuple[int, int], list[float]]


def read_aiconfigurator(
    tables: Sequence[SourceTable], target: Target, report: Report
) -> BundleRows:
    """Rows of exactly the model's shapes; what has none is named, and comes from the next cost
    source.
    """
    rows = BundleRows()
    ops = {op.name: op for op in target.operators()}
    prefills: Times = {}
    decodes: Times = {}
    for table in tables:
        report.note(f"{table.path.name}: {_origin(table)}")
        if table.kind == "aiconfigurator gemm":
            _gemm(table, target, report, rows, ops)
        elif table.kind == "aiconfigurator attention":
            attention = ops["attention"]
            assert isinstance(attention, Attention), "every model that profiles has it"
            _attention(table, target, report, attention, prefills, decodes)
        elif table.kind == "aiconfigurator moe":
            _experts(table, target, report, rows)
        else:
            us = [value * US_PER_MS for value in table.numbers("latency")]
            note_links(table, "num_gpus", "message_size", us, report)
    if prefills and decodes:
        points = [points_of(times) for times in (prefills, decodes)]
        rows.add_split_attention(
            points[0], points[1], target.max_tokens, target.max_seqs, target.max_kv
        )
    found = {layer for layer, _ in (*rows.dense, *rows.per_sequence)}
    lacking = [op.name for op in ops.values() if not isinstance(op, Attention | Moe | Collective)]
    lacking = [name for name in lacking if name not in found]
    report.note(f"not in these tables, so from the next cost source: {', '.join(lacking)}")
    return rows


def _origin(table: SourceTable) -> str:
    parts = [sorted(set(table.text(name))) for name in ("framework", "version", "device")]
    return "measured by " + ", ".join("/".join(values) for values in parts if any(values))


def _dtypes(target: Target) -> tuple[str, ...]:
    return {
        "bf16": ("bfloat16",),
        "fp16": ("float16", "bfloat16"),
        "fp8": ("fp8", "fp8_block"),
    }.get(target.dtype, (target.dtype,))


def _gemm(
    table: SourceTable, target: Target, report: Report, rows: BundleRows, ops: dict[str, Operator]
) -> None:
    shapes: dict[tuple[int, int], list[Operator]] = {}
    for op in ops.values():
        if isinstance(op, Gemm):
            shapes.setdefault((op.gemm_n, op.gemm_k), []).append(op)
    wanted, dtypes = _dtypes(target), table.text("gemm_dtype")
    for row in range(len(table.rows)):
        users = shapes.get((table.count("n", row), table.count("k", row)), [])
        if not users:
            report.skip(table.path.name, "a GEMM that the model does not have")
        elif dtypes[row] not in wanted:
            report.skip(table.path.name, f"gemm_dtype is not {wanted[0]}")
        else:
            count, us = table.count("m", row), table.time("latency", row) * US_PER_MS
            for op in users:
                name = "dense" if op.feature == "tokens" else "per_sequence"
                rows.add(name, op.name, count, us)
                report.took(table.path.name, f"{name}.csv {op.name}", 1)


def _attention(
    table: SourceTable,
    target: Target,
    report: Report,
    op: Attention,
    prefills: Times,
    decodes: Times,
) -> None:
    """`isl` new tokens on `step` cached ones (context), or one token on isl + step - 1
    (generation).
    """
    shape = {"num_heads": op.heads, "num_key_value_heads": op.kv_heads, "head_dim": op.head_dim}
    columns = {name: table.numbers(name) for name in shape if name in table.header}
    batch = table.numbers("batch_size")
    window, names = table.numbers("window_size"), table.text("op_name")
    cache = table.text("kv_cache_dtype")
    context = "context" in (names[0] if names and names[0] else table.path.name)
    file = table.path.name
    for row in range(len(table.rows)):
        other = [name for name, column in columns.items() if column[row] != shape[name]]
        if other:
            report.skip(file, f"{other[0]} is not {shape[other[0]]}")
        elif cache[row] not in ("", *_dtypes(target)):
            report.skip(file, f"kv_cache_dtype is not {_dtypes(target)[0]}")
        elif not math.isnan(window[row]) and window[row] > 0:
            report.skip(file, "windowed attention")
        elif context and batch[row] > 1:
            report.skip(
                file, "prefills of several sequences: one at a time is what the bundle holds"
            )
        elif context:
            point = (table.count("isl", row, 1), table.count("step", row))
            prefills.setdefault(point, []).append(table.time("latency", row) * US_PER_MS)
            report.took(file, "attention.csv prefill", 1)
        else:
            cached = table.count("isl", row, 1) + table.count("step", row) - 1
            point = (table.count("batch_size", row, 1), cached)
            decodes.setdefault(point, []).append(table.time("latency", row) * US_PER_MS)
            report.took(file, "attention.csv decode", 1)


def _experts(table: SourceTable, target: Target, report: Report, rows: BundleRows) -> None:
    """Whole experts of one device, evenly loaded: T tokens of top-k touch min(E, T k) experts."""
    model = target.model
    shape = {"hidden_size": model.hidden_size, "inter_size": model.moe_intermediate_size,
             "topk": model.num_experts_per_tok, "num_experts": model.num_experts, "moe_tp_size": 1,
             "moe_ep_size": 1}  # fmt: skip
    columns = {name: table.numbers(name) for name in shape}
    dtypes, spread = table.text("moe_dtype"), table.text("distribution")
    for row in range(len(table.rows)):
        other = [name for name, column in columns.items() if column[row] != shape[name]]
        if other:
            report.skip(table.path.name, f"{other[0]} is not {shape[other[0]]}")
        elif dtypes[row] not in _dtypes(target):
            report.skip(table.path.name, f"moe_dtype is not {_dtypes(target)[0]}")
        elif spread[row] not in ("", "balanced"):
            report.skip(table.path.name, "experts are not evenly loaded")
        else:
            count = table.count("num_tokens", row, 1)
            active = min(model.num_experts, count * model.num_experts_per_tok)
            rows.moe.setdefault((count, active), []).append(table.time("latency", row) * US_PER_MS)
            report.took(table.path.name, "moe.csv", 1)

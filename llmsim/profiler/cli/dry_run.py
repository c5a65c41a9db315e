"""`measure --dry-run`: what would be measured, in which shapes, and about how long it takes; needs
no device.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from llmsim.costs.sources.bundle.files import variant_of
from llmsim.export.files import check_writable_folder
from llmsim.model import (
    Attention,
    Gemm,
    IndexerScores,
    ModelConfig,
    Moe,
    Operator,
    StateSpace,
    load_model,
)
from llmsim.plurals import counted
from llmsim.profiler.bundle.defaults import on_cpu
from llmsim.profiler.bundle.plan import Point, attention_table, points_of, seen_limits
from llmsim.profiler.cli.measure import TABLES, MeasureOptions, dtypes_of
from llmsim.profiler.kernels.quantised_linears import NARROW
from llmsim.profiler.rank.rank import measured_operators, refuse_packed, sharded

ROW_S = 0.5
"""Seconds of a row, about: its samples, and making its buffers; on a CPU those of a small model."""


def dry_run(options: MeasureOptions) -> list[str]:
    """The report, line by line. Raises InputError for what `measure` refuses before it touches the
    device.
    """
    model = load_model(options.model)
    dtypes = dtypes_of(model, options)
    folder = options.out_root / options.hardware / model.name / variant_of(dtypes)
    # Of the folders on the way the deepest that is there: a dry run makes none.
    root = options.out_root.absolute()
    check_writable_folder(next(one for one in (root, *root.parents) if one.exists()))
    cpu = on_cpu(options.device)
    engine = cpu and options.style in ("auto", "engine") and dtypes.weight == dtypes.activation
    narrow = f"{dtypes.weight} weights and " * (dtypes.weight != dtypes.activation)
    lines, left = [f"{model.name} in {narrow}{dtypes.activation}, into {folder}"], 0
    for index, tp in enumerate(options.degrees):
        ops = measured_operators(model, sharded(model, tp), dtypes)
        refuse_packed(model, ops, options.attention)
        points = points_of(
            ops, options.limits, skew=options.skew and not engine, experts=index == 0
        )
        new = _not_there(points, folder, tp)
        left += len(new)
        lines += _of_degree(tp, points, new)
        lines += _of_operators(model, ops, options)
    where = "CPU" if cpu else "GPU"
    return [
        *lines,
        (
            f"about {left * ROW_S / 60:.0f} minutes on a {where}, {ROW_S} s a row; --budget takes "
            "it in parts"
        ),
    ]


def _not_there(points: list[Point], folder: Path, tp: int) -> list[Point]:
    """The points that have no row in the folder's tables yet; experts have theirs below tp1."""
    done = {
        name: _done(folder / f"tp{1 if name == 'moe' else tp}" / f"{name}.csv", name)
        for name in TABLES
    }
    return [point for point in points if tuple(map(str, point.key)) not in done[point.table]]


def _of_degree(tp: int, points: list[Point], new: list[Point]) -> list[str]:
    """How many rows each table of a degree has, and how many are left."""
    counts = Counter(point.table for point in points)
    tables = ", ".join(f"{name} {count}" for name, count in counts.items())
    return [
        f"tp{tp}: {counted(len(points), 'row')} ({tables}), {len(new)} of them to be measured",
        f"  the first {_first(new)} of them make a usable bundle",
    ]


def _of_operators(model: ModelConfig, ops: list[Operator], options: MeasureOptions) -> list[str]:
    """The shape of each operator, and the KV cache that the largest decode reads, if any."""
    by_name = {op.name: op for op in ops}
    lines = [f"  {name}: {_shape(model, op)}" for name, op in by_name.items()]
    if any(isinstance(op, Attention) for op in ops):
        lines.append(f"  the largest decode reads {_cache_gb(options, ops):.1f} GB of KV cache")
    return lines


def _first(points: list[Point]) -> int:
    """Rows of the first stage, which make a bundle usable."""
    return sum(1 for point in points if point.stage == 0)


def _cache_gb(options: MeasureOptions, ops: list[Operator]) -> float:
    """Of one layer, of the kind that reads the most."""
    return max(
        options.limits.max_seqs
        * seen_limits(ops, options.limits, attention_table(op)).max_kv
        * op.kv_bytes_per_context_token
        / 1e9
        for op in ops
        if isinstance(op, Attention)
    )


def _shape(model: ModelConfig, op: Operator) -> str:
    if isinstance(op, Gemm):
        return f"GEMM from {op.gemm_k} to {op.gemm_n}{_narrow(op)}"
    if isinstance(op, IndexerScores) and model.indexer is not None:
        return f"{op.heads} heads of {op.head_dim} that choose {model.indexer.topk} tokens"
    if isinstance(op, Attention) and model.latent is not None:
        chosen = f", that see {op.window} chosen tokens" * (op.window > 0)
        return f"{op.heads} query heads on latents of {model.latent.cached_width}{chosen}"
    if isinstance(op, Attention):
        sees = f", that see {'a chunk of' if op.chunked else 'the last'} {op.window} tokens" * (
            op.window > 0
        )
        return f"{op.heads} query heads and {op.kv_heads} KV heads of {op.head_dim}{sees}"
    if isinstance(op, Moe):
        return (
            f"{op.experts_local} experts of width {op.moe_inter} on {op.hidden}, {op.topk} for "
            f"each token{_narrow(op)}"
        )
    if isinstance(op, StateSpace):
        return f"{op.heads} heads of {op.head_dim} with a state, chunks of one prompt"
    if op.name == "linear_state":
        return f"a state of {op.read_bytes_per_token} bytes of each sequence"
    return (
        "without weights"
        if op.name == "sampler" or op.name.endswith("act_fn")
        else f"width {op.hidden}"
    )


def _narrow(op: Operator) -> str:
    return f" with {op.weight_dtype} weights" if op.weight_dtype in NARROW else ""


def _done(path: Path, name: str) -> set[tuple[str, ...]]:
    """Keys of the rows that a table has already."""
    if not path.is_file():
        return set()
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        return {tuple(row[: len(TABLES[name][0])]) for row in csv.reader(stream)}

"""Profile bundles of LLMServingSim, both generations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llmsim.config.errors import InputError
from llmsim.costs import CostRequest
from llmsim.costs.sources.bundle.files import BundleFiles
from llmsim.costs.sources.bundle.legacy import EXPERT, NORMS, PARTS, read_layers
from llmsim.costs.sources.bundle.legacy_attention import read_older_attention
from llmsim.model import Attention, Layout, load_hardware, resolve_dtypes
from llmsim.profiler.importing.bundle import BundleRows
from llmsim.profiler.importing.report import Report
from llmsim.profiler.importing.sources import SourceTable
from llmsim.profiler.importing.target import Target


def read_bundle(tables: Sequence[SourceTable], target: Target, report: Report) -> BundleRows:
    """The newer generation: every row of this degree, checked and written again; experts from tp1
    too.
    """
    rows = BundleRows()
    for table in tables:
        degree = _degree(table.path)
        what = table.kind.removeprefix("llmservingsim ")
        if degree not in (None, target.tp) and not (what == "moe" and degree == 1):
            report.skip(table.path.name, f"another degree than tp{target.tp}", len(table.rows))
            continue
        if what == "fit":
            report.skip(table.path.name, "a fit of skew.csv, which is read itself", len(table.rows))
            continue
        if what == "skew":
            rows.extra["skew.csv"] = [list(table.header), *table.rows]
        elif what in ("dense", "per_sequence"):
            count = "tokens" if what == "dense" else "sequences"
            _count_rows(table, what, count, rows)
        elif what == "attention":
            _attention(table, rows)
        else:
            rows.moe_degree = degree or target.tp
            for row in range(len(table.rows)):
                point = (table.count("tokens", row), table.count("activated_experts", row))
                rows.moe.setdefault(point, []).append(table.time("time_us", row))
        report.took(table.path.name, f"{what}.csv", len(table.rows))
    return rows


def _degree(path: Path) -> int | None:
    name = path.parent.name
    return int(name[2:]) if name.startswith("tp") and name[2:].isdecimal() else None


def _count_rows(table: SourceTable, what: str, count: str, rows: BundleRows) -> None:
    for row, layer in enumerate(table.text("layer")):
        rows.add(what, layer, table.count(count, row), table.time("time_us", row))


def _attention(table: SourceTable, rows: BundleRows) -> None:
    for row in range(len(table.rows)):
        chunk, cached = table.count("prefill_chunk", row), table.count("kv_prefill", row)
        decodes, kv = table.count("n_decode", row), table.count("kv_decode", row)
        point = (chunk, cached, decodes, kv)
        if point in rows.attention:
            raise InputError(f"{table.place(row)}: the point {point} is there twice; keep one")
        rows.attention[point] = table.time("time_us", row)


def read_older(tables: Sequence[SourceTable], target: Target, report: Report) -> BundleRows:
    """The older generation as the newer: projections added up, attention as sums of a prefill and a
    decode batch.
    """
    layers = [
        t for t in tables if t.kind == "older layers" and _degree(t.path) in (None, target.tp)
    ]
    if len(layers) != 1:
        found = ", ".join(str(t.path) for t in tables if t.kind == "older layers") or "none"
        raise InputError(
            f"one layers.csv of tp{target.tp} is needed, and there are: {found}; name its folder"
        )
    path = layers[0].path
    files = BundleFiles(path.parent, path.parent, None, older=True)
    times = read_layers(path, target.tp)
    rows = BundleRows()
    for layer, parts in [*PARTS.items(), ("layernorm", tuple(n for n in NORMS if n in times))]:
        if parts and all(part in times for part in parts):
            points = times[parts[0]][0]
            us = np.sum([np.interp(points, *times[part]) for part in parts], axis=0)
            table = "per_sequence" if layer == "lm_head" else "dense"
            for count, value in zip(
                points, us / (len(parts) if layer == "layernorm" else 1), strict=True
            ):
                rows.add(table, layer, int(count), float(value))
            report.took(path.name, f"{table}.csv {layer}", len(points) * len(parts))
    _experts(times, target, report, rows, path.name)
    used = {part for parts in PARTS.values() for part in parts} | {*NORMS, *EXPERT, "attn"}
    for name in times.keys() - used:
        report.skip(path.name, f"no operator of the model is called {name}", len(times[name][0]))
    op = next(op for op in target.operators() if isinstance(op, Attention))
    found_attention = read_older_attention(files, _request(target), op, times.get("attn"))
    rows.add_grids(
        found_attention.q,
        found_attention.k,
        found_attention.prefill_us,
        found_attention.n,
        found_attention.kv,
        found_attention.decode_us,
    )
    report.took(found_attention.path.name, "attention.csv", len(rows.attention))
    for note in found_attention.notes:
        report.note(note)
    report.note(
        "there are no sampler rows in this generation: the sampler comes from the next cost source"
    )
    return rows


def _experts(
    times: dict[str, tuple[np.ndarray, np.ndarray]],
    target: Target,
    report: Report,
    rows: BundleRows,
    file: str,
) -> None:
    """A table of whole experts: `active` of them one after the other, each with its even share of
    the tokens.
    """
    if "expert.w1" not in times or not target.model.num_experts:
        return
    points = times["expert.w1"][0]
    us = np.sum([np.interp(points, *times[name]) for name in EXPERT if name in times], axis=0)
    topk, experts = target.model.num_experts_per_tok, target.model.num_experts
    for tokens in (2**power for power in range(int(points[-1]).bit_length())):
        for active in sorted(
            {min(experts, tokens * topk), *(2**p for p in range(experts.bit_length()))}
        ):
            if topk <= active <= min(experts, tokens * topk):
                share = tokens * topk / active
                rows.moe[tokens, active] = [active * float(np.interp(share, points, us))]
    report.took(file, "moe.csv", len(rows.moe))


def _request(target: Target) -> CostRequest:
    layout, dtypes = Layout(target.tp, 1), resolve_dtypes(target.model, target.dtype)
    return CostRequest(
        model=target.model,
        layout=layout,
        dtypes=dtypes,
        hardware_name=target.hardware,
        hardware=load_hardware(target.hardware),
        group_memory_bandwidth_bytes_per_s=0,
        operators=target.operators(),
        max_tokens=target.max_tokens,
        max_seqs=target.max_seqs,
        max_model_len=target.max_kv,
    )

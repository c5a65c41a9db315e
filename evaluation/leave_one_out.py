"""How well the silicon database predicts what it was not asked to remember: each point left out,
predicted, compared.

usage: python evaluation/leave_one_out.py [--card NAME] [--sample N] [--markdown FILE]

Classes and what is left out:

- GEMM, unseen shape: all rows of one (n, k), predicted from its neighbours in efficiency
- GEMM, unseen tokens: one m of a measured shape, linear between its neighbours
- decode attention: one (sequences, cached tokens), bilinear between its neighbours
- prompt attention: one length of a measured head shape, log-log between its neighbours
- experts, unseen tokens: one token count of a measured shape, linear between its neighbours
- prompt attention, twice as long: the longest length of a head shape, continued quadratically from
  half of it
- decode attention, other heads: one head shape, from the nearest other one, scaled by its bytes
- GEMM and decode attention by the data sheet: the roofline, which knows no table

GEMMs of cards whose rows were measured with their weights in the cache are compared as a run uses
them, with weights from memory. Distances double when a point is left out, so the errors of
interpolation are upper bounds of what it makes between all points. The last three are what
extrapolated, scaled and analytic times are worth (`llmsim/costs/confidence.py`).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.cli.arguments import OneSentenceParser
from llmsim.costs import CostRequest
from llmsim.costs.hardware_limits import PeakRates, peak_rates_of
from llmsim.costs.sources.roofline import (
    ATTENTION_LAUNCH_US,
    GEMM_EFFICIENCY,
    LAUNCH_US,
    MEMORY_EFFICIENCY,
)
from llmsim.costs.sources.silicon.attention.dense import COLUMNS as ATTENTION
from llmsim.costs.sources.silicon.database import Database, find_database, read_columns
from llmsim.costs.sources.silicon.experts.rows import COLUMNS as EXPERTS
from llmsim.costs.sources.silicon.experts.rows import SHAPE
from llmsim.costs.sources.silicon.gemm import GemmTable, load_gemm
from llmsim.model import Dtypes, Layout, load_hardware, load_model, operators

Floats = NDArray[np.float64]
CARDS = ("A100", "H100", "H200", "B200", "L40S", "RTX-PRO-6000")
SEED = 1


@dataclass(frozen=True, eq=False)
class Errors:
    """Relative errors (predicted / measured - 1) of one class on one card."""

    card: str
    what: str
    values: Floats

    def percentile(self, q: float) -> float:
        """Of the absolute error, percent."""
        return float(np.percentile(np.abs(self.values), q) * 100)


def leave_one_out(card: str, sample: int = 400) -> list[Errors]:
    """The errors of every class on one card; `sample` series per class, drawn with a fixed seed."""
    request = _request(card)
    database, peak_rates = find_database(request), peak_rates_of(request)
    assert database is not None and peak_rates is not None
    rng = np.random.default_rng(SEED)
    table = load_gemm(
        database.tables("gemm"), ("bfloat16",), 2.0, peak_rates.peak("bf16"), peak_rates
    )
    assert table is not None
    return [
        Errors(card, "GEMM, unseen shape", _gemm_shapes(table, sample, rng)),
        Errors(card, "GEMM, unseen tokens", _gemm_tokens(table, sample, rng)),
        Errors(card, "decode attention", _decode(database, sample, rng)),
        Errors(card, "prompt attention", _prompt(database, sample, rng)),
        Errors(card, "experts, unseen tokens", _experts(database, sample, rng)),
        Errors(
            card, "prompt attention, twice as long (extrapolated)", _longer(database, sample, rng)
        ),
        Errors(card, "decode attention, other heads (scaled)", _other_heads(database, sample, rng)),
        Errors(card, "GEMM by the data sheet (analytic)", _gemm_roofline(table, sample, rng)),
        Errors(
            card,
            "decode attention by the data sheet (analytic)",
            _decode_roofline(database, peak_rates, sample, rng),
        ),
    ]


def _request(card: str) -> CostRequest:
    model = load_model("meta-llama/Llama-3.1-8B")
    return CostRequest(
        model=model,
        layout=Layout(),
        dtypes=Dtypes(),
        hardware_name=card,
        hardware=load_hardware(card),
        group_memory_bandwidth_bytes_per_s=0,
        operators=operators(model, Layout(), Dtypes()),
        max_tokens=1,
        max_seqs=1,
        max_model_len=1,
    )


def _some(count: int, sample: int, rng: np.random.Generator) -> NDArray[np.intp]:
    return rng.permutation(count)[:sample]


def _gemm_shapes(table: GemmTable, sample: int, rng: np.random.Generator) -> Floats:
    inside = [
        (i, j)
        for i in range(1, len(table.n_axis) - 1)
        for j in range(1, len(table.k_axis) - 1)
        if not np.isnan(table.us[:, i, j]).any()
    ]
    errors = []
    for at in _some(len(inside), max(1, sample // 8), rng):
        i, j = inside[at]
        us = table.us.copy()
        us[:, i, j] = np.nan
        n, k = int(table.n_axis[i]), int(table.k_axis[j])
        found, _ = replace(table, us=us).column(n, k)
        cold = table.cold_us(n, k)
        errors.append(np.maximum(found, cold) / np.maximum(table.us[:, i, j], cold) - 1)
    return np.concatenate(errors)


def _gemm_tokens(table: GemmTable, sample: int, rng: np.random.Generator) -> Floats:
    shapes = np.argwhere(~np.isnan(table.us).any(axis=0))
    chosen = shapes[_some(len(shapes), sample, rng)]
    columns = [
        np.maximum(table.us[:, i, j], table.cold_us(table.n_axis[i], table.k_axis[j]))
        for i, j in chosen
    ]
    return np.concatenate([_inner(table.m_axis, column) for column in columns])


def _inner(points: Floats, values: Floats) -> Floats:
    """Errors of each inner point of a series, linear between its neighbours."""
    share = (points[1:-1] - points[:-2]) / (points[2:] - points[:-2])
    return (values[:-2] + share * (values[2:] - values[:-2])) / values[1:-1] - 1


def _series(
    rows: dict[str, NDArray[np.generic]], keys: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    table = np.stack([rows[name].astype(np.int64) for name in keys], axis=1)
    kinds, owner = np.unique(table, axis=0, return_inverse=True)
    return kinds, owner.reshape(-1)


def _attention(database: Database, kind: str) -> dict[str, NDArray[np.generic]]:
    rows = read_columns(database.tables(kind)[0].path, ATTENTION)
    keep = (rows["kv_cache_dtype"] == "bfloat16") & (rows["attn_dtype"] == "bfloat16")
    if "window_size" in rows:
        keep &= rows["window_size"] == 0
    return {name: column[keep] for name, column in rows.items()}


def _decode(database: Database, sample: int, rng: np.random.Generator) -> Floats:
    rows = _attention(database, "generation_attention")
    kinds, owner = _series(rows, ("num_heads", "num_key_value_heads", "head_dim"))
    errors = []
    for kind in _some(len(kinds), max(1, sample // 10), rng):
        mine = owner == kind
        n, at_n = np.unique(rows["batch_size"][mine].astype(np.float64), return_inverse=True)
        kv, at_kv = np.unique(rows["step"][mine].astype(np.float64), return_inverse=True)
        us = np.full((len(n), len(kv)), np.nan)
        us[at_n, at_kv] = rows["latency"][mine]
        for i in range(1, len(n) - 1):
            errors.append(_complete(_inner(kv, us[i])))
        for j in range(1, len(kv) - 1):
            errors.append(_complete(_inner(n, us[:, j])))
    return np.concatenate(errors)


def _complete(errors: Floats) -> Floats:
    return errors[~np.isnan(errors)]


def _prompt(database: Database, sample: int, rng: np.random.Generator) -> Floats:
    rows = _attention(database, "context_attention")
    kinds, owner = _series(rows, ("num_heads", "num_key_value_heads", "head_dim", "batch_size"))
    errors = []
    for kind in _some(len(kinds), sample, rng):
        mine = owner == kind
        order = np.argsort(rows["isl"][mine])
        lengths, us = (
            rows["isl"][mine][order].astype(np.float64),
            rows["latency"][mine][order].astype(np.float64),
        )
        if len(lengths) > 2 and (np.diff(lengths) > 0).all():
            share = (np.log(lengths[1:-1]) - np.log(lengths[:-2])) / (
                np.log(lengths[2:]) - np.log(lengths[:-2])
            )
            errors.append(
                np.exp(np.log(us[:-2]) + share * (np.log(us[2:]) - np.log(us[:-2]))) / us[1:-1] - 1
            )
    return np.concatenate(errors)


def _longer(database: Database, sample: int, rng: np.random.Generator) -> Floats:
    rows = _attention(database, "context_attention")
    kinds, owner = _series(rows, ("num_heads", "num_key_value_heads", "head_dim", "batch_size"))
    errors = [0.0]
    for kind in _some(len(kinds), sample, rng):
        mine = owner == kind
        us = dict(zip(rows["isl"][mine].tolist(), rows["latency"][mine].tolist(), strict=True))
        longest = max(us)
        if longest >= 2048 and longest // 2 in us:  # below, a call is mostly its fixed part
            errors.append(us[longest // 2] * 4 / us[longest] - 1)
    return np.array(errors[1:])


def _other_heads(database: Database, sample: int, rng: np.random.Generator) -> Floats:
    rows = _attention(database, "generation_attention")
    kinds, owner = _series(rows, ("num_heads", "num_key_value_heads", "head_dim"))
    errors = []
    for kind in _some(len(kinds), max(1, sample // 10), rng):
        alike = [i for i, other in enumerate(kinds) if other[2] == kinds[kind][2] and i != kind]
        if not alike:
            continue
        near = min(
            alike, key=lambda i: float(np.abs(np.log2(kinds[i][:2] / kinds[kind][:2])).sum())
        )
        tables = []
        for one in (kind, near):
            mine = owner == one
            keys = zip(rows["batch_size"][mine].tolist(), rows["step"][mine].tolist(), strict=True)
            tables.append(dict(zip(keys, rows["latency"][mine].tolist(), strict=True)))
        fixed = min(tables[1].values())
        scale = kinds[kind][1] / kinds[near][1]
        both = sorted(set(tables[0]) & set(tables[1]))
        errors.append(
            np.array([(fixed + (tables[1][at] - fixed) * scale) / tables[0][at] - 1 for at in both])
        )
    return np.concatenate(errors)


def _gemm_roofline(table: GemmTable, sample: int, rng: np.random.Generator) -> Floats:
    shapes = np.argwhere(~np.isnan(table.us).all(axis=0))
    errors = []
    for i, j in shapes[_some(len(shapes), sample, rng)]:
        n, k, m = table.n_axis[i], table.k_axis[j], table.m_axis
        moved = 2.0 * (n * k + m * (n + k))
        memory = moved / (MEMORY_EFFICIENCY * table.peak_rates.memory_bandwidth_bytes_per_s)
        compute = 2.0 * m * n * k / (GEMM_EFFICIENCY * table.peak_flops_per_s)
        errors.append(
            _complete((np.maximum(memory, compute) * 1e6 + LAUNCH_US) / table.us[:, i, j] - 1)
        )
    return np.concatenate(errors)


def _decode_roofline(
    database: Database, peak_rates: PeakRates, sample: int, rng: np.random.Generator
) -> Floats:
    rows = _attention(database, "generation_attention")
    chosen = _some(len(rows["latency"]), sample * 10, rng)
    kv = rows["batch_size"][chosen].astype(np.float64) * (
        rows["step"][chosen].astype(np.float64) + 1
    )
    moved = kv * 4.0 * rows["num_key_value_heads"][chosen] * rows["head_dim"][chosen]
    us = (
        moved / (MEMORY_EFFICIENCY * peak_rates.memory_bandwidth_bytes_per_s) * 1e6
        + ATTENTION_LAUNCH_US
    )
    return np.asarray(us / (rows["latency"][chosen].astype(np.float64) * 1e3) - 1)


def _experts(database: Database, sample: int, rng: np.random.Generator) -> Floats:
    rows = read_columns(database.tables("moe")[0].path, EXPERTS)
    keep = (rows["moe_dtype"] == "bfloat16") & (rows["distribution"] == "balanced")
    if not bool(keep.any()):
        keep = rows["moe_dtype"] == "bfloat16"
    rows = {name: column[keep] for name, column in rows.items()}
    kinds, owner = _series(rows, SHAPE)
    errors = [np.zeros(0)]
    for kind in _some(len(kinds), sample, rng):
        mine = owner == kind
        tokens, at = np.unique(rows["num_tokens"][mine].astype(np.float64), return_inverse=True)
        us = np.full(len(tokens), np.inf)
        np.minimum.at(us, at, rows["latency"][mine].astype(np.float64))
        if len(tokens) > 2:
            errors.append(_inner(tokens, us))
    return np.concatenate(errors)


def markdown(found: Sequence[Errors]) -> str:
    """The table of docs/explanation/estimator.md."""
    lines = [
        "| card | class | points | p50 | p90 | p95 |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for one in found:
        cells = (
            " | ".join(f"{one.percentile(q):.1f} %" for q in (50, 90, 95))
            if len(one.values)
            else "- | - | -"
        )
        lines.append(f"| {one.card} | {one.what} | {len(one.values)} | {cells} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--card", choices=CARDS, action="append")
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(arguments)
    text = markdown(
        [one for card in options.card or CARDS for one in leave_one_out(card, options.sample)]
    )
    if options.markdown is not None:
        options.markdown.write_text(text + "\n")
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

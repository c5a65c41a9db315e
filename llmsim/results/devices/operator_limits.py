"""What limits each operator of a group: arithmetic, memory or links, weighted by its time in a run.

A row of an operator's table (so many tokens) is limited by arithmetic where flops over the data
sheet's peak exceed bytes over its bandwidth, and by memory otherwise. Attention depends on a whole
batch, so its flops and bytes of the run are compared as one. Collectives are limited by links. The
host's time between steps is no operator.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.core import Int64, TimeShare
from llmsim.model import Attention, Collective, Hardware, Operator
from llmsim.power.traffic import weight_bytes
from llmsim.results.devices.utilisation import GroupUsage, operator_work, peak_flops_per_s

COMPUTE, MEMORY, LINKS = "compute", "memory", "links"


class OperatorLimit(Struct, frozen=True):
    """One operator of one group: its time, and the part of it that arithmetic limits."""

    group: int
    operator: str
    time_ps: int
    compute_ps: int
    limit: str
    """What limits most of its time: "compute", "memory" or "links"."""


class GroupCosts(Struct, frozen=True):
    """What a group's operators are and take: `ps[name]` is the time of one execution by count."""

    operators: Sequence[Operator]
    ps: Mapping[str, Int64]
    hardware: Hardware


def operator_limits(
    group: int, costs: GroupCosts, usage: GroupUsage, shares: Sequence[TimeShare]
) -> list[OperatorLimit]:
    """One row for each operator with busy time, in the order of the program."""
    times = {
        share.operator: sum(share.ps_by_provenance) for share in shares if share.group == group
    }
    rows = []
    for op in costs.operators:
        time_ps = times.get(op.name, 0)
        if not time_ps:
            continue
        if isinstance(op, Collective):
            rows.append(OperatorLimit(group, op.name, time_ps, 0, LINKS))
            continue
        compute_ps = round(time_ps * _compute_share(op, costs, usage))
        limit = COMPUTE if 2 * compute_ps > time_ps else MEMORY
        rows.append(OperatorLimit(group, op.name, time_ps, compute_ps, limit))
    return rows


def _compute_share(op: Operator, costs: GroupCosts, usage: GroupUsage) -> float:
    sheet = costs.hardware
    peak = peak_flops_per_s(sheet, op.weight_dtype or "bf16")
    if not peak:
        return 0.0
    bandwidth = sheet.memory_bandwidth_bytes_per_s
    if isinstance(op, Attention) or op.name not in costs.ps:
        work = operator_work(op, usage)
        moved = work.read_bytes + work.written_bytes
        return 1.0 if work.flops * bandwidth > moved * peak else 0.0
    rows = usage.rows(op)
    counts = np.arange(len(rows), dtype=np.int64)
    ps = costs.ps[op.name]
    weights = rows * ps[np.minimum(counts, len(ps) - 1)].astype(np.float64)
    total = float(weights.sum())
    limited = _limited_by_arithmetic(op, counts, peak / bandwidth)
    return float(weights[limited].sum()) / total if total else 0.0


def _limited_by_arithmetic(op: Operator, counts: Int64, flops_per_byte: float) -> NDArray[np.bool_]:
    units = np.asarray(op.units_of(counts))
    moved = units * (op.read_bytes_per_token + op.write_bytes_per_token) + weight_bytes(op, units)
    return np.asarray(units * op.flops_per_token > moved * flops_per_byte)

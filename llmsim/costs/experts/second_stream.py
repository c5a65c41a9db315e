"""Shared experts on a stream of their own: the kernels of both kinds of experts run at once, as far
as the memory lets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.costs.source import CostRequest, OpCost, to_ps
from llmsim.model import Moe

if TYPE_CHECKING:
    from llmsim.model import Operator

Floats = NDArray[np.float64]
SHARED = "shared_experts"
"""The block of the operators that the second stream runs."""


def beside_the_others(request: CostRequest, costs: list[OpCost]) -> list[OpCost]:
    """The costs, those of shared experts without what the other experts hide of them.

    Up to `second_stream_tokens` of a step, both begin together and take no less than the longer one
    takes alone, and than the memory needs for the weights of both. What is left of the shorter one
    lies behind the other.
    """
    experts = next((op for op in request.operators if isinstance(op, Moe)), None)
    shared = [op for op in request.operators if op.block == SHARED]
    if not request.second_stream_tokens or experts is None or not shared:
        return costs
    tabled = {cost.name: cost for cost in costs}
    names = {op.name for op in shared}
    if not {experts.name, *names} <= tabled.keys():
        return costs
    rows = min(request.second_stream_tokens, request.table_tokens) + 1
    alone = np.zeros(rows)
    for op in shared:
        alone += tabled[op.name].ps[:rows]
    hidden = _hidden_ps(request, experts, shared, tabled[experts.name], alone)
    left = np.divide(alone - hidden, alone, out=np.ones_like(alone), where=alone > 0)
    return [_shortened(cost, left) if cost.name in names else cost for cost in costs]


def _hidden_ps(
    request: CostRequest,
    experts: Moe,
    shared: list[Operator],
    table: OpCost,
    alone: Floats,
) -> Floats:
    """What the experts hide of the shared ones, by the tokens of a rank."""
    ranks = request.layout.dp if table.feature == "gathered" else 1
    tokens = np.arange(len(alone)) * ranks
    others = table.ps[np.minimum(tokens, len(table.ps) - 1)].astype(np.float64)
    touched = experts.touched(tokens.astype(np.float64)) / experts.held
    read = touched * experts.weight_bytes + sum(op.weight_bytes for op in shared)
    least = to_ps(read / _bandwidth(request) * 1e6).astype(np.float64)
    both = np.maximum(np.maximum(others, alone), least)
    return np.clip(others + alone - both, 0.0, np.minimum(others, alone))


def _bandwidth(request: CostRequest) -> float:
    """Bytes per second of the device's memory."""
    if request.hardware is None:
        return float(request.group_memory_bandwidth_bytes_per_s)
    return float(request.hardware.memory_bandwidth_bytes_per_s)


def _shortened(cost: OpCost, left: Floats) -> OpCost:
    """A cost of which shares are left at small batches; energy stays what it is alone."""
    ps, power = cost.ps.copy(), cost.power_uw
    ps[: len(left)] = np.rint(ps[: len(left)] * left)
    if power is not None:
        kept = np.maximum(left, 1e-3)
        power = power.copy()
        power[: len(left)] = np.rint(power[: len(left)] / kept)
    return replace(cost, ps=ps, power_uw=power, source=f"{cost.source}, on a stream of its own")

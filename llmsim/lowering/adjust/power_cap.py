"""Operator times under a power cap: the clock that the cap leaves, and what of an operator the
clock limits.

The energy of switching is C V^2 per cycle and voltage falls with frequency, so that power above
idle goes with the cube of the clock: phi = ((cap - idle) / (active - idle))^(1/3). An operator that
the units limit takes 1 / phi as long, one that memory limits (which has a clock of its own) as long
as before, and in between whichever is longer.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.config.cluster_file.power import AcceleratorPower
from llmsim.costs import CompiledCosts, OpCost
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.source import AttentionCost, MixedAttention, SplitAttention
from llmsim.model import Attention, Dtypes, Operator
from llmsim.power.traffic import weight_bytes

Floats = NDArray[np.float64]
MILLION = 1_000_000


def clock_ppm(power: AcceleratorPower | None) -> int:
    """The clock that a device's power cap leaves, in millionths of the full one."""
    if power is None or power.active_uw >= power.uncapped_uw:
        return MILLION
    ratio = (power.active_uw - power.idle_uw) / (power.uncapped_uw - power.idle_uw)
    return int(MILLION * ratio ** (1 / 3) + 0.5)


def costs_at_clock(
    costs: CompiledCosts,
    operators: Sequence[Operator],
    dtypes: Dtypes,
    peak_rates: PeakRates | None,
    ppm: int,
) -> CompiledCosts:
    """The tables at a lower clock; without a data sheet every operator is taken for
    limited by it.
    """
    if ppm >= MILLION:
        return costs
    phi = ppm / MILLION
    by_name = {op.name: op for op in operators}
    label = f", clock x{phi:.4g} (power cap)"

    def slowed(cost: OpCost) -> OpCost:
        op = by_name.get(cost.name)
        if cost.collective or op is None:
            return cost
        counts = op.units_of(np.arange(len(cost.ps)))
        moved = counts * (op.read_bytes_per_token + op.write_bytes_per_token) + weight_bytes(
            op, counts
        )
        flops = counts.astype(np.float64) * op.flops_per_token
        factor = _stretch(flops, moved, op.weight_dtype or dtypes.activation, peak_rates, phi)
        return replace(cost, ps=_times(cost.ps, factor), source=cost.source + label)

    kinds = [op for op in operators if isinstance(op, Attention)]
    first, *more = (
        _slowed_attention(cost, op, dtypes.activation, peak_rates, phi, label)
        for cost, op in zip(costs.attentions, kinds, strict=True)
    )
    return replace(
        costs,
        ops=tuple(slowed(cost) for cost in costs.ops),
        attention=first,
        more_attention=tuple(more),
    )


def _stretch(
    flops: Floats, moved: Floats, dtype: str, peak_rates: PeakRates | None, phi: float
) -> Floats:
    """How many times as long an operator takes at clock phi."""
    peak = peak_rates.peak(dtype) if peak_rates is not None else 0
    if peak_rates is None or not peak:
        return np.full(len(flops.ravel()), 1 / phi).reshape(flops.shape)
    compute, memory = flops / peak, moved / peak_rates.memory_bandwidth_bytes_per_s
    before = np.maximum(compute, memory)
    after = np.maximum(compute / phi, memory)
    return np.asarray(np.divide(after, before, out=np.ones_like(before), where=before > 0))


def _slowed_attention(
    cost: AttentionCost,
    op: Attention,
    dtype: str,
    peak_rates: PeakRates | None,
    phi: float,
    label: str,
) -> AttentionCost:
    def factor(kv_tokens: Floats, pairs: Floats) -> Floats:
        return _stretch(
            pairs * op.flops_per_context_token,
            kv_tokens * op.kv_bytes_per_context_token,
            dtype,
            peak_rates,
            phi,
        )

    source = cost.source + label
    if isinstance(cost, MixedAttention):
        grid = cost.grid
        q, k, n, kv = np.meshgrid(
            *(
                axis.astype(float)
                for axis in (grid.chunk_axis, grid.kv_prefill_axis, grid.n_axis, grid.kv_axis)
            ),
            indexing="ij",
        )
        scale = factor(q + k + n * (kv + 1), q * k + q * (q + 1) / 2 + n * (kv + 1))
        return replace(cost, grid=replace(grid, ps=_times(grid.ps, scale)), source=source)
    assert isinstance(cost, SplitAttention), "attention has one of two shapes"
    split = cost.grid
    q, k = np.meshgrid(split.q_axis.astype(float), split.k_axis.astype(float), indexing="ij")
    n, kv = np.meshgrid(split.n_axis.astype(float), split.kv_axis.astype(float), indexing="ij")
    of_prompts = factor(q + k, q * k + q * (q + 1) / 2)
    return replace(
        cost,
        grid=replace(
            split.with_prompts(lambda ps: _times(ps, of_prompts)),
            decode_ps=_times(split.decode_ps, factor(n * (kv + 1), n * (kv + 1))),
        ),
        source=source,
    )


def _times(ps: NDArray[np.int64], factor: Floats) -> NDArray[np.int64]:
    return np.floor(ps * factor + 0.5).astype(np.int64)

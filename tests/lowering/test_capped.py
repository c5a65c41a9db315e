"""Tables under a power cap: the clock by hand, and each cell as long as its units or its memory
need.
"""

import numpy as np
import pytest
from costs.builders import request

from llmsim.config.cluster_file.power import AcceleratorPower
from llmsim.costs import CompiledCosts
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.source import (
    AttentionCost,
    Floor,
    MixedAttention,
    MixedGrid,
    OpCost,
    SplitAttention,
    SplitGrid,
)
from llmsim.lowering.adjust.power_cap import MILLION, clock_ppm, costs_at_clock
from llmsim.model import Collective, Operator

ASKED = request(hardware="H100", tp=2)
ATTENTION = next(op for op in ASKED.operators if op.kind == "attention")
GEMM = next(op for op in ASKED.operators if op.name == "qkv_proj")
REDUCTION = next(op for op in ASKED.operators if op.kind == "collective")
BALANCE = 10 * ATTENTION.flops_per_context_token // ATTENTION.kv_bytes_per_context_token
LIGHT = PeakRates(10**12, 0, {"bf16": BALANCE * 10**12})
"""Ten pairs of tokens take the units as long as one cached token takes memory."""
Q, K, N, KV = (
    np.array([1, 10, 20, 40]),
    np.array([0, 7, 100]),
    np.array([0, 1, 6]),
    np.array([0, 9, 50]),
)
CELL_PS = 1000


def costs(attention: AttentionCost, *ops: Operator) -> CompiledCosts:
    """Every cell of every table takes the same."""
    counts = np.full(65, CELL_PS)
    marks = np.zeros(65, np.uint8)
    tables = tuple(
        OpCost(
            op.name,
            op.part,
            op.repeat,
            "tokens",
            counts,
            marks,
            "table",
            collective=isinstance(op, Collective),
        )
        for op in ops
    )
    floor = Floor(*[0] * (len(Floor.__struct_fields__) - 1), enforce=False)
    return CompiledCosts(tables, attention, floor, (), (), (), "hash")


def split() -> AttentionCost:
    prefill, decode = np.full((len(Q), len(K)), CELL_PS), np.full((len(N), len(KV)), CELL_PS)
    marks = [np.zeros(table.shape, np.uint8) for table in (prefill, decode)]
    grid = SplitGrid(Q, K, prefill, marks[0], N, KV, decode, marks[1], 0)
    return SplitAttention(
        repeat=32, grid=grid, skew_ps_per_token_q20=0, source="table", skew_source="none"
    )


def mixed() -> AttentionCost:
    table = np.full((len(Q), len(K), len(N), len(KV)), CELL_PS)
    grid = MixedGrid(Q, K, N, KV, table, np.zeros(table.shape, np.uint8))
    return MixedAttention(
        repeat=32, grid=grid, skew_ps_per_token_q20=0, source="table", skew_source="none"
    )


def stretched(pairs: int, tokens: int, phi: float) -> int:
    """Of a cell in which so many pairs are computed and so many cached tokens read."""
    units, memory = pairs / 10, tokens
    if not pairs and not tokens:
        return CELL_PS
    return int(CELL_PS * max(units / phi, memory) / max(units, memory) + 0.5)


def causal_pairs(q: int, k: int) -> int:
    return sum(k + number for number in range(1, q + 1))


@pytest.mark.parametrize(
    ("active_uw", "expected"), [(900, MILLION), (950, MILLION), (200, 500_000), (100, 0)]
)
def test_power_above_idle_goes_with_the_cube_of_the_clock(active_uw: int, expected: int) -> None:
    power = AcceleratorPower(
        idle_uw=100,
        standby_uw=150,
        active_uw=active_uw,
        standby_ps=0,
        memory_aj_per_bit=0,
        uncapped_uw=900,
    )
    assert clock_ppm(power) == expected
    assert clock_ppm(None) == MILLION


@pytest.mark.parametrize("phi", [0.5, 0.8])
def test_attention_takes_the_longer_of_slower_units_and_memory(phi: float) -> None:
    """Prompts by their causal pairs, decodes by their cached tokens and one more."""
    slow = costs_at_clock(
        costs(split()), [ATTENTION], ASKED.dtypes, LIGHT, round(phi * MILLION)
    ).attention
    assert isinstance(slow, SplitAttention) and slow.source == f"table, clock x{phi} (power cap)"
    prompts = [[stretched(causal_pairs(q, k), q + k, phi) for k in K] for q in Q]
    decodes = [[stretched(n * (kv + 1), n * (kv + 1), phi) for kv in KV] for n in N]
    assert slow.grid.prefill_ps.tolist() == prompts and slow.grid.decode_ps.tolist() == decodes
    assert len({*np.ravel(prompts)}) > 2  # by memory, by units, and in between


def test_a_mixed_step_adds_up_what_its_parts_read_and_compute() -> None:
    slow = costs_at_clock(costs(mixed()), [ATTENTION], ASKED.dtypes, LIGHT, MILLION // 2).attention
    assert isinstance(slow, MixedAttention)
    for i, j, m, p in np.ndindex(slow.grid.ps.shape):
        decoded = N[m] * (KV[p] + 1)
        pairs, tokens = causal_pairs(Q[i], K[j]) + decoded, Q[i] + K[j] + decoded
        assert slow.grid.ps[i, j, m, p] == stretched(pairs, tokens, 0.5)


def test_a_gemm_slows_down_where_its_units_limit_it() -> None:
    """Few tokens read weights; the clock of memory is its own. Collectives and the full clock
    change nothing.
    """
    tokens = 16
    flops_s = tokens * GEMM.flops_per_token
    moved = GEMM.weight_bytes + tokens * (GEMM.read_bytes_per_token + GEMM.write_bytes_per_token)
    peak_rates = PeakRates(moved, 0, {"bf16": flops_s})  # a second each
    before = costs(split(), GEMM, REDUCTION)
    operators = [GEMM, REDUCTION, ATTENTION]
    gemm, reduction = costs_at_clock(before, operators, ASKED.dtypes, peak_rates, MILLION // 2).ops
    assert gemm.ps[tokens] == 2 * CELL_PS and gemm.ps[1] == CELL_PS < gemm.ps[12] < 2 * CELL_PS
    assert gemm.source == "table, clock x0.5 (power cap)" and reduction is before.ops[1]
    assert costs_at_clock(before, operators, ASKED.dtypes, peak_rates, MILLION) is before


def test_without_a_data_sheet_the_clock_limits_everything() -> None:
    before = costs(split(), GEMM)
    for peak_rates in (None, PeakRates(10**12, 0, {})):
        slow = costs_at_clock(before, [GEMM, ATTENTION], ASKED.dtypes, peak_rates, MILLION // 2)
        assert isinstance(slow.attention, SplitAttention)
        assert (
            set(slow.ops[0].ps.tolist())
            == {2 * CELL_PS}
            == set(slow.attention.grid.decode_ps.ravel().tolist())
        )

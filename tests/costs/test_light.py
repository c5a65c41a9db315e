"""Least times by a data sheet: bandwidth, peaks, caches and floors by hand."""

import numpy as np
import pytest
from builders import request
from msgspec.structs import replace

from llmsim.costs.hardware_limits import (
    UNKNOWN_FLOPS,
    PeakRates,
    bandwidth_differs,
    floor_of,
    least_weight_bytes,
    own_peak_rates_of,
    peak_rates_of,
)

MOE = "Qwen/Qwen3-30B-A3B"
SHEET = PeakRates(10**12, 1000, {"bf16": 10**14, "fp8": 2 * 10**14})
COUNTS = np.array([0.0, 1.0, 4000.0])


@pytest.mark.parametrize(("given", "expected"), [(0, 3350 * 10**9), (1, 1), (10**12, 10**12)])
def test_a_bandwidth_of_the_cluster_file_replaces_the_sheets(given: int, expected: int) -> None:
    peak_rates = own_peak_rates_of(
        request(hardware="H100", group_memory_bandwidth_bytes_per_s=given)
    )
    assert peak_rates is not None and peak_rates.memory_bandwidth_bytes_per_s == expected


def test_without_a_sheet_only_the_given_bandwidth_is_known() -> None:
    unknown = replace(request(), hardware=None)
    assert peak_rates_of(unknown) is None and own_peak_rates_of(unknown) is None
    found = peak_rates_of(replace(unknown, group_memory_bandwidth_bytes_per_s=5))
    assert found == PeakRates(5, 0, {}) and found.peak("bf16") == UNKNOWN_FLOPS


@pytest.mark.parametrize(
    ("given_gb_per_s", "differs"),
    [(0, False), (3350, False), (3526, False), (3527, True), (3191, False), (3190, True)],
)
def test_bandwidths_five_percent_apart_differ(given_gb_per_s: int, differs: bool) -> None:
    """5 % of the given one: 3350 is 176 GB/s below 3526 and 160 above 3190."""
    asked = request(hardware="H100", group_memory_bandwidth_bytes_per_s=given_gb_per_s * 10**9)
    assert bandwidth_differs(asked) is differs


def test_a_dtype_without_units_computes_in_sixteen_bits() -> None:
    assert SHEET.peak("fp8") == 2 * 10**14
    assert (
        SHEET.peak("fp16") == SHEET.peak("bf16") == SHEET.peak("int4") == SHEET.peak("") == 10**14
    )
    assert replace(SHEET, peak_flops_per_s={"fp16": 7, "fp8": 9}).peak("bf16") == 7


def test_a_gemm_streams_its_weights_or_computes() -> None:
    gemm = next(op for op in request().operators if op.name == "qkv_proj")
    weights_us, token_us = gemm.weight_bytes / 10**6, gemm.flops_per_token / 10**8
    assert SHEET.operator_us(gemm, COUNTS, "bf16") == pytest.approx(
        [0.0, weights_us, 4000 * token_us]
    )
    cached = replace(SHEET, weights_stream=False).operator_us(gemm, COUNTS, "bf16")
    assert cached == pytest.approx([0.0, token_us, 4000 * token_us])
    assert replace(SHEET, peak_flops_per_s={}).operator_us(gemm, COUNTS, "bf16") == pytest.approx(
        [0, *[weights_us] * 2]
    )


def test_experts_stream_what_any_token_must_touch() -> None:
    """Eight of 128 held whole; of a rank that holds a part, perhaps none."""
    whole = next(op for op in request(MOE).operators if op.kind == "moe")
    assert least_weight_bytes(whole) == whole.weight_bytes * 8 // 128
    part = next(op for op in request(MOE, tp=2, ep=2).operators if op.kind == "moe")
    assert part.experts_local == 64 and least_weight_bytes(part) == 0
    table = next(op for op in request().operators if op.kind == "embedding")
    assert table.weight_bytes > 0 and least_weight_bytes(table) == 0


def test_what_fits_the_cache_may_have_stayed_there() -> None:
    assert SHEET.kv_us(np.array([999.0, 1000.0, 1001.0])).tolist() == [0.0, 0.0, 1001 / 10**6]


def test_the_floor_of_a_step_adds_up_what_is_streamed_and_computed() -> None:
    asked = request(hardware="H100")
    peak_rates = peak_rates_of(asked)
    floor = floor_of(asked, peak_rates, enforce=True)
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    assert floor.flops_per_token == 2 * 32 * layer
    assert 0 < floor.weight_bytes_read - 2 * (32 * layer + 128256 * 4096) < 10**6  # norms
    assert floor.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2
    assert floor.enforce and not floor_of(asked, peak_rates, enforce=False).enforce
    assert (
        floor_of(asked, replace(peak_rates, weights_stream=False), enforce=True).weight_bytes_read
        == 0
    )
    nothing = floor_of(asked, None, enforce=True)
    assert (
        not nothing.enforce
        and nothing.memory_bandwidth_bytes_per_s == nothing.peak_flops_per_s == 0
    )

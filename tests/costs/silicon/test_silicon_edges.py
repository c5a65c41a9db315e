"""What the silicon database says where its tables end: more tokens than measured, weights that no
cache held.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from llmsim.core import Provenance
from llmsim.costs import compile_costs
from llmsim.costs.hardware_limits import PeakRates
from llmsim.costs.source import Curve
from llmsim.costs.sources.silicon.database import TablePath
from llmsim.costs.sources.silicon.experts.curve import moe_curve
from llmsim.costs.sources.silicon.experts.rows import (
    COLUMNS,
    MILD_POWER_LAW,
    SHAPE,
    wanted_shape,
)
from llmsim.costs.sources.silicon.gemm import GemmTable
from llmsim.model import Dtypes, load_model
from tests.costs.builders import needs_database, request, split_grid

BANDWIDTH_BYTES_PER_S = 1_000_000_000_000
LIGHT = PeakRates(BANDWIDTH_BYTES_PER_S, 32 << 20, {"bf16": 100_000_000_000_000})


def experts(
    folder: Path,
    points_ms: dict[int, float],
    last: int,
    distribution: str = "power_law_1.2",
    uneven_ms: dict[int, float] | None = None,
    kernel: str = "triton",
    **asks: Any,
) -> Curve:
    """The curve of a model's own shape from a table with these times by tokens."""
    asked = replace(request("Qwen/Qwen3-30B-A3B", "H100"), **asks)
    op = next(op for op in asked.operators if op.kind == "moe")
    shape = wanted_shape(op, asked)
    sizes = dict(
        zip(
            SHAPE,
            (shape.hidden, shape.inter, shape.topk, shape.experts, shape.tp, shape.ep),
            strict=True,
        )
    )
    rows = [
        {
            "moe_dtype": "bfloat16",
            "num_tokens": tokens,
            "distribution": choices,
            "kernel_source": kernel,
            "latency": ms,
            **sizes,
        }
        for choices, points in ((distribution, points_ms), (MILD_POWER_LAW, uneven_ms or {}))
        for tokens, ms in points.items()
    ]
    path = folder / "moe_perf.parquet"
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in COLUMNS}), path)
    curve = moe_curve([TablePath(path, "table")], op, asked, LIGHT, 2.0, last)
    assert curve is not None
    return curve


def test_experts_go_on_at_the_slope_of_the_last_two_rows(tmp_path: Path) -> None:
    curve = experts(tmp_path, {1: 1.0, 100: 2.0, 200: 5.0}, 400)
    assert curve.ps[[1, 100, 150, 200]].tolist() == [10**9, 2 * 10**9, 3_500_000_000, 5 * 10**9]
    assert curve.ps[[300, 400]].tolist() == [8 * 10**9, 11 * 10**9]
    assert set(curve.provenance[201:].tolist()) == {Provenance.EXTRAPOLATED}
    assert curve.provenance[200] == Provenance.MEASURED


@pytest.mark.parametrize("points_ms", [{1: 1.0, 100: 5.0, 200: 4.0}, {200: 4.0}])
def test_experts_never_get_faster_beyond_the_last_row(
    tmp_path: Path, points_ms: dict[int, float]
) -> None:
    """Neither where the last two rows fall, nor where one row says nothing of a slope."""
    curve = experts(tmp_path, points_ms, 400)
    assert set(curve.ps[200:].tolist()) == {4 * 10**9}
    assert set(curve.provenance[201:].tolist()) == {Provenance.EXTRAPOLATED}


def test_even_rows_count_the_experts_that_random_choices_touch(tmp_path: Path) -> None:
    """Sixteen tokens with eight experts each touch all 128 in turn, and 82 by chance."""
    times_ms = {1: 0.08, 16: 1.28, 64: 1.28, 4096: 1.5}
    curve = experts(tmp_path, times_ms, 4096, "balanced")
    by_chance = {tokens: 128 * (1 - (1 - 8 / 128) ** tokens) for tokens in (1, 16, 64)}
    in_turn = {1: 8, 16: 128, 64: 128}
    for tokens, touched in by_chance.items():
        expected_ms = times_ms[tokens] * touched / in_turn[tokens]
        assert curve.ps[tokens] == pytest.approx(1e9 * expected_ms, rel=1e-3)
    assert "random choices" in curve.source
    as_measured = experts(tmp_path, times_ms, 4096, "balanced", touched_experts=False)
    assert as_measured.ps[[1, 16, 64]].tolist() == [80_000_000, 1_280_000_000, 1_280_000_000]


def test_the_source_says_where_only_rows_faster_than_the_memory_exist(tmp_path: Path) -> None:
    """All experts hold 1.2 GB, which this memory reads in 1.2 ms."""
    fast, slow = ({64: ms, 4096: 4.0} for ms in (0.6, 1.28))
    words = "rows read weights faster than the memory"
    assert words in experts(tmp_path, fast, 4096, "balanced").source
    assert words not in experts(tmp_path, slow, 4096, "balanced").source
    assert words not in experts(tmp_path, fast, 4096).source, "uneven choices may touch few"


def test_even_rows_count_the_tiles_that_random_choices_fill(tmp_path: Path) -> None:
    """8,192 tokens are 512 rows of each expert: four tiles in turn, four and a half by chance."""
    times_ms = {16: 0.5, 8192: 4.0}
    padded = experts(tmp_path, times_ms, 8192, "balanced").ps[8192] / 1e9
    unpadded = experts(tmp_path, times_ms, 8192, "balanced", padded_experts=False).ps[8192] / 1e9
    pairs, bytes_per_s = 8192 * 8, LIGHT.memory_bandwidth_bytes_per_s
    outputs_ms = pairs * 2048 * 2 * 2 / bytes_per_s * 1e3  # written, and read by the sum
    assert padded == pytest.approx((4.0 - outputs_ms) * 4.5 / 4 + outputs_ms, rel=2e-3)
    assert unpadded == pytest.approx(4.0, rel=1e-9)


def test_kernels_of_small_tiles_pad_less(tmp_path: Path) -> None:
    """512 rows of each expert are eight tiles of 64, and eight and a half by chance."""
    times_ms = {16: 0.5, 8192: 4.0}
    kernel = "vllm_flashinfer_trtllm_experts"
    padded = experts(tmp_path, times_ms, 8192, "balanced", kernel=kernel).ps[8192] / 1e9
    outputs_ms = 8192 * 8 * 2048 * 2 * 2 / LIGHT.memory_bandwidth_bytes_per_s * 1e3
    assert padded == pytest.approx((4.0 - outputs_ms) * 8.5 / 8 + outputs_ms, rel=2e-3)


def test_no_padding_exceeds_what_more_uneven_choices_were_measured_to_take(tmp_path: Path) -> None:
    """Few tokens touch fewer experts by a power law than at random, so its times count only above
    those without padding.
    """
    times_ms, words = {16: 0.5, 8192: 4.0}, "no longer than more uneven ones take"
    free = experts(tmp_path, times_ms, 8192, "balanced")
    for uneven_ms, expected_ms in ((4.1, 4.1), (3.0, 4.0), (9.0, free.ps[8192] / 1e9)):
        uneven = {16: 0.1, 8192: uneven_ms}
        curve = experts(tmp_path, times_ms, 8192, "balanced", uneven)
        assert curve.ps[8192] / 1e9 == pytest.approx(expected_ms, rel=1e-6), uneven_ms
        assert curve.ps[16] == free.ps[16]
        assert (words in curve.source) == (uneven_ms < 9.0)


@pytest.mark.parametrize(("fixed", "expected_ms"), [(False, 2), (True, 7)])
def test_kernels_of_fixed_scales_are_for_checkpoints_that_have_them(
    tmp_path: Path, fixed: bool, expected_ms: int
) -> None:
    """FlashInfer's kernel for ModelOpt's experts is none that a server runs for others."""
    preset = load_model("Qwen/Qwen3-30B-A3B-FP8")
    model = replace(preset, weight_block=None, fixed_input_scales=fixed)
    asked = request(model, "H200", dtypes=Dtypes(weight="fp8"))
    op = next(op for op in asked.operators if op.kind == "moe")
    shape = wanted_shape(op, asked)
    sizes = (shape.hidden, shape.inter, shape.topk, shape.experts, shape.tp, shape.ep)
    kernels = {
        ("fp8", "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts"): 7.0,
        ("fp8_block", "vllm_fp8moe_triton_tritonexperts"): 2.0,
    }
    rows = [
        dict(zip(SHAPE, sizes, strict=True))
        | {"moe_dtype": dtype, "kernel_source": kernel, "num_tokens": tokens}
        | {"distribution": "power_law_1.2", "latency": ms}
        for (dtype, kernel), ms in kernels.items()
        for tokens in (1, 64)
    ]
    path = tmp_path / "moe_perf.parquet"
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in COLUMNS}), path)
    curve = moe_curve([TablePath(path, "table")], op, asked, LIGHT, 1.0, 64)
    assert curve is not None
    assert curve.ps[64] == expected_ms * 10**9


def gemms(share_of_bandwidth: tuple[float, float, float], warm_share: float) -> GemmTable:
    """Matrices of 2, 128, 256 and 512 MB at batches of 1, 16 and 64; the small one was timed in the
    cache.
    """
    n_axis, k_axis = np.array([1024.0]), np.array([1024.0, 65536.0, 131072.0, 262144.0])
    shares = np.array([warm_share, *share_of_bandwidth])
    lower_bound_us = 2.0 * n_axis[0] * k_axis / BANDWIDTH_BYTES_PER_S * 1e6
    us = np.stack([lower_bound_us / shares, lower_bound_us / shares, 9 * lower_bound_us])[
        :, None, :
    ]
    return GemmTable(
        "t", np.array([1.0, 16.0, 64.0]), n_axis, k_axis, us, 2.0, LIGHT.peak("bf16"), LIGHT
    )


def test_weights_stream_at_the_rate_that_large_matrices_were_measured_at() -> None:
    """The median of the small batches' rates; larger batches and matrices that a cache holds say
    nothing of it.
    """
    table = gemms((0.5, 0.75, 0.875), warm_share=4.0)
    assert table.measured_warm()
    assert table.stream_bytes_per_s() == pytest.approx(0.75 * BANDWIDTH_BYTES_PER_S, rel=1e-12)
    small_us = 2.0 * 1024 * 1024 / (0.75 * BANDWIDTH_BYTES_PER_S) * 1e6
    us, marks, method = table.curve_us(1024, 1024, np.array([0.0, 1.0, 16.0]))
    assert us[1:] == pytest.approx(small_us, rel=1e-12)
    assert set(marks[1:].tolist()) == {Provenance.SCALED} and "streaming rate" in method


def test_the_fixed_part_of_a_kernel_comes_beside_its_bytes() -> None:
    """2.5 us, as a matrix of next to nothing takes, then the bytes; a matrix of 8 MB was timed in
    the cache.
    """
    n_axis, k_axis = np.array([64.0]), np.array([64.0, 65536.0, 2097152.0, 4194304.0])
    streamed_us = 2.0 * n_axis[0] * k_axis / (0.8 * BANDWIDTH_BYTES_PER_S) * 1e6
    us = np.array([2.5, 2.6, *(2.5 + streamed_us[2:])])[None, None, :].repeat(2, axis=0)
    table = GemmTable(
        "t", np.array([1.0, 16.0]), n_axis, k_axis, us, 2.0, LIGHT.peak("bf16"), LIGHT
    )
    assert table.measured_warm() and table.fixed_us == 2.5
    assert table.stream_bytes_per_s() == pytest.approx(0.8 * BANDWIDTH_BYTES_PER_S, rel=1e-12)
    assert table.curve_us(64, 65536, np.array([0.0, 1.0]))[0][1] == pytest.approx(
        2.5 + streamed_us[1], rel=1e-12
    )


def test_no_weights_stream_faster_than_the_data_sheet() -> None:
    assert gemms((1.25, 1.5, 2.0), warm_share=4.0).stream_bytes_per_s() == BANDWIDTH_BYTES_PER_S


@needs_database
def test_prompts_beyond_the_longest_measured_one_are_extrapolated() -> None:
    """Alone they are measured, or interpolated, up to it; with cached tokens nothing
    was measured.
    """
    asked = request(hardware="H100", max_tokens=65536, max_model_len=65536, source="silicon")
    grid = split_grid(compile_costs(asked).attention)
    alone, cached = grid.prefill_provenance[:, 0], grid.prefill_provenance[:, 2]
    longest = grid.q_axis[alone == Provenance.MEASURED][-1]
    beyond = grid.q_axis > longest
    assert 1024 < longest < 65536
    assert set(alone[beyond].tolist()) == set(cached[beyond].tolist()) == {Provenance.EXTRAPOLATED}
    assert set(alone[~beyond].tolist()) <= {
        Provenance.MEASURED,
        Provenance.INTERPOLATED,
        Provenance.ANALYTIC,
    }
    assert set(cached[~beyond].tolist()) <= {Provenance.SCALED, Provenance.ANALYTIC}

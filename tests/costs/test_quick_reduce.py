"""vLLM's quick all-reduce on AMD's cards: which vectors it takes, what it sends, and how long."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from evaluation.amd_collectives import errors_of, errors_table
from llmsim.costs.nccl.constants import measured_machine
from llmsim.costs.nccl.moved import moved
from llmsim.costs.nccl.plans import Chosen, choose_vllm
from llmsim.costs.nccl.quick_reduce import MOST_BYTES, QuickReduce

DOCS = Path(__file__).resolve().parents[2] / "docs" / "explanation"
MB = 1 << 20
MI300X = measured_machine("mi300x")
INT4 = QuickReduce("INT4", "float16")


def chosen(quick: QuickReduce, sizes: list[float], ranks: int) -> Chosen:
    vectors = np.array(sizes, float)
    own = choose_vllm(MI300X, vectors, ranks, eager=False)
    return quick.over(own, MI300X, vectors, ranks)


def names(quick: QuickReduce, sizes: list[float], ranks: int) -> list[str]:
    found = chosen(quick, sizes, ranks)
    return [found.names[at] for at in found.which.tolist()]


@pytest.mark.parametrize(
    ("kernels", "ranks", "megabytes"),
    [
        ("float16", 2, {"FP": 1, "INT8": 2, "INT6": 2, "INT4": 1, "INT3": 1}),
        ("float16", 4, {"FP": 1, "INT8": 16, "INT6": 4, "INT4": 2}),
        ("float16", 8, {"FP": 16, "INT8": 4, "INT6": 4, "INT4": 2}),
        ("bfloat16", 2, {"FP": 2, "INT8": 8, "INT6": 8, "INT4": 8, "INT3": 8}),
        ("bfloat16", 4, {"FP": 8, "INT8": 64, "INT6": 64, "INT4": 16}),
        ("bfloat16", 8, {"FP": 16, "INT8": 2048, "INT6": 2048, "INT4": 2048}),
    ],
)
def test_vectors_of_the_engines_table_are_taken(
    kernels: str, ranks: int, megabytes: dict[str, int]
) -> None:
    """`_QR_MIN_SIZE` of vLLM 0.33 and SGLang 0.5.23; multiples of 16 bytes, to 2 GiB."""
    for quantization, least in megabytes.items():
        quick = QuickReduce(quantization, kernels)
        quick_name = f"vLLM quick two-shot {quantization}"
        first = least * MB
        found = names(quick, [first - 16, first, first + 8, MOST_BYTES, MOST_BYTES + 16], ranks)
        taken = [name == quick_name for name in found]
        assert taken == [False, True, False, True, False], (quantization, found)


def test_only_some_numbers_of_ranks_take_it() -> None:
    for ranks in (2, 3, 4, 5, 6, 7, 8):
        (found,) = names(INT4, [64 * MB], ranks)
        assert ("quick" in found) == (ranks in (2, 4, 8))
    for ranks in (4, 8):
        (found,) = names(QuickReduce("INT3", "float16"), [64 * MB], ranks)
        assert "quick" not in found
    elsewhere = choose_vllm(MI300X, np.array([64.0 * MB]), 4, eager=False)
    without = INT4.over(elsewhere, replace(MI300X, quick={}), np.array([64.0 * MB]), 4)
    assert without.used == ("ring Simple",)


def test_variables_move_the_limits() -> None:
    limits = replace(INT4, min_size_bytes_mb=4, max_size_bytes_mb=8)
    found = names(limits, [4 * MB - 16, 4 * MB, 8 * MB, 8 * MB + 16], 2)
    assert ["quick" in name for name in found] == [False, True, True, False]
    late = replace(INT4, quantization_min_size_kb=16 << 10)
    found = names(late, [MB, 16 * MB - 16, 16 * MB], 2)
    assert [name.rsplit(" ", 1)[1] for name in found] == ["FP", "FP", "INT4"]
    none = names(replace(INT4, min_size_bytes_mb=0), [16], 8)
    assert none == ["vLLM quick two-shot INT4"]


def test_it_comes_first_even_where_another_is_faster() -> None:
    small = replace(INT4, min_size_bytes_mb=0)
    own = choose_vllm(MI300X, np.array([4096.0]), 2, eager=False).us
    assert chosen(small, [4096.0], 2).us[0] > own[0]


@pytest.mark.parametrize(
    ("quantization", "bytes_for_32"), [("FP", 64), ("INT8", 34), ("INT6", 26), ("INT4", 18)]
)
def test_blocks_of_32_numbers_travel_with_a_scale(quantization: str, bytes_for_32: int) -> None:
    """Two-shot: a part of the vector to each other rank, twice."""
    found = chosen(QuickReduce(quantization, "float16"), [64.0 * MB], 8)
    way = found.ways[int(found.which[0])]
    (part,) = moved(way, "all_reduce", [list(range(8))])
    assert len(part.flows) == 8 * 7 and part.share == Fraction(2, 8) * Fraction(bytes_for_32, 64)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("kernels", ["float16", "bfloat16"])
def test_no_link_of_a_pair_carries_more_than_it_can(ranks: int, kernels: str) -> None:
    for protocol in MI300X.quick[kernels]:
        quick = QuickReduce(protocol.name, kernels, min_size_bytes_mb=0)
        if ranks not in quick.ranks():
            continue
        for size in (16.0, 4096.0, 16.0 * MB, 2048.0 * MB):
            found = chosen(quick, [size], ranks)
            (part,) = moved(found.ways[int(found.which[0])], "all_reduce", [list(range(ranks))])
            assert float(part.share) * size / (64 * 1e3) <= found.us[0]


def test_published_times_are_met_on_sizes_that_the_fit_has_not_seen() -> None:
    """The table is in docs/explanation/collectives.md."""
    page = (DOCS / "collectives.md").read_text()
    assert errors_table() in page, "python evaluation/amd_collectives.py prints the table"
    errors = errors_of()
    for name, (_, found) in errors.items():
        assert np.median(np.abs(found)) < 0.10, name
    together = np.abs(np.concatenate([found for _, found in errors.values()]))
    assert np.median(together) < 0.05 and np.quantile(together, 0.9) < 0.13


def test_among_eight_int4_has_amds_factor_over_rccl() -> None:
    """1.52 for 1 GB (ROCm blog quick-reduce-2): nothing else is known among eight."""
    vector = [2.0**30]
    quick, plain = chosen(INT4, vector, 8), choose_vllm(MI300X, np.array(vector), 8, eager=False)
    assert plain.us[0] / quick.us[0] == pytest.approx(1.52, rel=0.02)

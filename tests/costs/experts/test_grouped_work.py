"""The work of grouped experts: touched experts, tiles of rows, and the rates that rows reach."""

from math import ceil, comb

import numpy as np
import pytest

from llmsim.costs.experts.grouped_work import (
    UNPADDED,
    GroupedWork,
    MoeShape,
    ReachedRates,
    normal_share_below,
)

SHAPE = MoeShape(hidden=64, inter=32, topk=8, experts=128, tp=1, ep=1)


def tiles_by_enumeration(tokens: int, chance: float, tile: int) -> float:
    """Tiles of one expert over the binomial distribution of its tokens."""
    return sum(
        ceil(rows / tile) * comb(tokens, rows) * chance**rows * (1 - chance) ** (tokens - rows)
        for rows in range(tokens + 1)
    )


@pytest.mark.parametrize(("experts", "topk"), [(128, 8), (160, 8), (8, 2), (128, 4)])
@pytest.mark.parametrize("tokens", [1, 3, 40, 200, 700, 1000])
def test_random_choices_fill_the_tiles_that_a_binomial_fills(
    experts: int, topk: int, tokens: int
) -> None:
    shape = MoeShape(64, 32, topk, experts, tp=1, ep=1)
    mean = tokens * topk / experts
    tile = next(size for size in (16, 32, 64, 128) if mean <= size or size == 128)
    expected = experts * tile * tiles_by_enumeration(tokens, topk / experts, tile)
    padded = shape.padded(np.array([float(tokens)]), 128)
    assert padded[0] == pytest.approx(expected, rel=0.015)


def test_choices_in_turn_fill_whole_tiles_at_powers_of_two() -> None:
    counts = np.array([2048.0, 4096.0, 8192.0])
    assert SHAPE.padded_in_turn(counts, 128).tolist() == (counts * 8).tolist()
    assert SHAPE.padded_in_turn(np.array([1.0]), 128).tolist() == [8 * 16]


def test_the_last_tile_of_each_expert_is_half_empty_when_there_are_many() -> None:
    """512 rows of each expert are four tiles in turn, and four and a half at random."""
    rows = SHAPE.padded(np.array([8192.0]), 128)[0]
    assert rows == pytest.approx(128 * 4.5 * 128, rel=0.005)
    assert SHAPE.padded(np.array([8192.0]), UNPADDED)[0] == 8192 * 8


def test_a_shared_expert_has_every_token_in_tiles_of_the_kernel() -> None:
    """Eight tokens touch 51.6 of 128 experts and the shared one, which fills a tile of 16 rows."""
    beside = MoeShape(64, 32, 8, 128, tp=1, ep=1, always=1)
    counts = np.array([0.0, 8.0, 300.0])
    assert beside.touched(counts) - SHAPE.touched(counts) == pytest.approx([0, 1, 1])
    in_turn = beside.touched_in_turn(counts) - SHAPE.touched_in_turn(counts)
    assert in_turn == pytest.approx([0, 1, 1])
    assert beside.pairs(counts) - SHAPE.pairs(counts) == pytest.approx([0, 8, 300])
    for of in ("padded", "padded_in_turn"):
        more = getattr(beside, of)(counts, 64) - getattr(SHAPE, of)(counts, 64)
        assert more == pytest.approx([0, 16, 320]), of
    assert (beside.padded(counts, UNPADDED) - SHAPE.padded(counts, UNPADDED))[2] == 300


def test_ranks_share_experts_and_their_rows() -> None:
    apart = MoeShape(64, 32, 8, 128, tp=1, ep=4)
    counts = np.array([1.0, 100.0, 5000.0])
    for of in ("touched", "touched_in_turn", "pairs"):
        assert getattr(apart, of)(counts) == pytest.approx(getattr(SHAPE, of)(counts) / 4)
    for of in ("padded", "padded_in_turn"):
        assert getattr(apart, of)(counts, 64) == pytest.approx(getattr(SHAPE, of)(counts, 64) / 4)


def test_rates_are_the_best_of_the_rows_and_give_their_times_back() -> None:
    """One row is bound by weights and one by operations; outputs pass the memory beside both."""
    counts = np.array([16.0, 8192.0])
    work = GroupedWork.in_turn(SHAPE, counts, 128, element_bytes=2.0)
    outputs_us = work.output_bytes / 1e6
    times_us = np.array([20.0, 400.0]) + outputs_us
    rates = ReachedRates.of_rows(work, times_us, bytes_per_s=1e12)
    assert rates.weight_bytes == pytest.approx(work.weight_bytes[0] / 20.0)
    assert rates.flops == pytest.approx(work.flops[1] / 400.0)
    assert rates.us(work) == pytest.approx(times_us)
    at_random = GroupedWork.at_random(SHAPE, counts, 128, element_bytes=2.0)
    assert rates.us(at_random)[1] == pytest.approx(400.0 * 4.5 / 4 + outputs_us[1], rel=0.005)


def test_the_normal_distribution_function() -> None:
    assert normal_share_below(np.array([-6.0, -1.0, 0.0, 1.96])) == pytest.approx(
        [9.87e-10, 0.15865525, 0.5, 0.97500210], abs=1e-7
    )

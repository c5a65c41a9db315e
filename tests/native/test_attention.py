"""Attention prices: interpolation, several prefills in a step, and decode rows of
unequal length.
"""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim import _native

CHUNK, CONTEXT, COUNT, LENGTH = [0, 16, 64, 256], [0, 64, 512], [0, 1, 8, 64], [0, 128, 1024]


def priced(attention: Any, layers: int = 1) -> Any:
    """A program that is nothing but attention."""
    op = _native.Operator(
        "attention",
        _native.NodeKind.ATTENTION,
        _native.Feature.TOKENS,
        0,
        layers,
        np.empty(0, np.int64),
        np.empty(0, np.uint8),
    )
    free = _native.Operator(
        "free",
        _native.NodeKind.COMPUTE,
        _native.Feature.TOKENS,
        0,
        1,
        np.zeros(4097, np.int64),
        np.zeros(4097, np.uint8),
    )
    per_seq = _native.Operator(
        "seq",
        _native.NodeKind.COMPUTE,
        _native.Feature.SEQUENCES,
        0,
        1,
        np.zeros(65, np.int64),
        np.zeros(65, np.uint8),
    )
    return _native.Program(
        [free, op, per_seq], attention, np.arange(4097, dtype=np.int32), _native.LowerBound(), 0
    )


def affine(chunk: int, context: int, count: int, length: int) -> int:
    """A table that multilinear interpolation reproduces exactly."""
    return (
        10_000_000
        + 700 * chunk
        + 13 * context
        + 900 * count
        + 31 * length
        + 2 * count * length
        + 5 * chunk * context
    )


def mixed(skew: int = 0, **given: Any) -> Any:
    cells = [affine(a, b, c, d) for a in CHUNK for b in CONTEXT for c in COUNT for d in LENGTH]
    axes = [np.array(axis, np.int64) for axis in (CHUNK, CONTEXT, COUNT, LENGTH)]
    return _native.Attention.mixed(axes, np.array(cells, np.int64), skew, **given)


@settings(max_examples=200, deadline=None)
@given(
    q=st.integers(2, 400), k=st.integers(0, 900),
    decodes=st.lists(st.integers(0, 1500), max_size=40),
)  # fmt: skip
def test_mixed_grid_is_multilinear_inside_and_beyond(q: int, k: int, decodes: list[int]) -> None:
    n = len(decodes)
    mean = Fraction(sum(decodes), n) if n else Fraction(0)
    expected = affine(q, k, n, mean)  # type: ignore[arg-type]
    got = priced(mixed()).step_ps([(q, k), *((1, c) for c in decodes)])
    assert abs(got - expected) <= 64  # weights are multiples of 2^-24


def test_one_prefill_is_looked_up_as_it_is_and_two_by_their_common_area() -> None:
    program = priced(mixed())
    assert program.step_ps([(64, 64)]) == affine(64, 64, 0, 0)
    # 100 + 156 new tokens on 300 and 500: one prefill of 256 tokens with the same causal area
    area = 100 * (2 * 300 + 100) + 156 * (2 * 500 + 156)
    context = Fraction(area - 256 * 256, 2 * 256)
    wanted = affine(256, context, 0, 0)  # type: ignore[arg-type]
    assert abs(program.step_ps([(100, 300), (156, 500)]) - wanted) <= 64


def test_prefills_that_do_not_see_each_other_cost_less_than_one_prompt_of_their_tokens() -> None:
    program = priced(mixed())
    apart, together = program.step_ps([(128, 0), (128, 0)]), program.step_ps([(256, 0)])
    floor = program.step_ps([(2, 0)])
    assert floor < apart < together
    assert (
        abs(apart - (together - (together - affine(1, 0, 0, 0)) // 2)) <= 64
    )  # half the causal area is missing


@given(
    prompts=st.lists(st.tuples(st.integers(2, 100), st.integers(0, 500)), min_size=1, max_size=5),
    decodes=st.lists(st.integers(0, 1000), max_size=5),
)
def test_prompts_looked_up_apart_share_the_shortest_call(
    prompts: list[tuple[int, int]], decodes: list[int]
) -> None:  # fmt: skip
    program, floor = priced(mixed(prompts_apart=True)), affine(1, 0, 0, 0)
    alone = [program.step_ps([prompt]) for prompt in prompts]
    one = program.step_ps([*prompts, *((1, kv) for kv in decodes)])
    if len(prompts) == 1:
        assert one == priced(mixed()).step_ps([*prompts, *((1, kv) for kv in decodes)])
        return
    n, mean = len(decodes), Fraction(sum(decodes), len(decodes)) if decodes else Fraction(0)
    beside = affine(0, 0, n, mean) - affine(0, 0, 0, 0) if n else 0  # type: ignore[arg-type]
    wanted = floor + sum(max(0, ps - floor) for ps in alone) + beside
    assert abs(one - wanted) <= 64 * (len(prompts) + 2)


def test_the_longest_decode_row_sticks_out_by_kappa() -> None:
    kappa = 16_000  # ps per token
    even, uneven = [(1, 500)] * 4, [(1, 200), (1, 200), (1, 200), (1, 1400)]
    program = priced(mixed(kappa << 20), layers=3)
    assert program.step_ps(uneven) - program.step_ps(even) == 3 * kappa * (1400 - 500)
    assert priced(mixed(kappa << 20)).step_ps([(1, 900)]) == affine(
        0, 0, 1, 900
    )  # one row cannot stick out


def split(mixed_ps: int) -> Any:
    prefill = np.array([[q * 1000 + k * 10 for k in (0, 1000)] for q in (0, 500)], np.int64).ravel()
    decode = np.array([[n * 100 + c for c in (0, 1000)] for n in (0, 64)], np.int64).ravel()
    axes = [np.array(axis, np.int64) for axis in ([0, 500], [0, 1000], [0, 64], [0, 1000])]
    return _native.Attention.split(axes[:2], prefill, axes[2:], decode, mixed_ps, 0)


def test_split_grids_add_up_and_prefills_slow_decodes_down() -> None:
    program = priced(split(0))
    assert program.step_ps([(100, 200), (50, 0)]) == (100_000 + 2_000) + 50_000
    assert program.step_ps([(1, 300)] * 8) == 8 * 100 + 300
    assert program.step_ps([(100, 0), *[(1, 300)] * 8]) == 100_000 + 1_100
    slowed = priced(split(2 << 20))  # at least 2 ps per token of context beside a prefill
    assert slowed.step_ps([(100, 0), *[(1, 300)] * 8]) == 100_000 + 2 * 8 * 300
    assert slowed.step_ps([(1, 300)] * 8) == 1_100


@given(
    prompts=st.lists(st.tuples(st.integers(2, 100), st.integers(0, 500)), min_size=1, max_size=5)
)
def test_prompts_of_a_step_take_the_largest_shared_part_once(
    prompts: list[tuple[int, int]],
) -> None:
    axes = [np.array(axis, np.int64) for axis in ([0, 500], [0, 1000])]
    own = [[q * 1000 + k * 10 for k in (0, 1000)] for q in (0, 500)]
    shared = [[5_000 + q * 20 + k * 3 for k in (0, 1000)] for q in (0, 500)]
    whole = np.array(own, np.int64) + np.array(shared, np.int64)
    decode = [np.array([1, 64]), np.array([0, 1000]), np.zeros(4, np.int64)]
    program = priced(
        _native.Attention.split(
            axes,
            whole.ravel(),
            decode[:2],
            decode[2],
            0,
            0,
            shared_ps=np.array(shared, np.int64).ravel(),
        )
    )
    alone = [q * 1000 + k * 10 for q, k in prompts]
    largest = max(5_000 + q * 20 + k * 3 for q, k in prompts)
    assert abs(program.step_ps(prompts) - (sum(alone) + largest)) <= 4 * len(prompts)


@pytest.mark.parametrize(("count", "length"), [(64, 5000), (200, 1000)])
def test_beyond_the_grid_the_last_segment_goes_on(count: int, length: int) -> None:
    # step_ps sees at most 64 sequences in its per-sequence table; attention itself has no limit
    assert abs(priced(mixed()).step_ps([(1, length)] * count) - affine(0, 0, count, length)) <= 4096


def latents(rule: tuple[int, int, int]) -> Any:
    """Prompts cost their new tokens, or a thousand times as much on the latents, of which each call
    of several has 10 in common.
    """
    q, k = np.array([1, 1000], np.int64), np.array([0, 10_000], np.int64)
    plain = np.array([[1, 1], [1000, 1000]], np.int64).ravel()
    none = np.zeros(4, np.int64)
    return _native.Attention.split(
        [q, k], plain, [np.array([1, 2], np.int64), k], none, 0, 0,
        shared_ps=none + 1, latent_ps=1000 * plain, latent_shared_ps=none + 10, latent_rule=rule,
    )  # fmt: skip


def test_prompts_of_few_new_tokens_run_on_the_latents() -> None:
    program = priced(latents((50, 0, 0)))
    assert program.step_ps([(50, 9000)]) == 50_000
    assert program.step_ps([(51, 9000)]) == 51
    # One call on the latents and one that expands: each shares its own part.
    assert program.step_ps([(50, 0), (40, 0), (60, 7), (70, 0)]) == 90_000 - 10 + 130 - 1


@pytest.mark.parametrize(("cached", "on_latents"), [(0, False), (99, True), (100, False)])
def test_prompts_with_few_cached_tokens_together_run_on_the_latents(
    cached: int, on_latents: bool
) -> None:
    program = priced(latents((0, 100, 0)))
    half = cached // 2
    got = program.step_ps([(200, half), (300, cached - half), (1, 5000)])
    assert got == (500_000 - 10 if on_latents else 500 - 1)


def test_steps_of_few_prompt_tokens_run_on_the_latents() -> None:
    program = priced(latents((0, 0, 500)))
    assert program.step_ps([(200, 5000), (300, 0), (1, 5000)]) == 500_000 - 10
    assert program.step_ps([(201, 5000), (300, 0)]) == 501 - 1

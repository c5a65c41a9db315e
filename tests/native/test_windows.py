"""Layers that see a window or a chunk: what is looked up is what they see, summed
token by token.
"""

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim import _native
from tests.native.test_attention import priced

QUERIES, CONTEXTS, COUNTS, LENGTHS = [1, 64, 512], [0, 64, 4096], [1, 8, 64], [0, 128, 4096]
PER_TOKEN, PER_CACHED, PER_DECODE, PER_LENGTH = 5_000, 700, 900, 31
BASE = 10_000_000


def split(window: int = 0, chunked: bool = False) -> Any:
    """Prefill BASE + 5000 q + 700 k, decode 900 n + 31 kv, in ps: bilinear, so
    reproduced exactly.
    """
    prefill = [BASE + PER_TOKEN * q + PER_CACHED * k for q in QUERIES for k in CONTEXTS]
    decode = [PER_DECODE * n + PER_LENGTH * kv for n in COUNTS for kv in LENGTHS]
    axes = [np.array(axis, np.int64) for axis in (QUERIES, CONTEXTS, COUNTS, LENGTHS)]
    prices = [np.array(cells, np.int64) for cells in (prefill, decode)]
    return _native.Attention.split(
        axes[:2], prices[0], axes[2:], prices[1], 0, 0, window=window, chunked=chunked
    )


def seen(position: int, window: int, chunked: bool) -> int:
    """Tokens that the one at a position sees, itself included."""
    return position % window + 1 if chunked else min(position + 1, window)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4000), min_size=1, max_size=20), st.integers(2, 3000), st.booleans())
def test_decodes_read_what_they_see(contexts: list[int], window: int, chunked: bool) -> None:
    n = len(contexts)
    mean = Fraction(sum(seen(k, window, chunked) - 1 for k in contexts), n)
    got = priced(split(window, chunked)).step_ps([(1, k) for k in contexts])
    assert abs(got - (PER_DECODE * n + PER_LENGTH * mean)) <= 4


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 500), st.integers(0, 4000), st.integers(2, 3000), st.booleans())
def test_prompts_compute_what_they_see(q: int, k: int, window: int, chunked: bool) -> None:
    pairs = sum(seen(k + i, window, chunked) for i in range(q))
    alone = q * (q + 1) // 2  # of a prompt without cached tokens that sees everything
    got = priced(split(window, chunked)).step_ps([(q, k)])
    if (
        2 * pairs - q >= q * q
    ):  # twice the pairs without the diagonal, as the tables' contexts are defined
        assert abs(got - (BASE + PER_TOKEN * q + PER_CACHED * Fraction(pairs - alone, q))) <= 4
    else:
        share = Fraction(2 * pairs - q, q * q)
        assert abs(got - (BASE + PER_TOKEN + PER_TOKEN * (q - 1) * share)) <= 4


@given(st.integers(2, 500), st.integers(0, 1000), st.booleans())
def test_a_window_wider_than_the_sequence_changes_nothing(q: int, k: int, chunked: bool) -> None:
    items = [(q, k), (1, k)]
    assert priced(split(q + k + 1, chunked)).step_ps(items) == priced(split()).step_ps(items)


@given(st.integers(2, 400), st.integers(0, 2000), st.integers(2, 2000))
def test_more_sight_never_costs_less(q: int, k: int, window: int) -> None:
    prices = [
        priced(split(size)).step_ps([(q, k), (1, k)])
        for size in (window, window + 1, 2 * window, 0)
    ]
    assert prices == sorted(prices)


def test_kinds_of_attention_add_up() -> None:
    def op(index: int, layers: int) -> Any:
        empty = np.empty(0, np.int64), np.empty(0, np.uint8)
        kind, feature = _native.NodeKind.ATTENTION, _native.Feature.TOKENS
        return _native.Operator(
            f"attention {index}", kind, feature, 0, layers, *empty, attention=index
        )

    free = [
        _native.Operator(
            "free",
            _native.NodeKind.COMPUTE,
            feature,
            0,
            1,
            np.zeros(65, np.int64),
            np.zeros(65, np.uint8),
        )
        for feature in (_native.Feature.TOKENS, _native.Feature.SEQUENCES)
    ]
    padded = np.arange(65, dtype=np.int32)
    both = _native.Program(
        [op(0, 3), op(1, 5), *free],
        split(),
        padded,
        _native.LowerBound(),
        0,
        other_attentions=[split(100)],
    )
    items = [(40, 900), (1, 50), (1, 3000)]
    alone = [
        priced(attention, layers).step_ps(items)
        for attention, layers in ((split(), 3), (split(100), 5))
    ]
    assert both.step_ps(items) == sum(alone)

"""Prompts of latent attention behind cached tokens make keys and values of them."""

import numpy as np
import pytest

from llmsim.costs import compile_costs
from llmsim.costs.context_expansion import WORKSPACE_TOKENS, with_expansion
from llmsim.costs.source import Curve, SplitGrid
from llmsim.model import Attention, Gemm, Operator
from tests.costs.builders import needs_database, request, split_grid

DEEPSEEK = "deepseek-ai/DeepSeek-V3"


def attention_of(model: str, tp: int = 1) -> Attention:
    asked = request(model, "H200", tp=tp)
    ops = asked.operators
    return next(op for op in ops if isinstance(op, Attention))


def test_the_kernels_are_those_of_the_cache() -> None:
    op = attention_of(DEEPSEEK, tp=8)
    assert op.expansion is not None
    gather, expand, lay = op.expansion.each_cached
    assert (gather.read_bytes_per_token, gather.write_bytes_per_token) == (576 * 2, 576 * 2)
    assert isinstance(expand, Gemm) and (expand.gemm_n, expand.gemm_k) == (16 * 256, 512)
    assert lay.write_bytes_per_token == 16 * 192 * 2
    assert op.expansion.each_new.read_bytes_per_token == 2 * 16 * 128 * 2


def test_who_attends_to_the_cache_as_it_is_expands_nothing() -> None:
    assert attention_of("Llama-3.1-8B").expansion is None
    assert attention_of("deepseek-ai/DeepSeek-V3.2").expansion is None  # sparse: on latents


def linear(op: Operator, last: int) -> Curve:
    """1,000 ps and 10 a token; the merge 7 a token."""
    counts = np.arange(last + 1, dtype=np.int64)
    ps = 7 * counts if op.name == "merge_attentions" else 1000 + 10 * counts
    return Curve(np.where(counts > 0, ps, 0), np.zeros(last + 1, np.uint8), "test")


def test_cached_tokens_are_expanded_a_workspace_at_a_time() -> None:
    op, asked = attention_of(DEEPSEEK), request(DEEPSEEK, "H200")
    q, k = np.array([1, 100]), np.array([0, 500, WORKSPACE_TOKENS, WORKSPACE_TOKENS + 1])
    none, marks = np.zeros((2, 4), np.int64), np.zeros((2, 4), np.uint8)
    decode = (np.array([1, 2]), np.array([0, 1]), np.zeros((2, 2), np.int64), marks[:, :2])
    grid = SplitGrid(q, k, none, marks, *decode, 0, np.zeros((2, 4), np.int64))
    found, whose = with_expansion(grid, op, asked, linear)
    assert whose == "; cached tokens expanded: test"
    kernels = 3
    whole = kernels * (1000 + 10 * WORKSPACE_TOKENS)
    wanted = [0, kernels * 6000 + 700, whole + 700, whole + kernels * 1010 + 1400]
    assert found.prefill_ps[1].tolist() == wanted
    assert found.shared_ps is not None
    assert 0.98 * 3000 < found.shared_ps[1, 1] <= 3000  # the fixed part, once for all prompts


@needs_database
@pytest.mark.parametrize("source", ["silicon", "roofline"])
def test_a_short_prompt_behind_a_long_prefix_pays_for_the_prefix(source: str) -> None:
    with_it, without = (
        split_grid(compile_costs(request(DEEPSEEK, "H200", tp=8, source=source, **terms)).attention)
        for terms in ({}, {"context_expansion": False})
    )
    row = int(np.searchsorted(with_it.q_axis, 256))
    more = with_it.prefill_ps - without.prefill_ps
    assert (more[:, 0] == 0).all() and (more[:, 1:] > 0).all()
    assert more[row, -1] > without.prefill_ps[row, -1] / 4
    assert (with_it.decode_ps == without.decode_ps).all()

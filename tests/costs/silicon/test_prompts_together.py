"""Several prompts of a step, against the rows that the database has of such calls."""

import numpy as np
import pytest

from llmsim.costs import compile_costs
from llmsim.costs.sources.silicon.attention.dense import find_rows
from llmsim.costs.sources.silicon.attention.grid import further_prompt_times, prompt_times
from llmsim.model import Attention
from tests.costs.builders import database, needs_database, request, split_grid

pytestmark = needs_database

CARDS = ["A100", "H100", "H200", "B200"]


def grid_us(hardware: str, prompts: list[tuple[int, int]]) -> float:
    """Attention of one layer of Llama-3.1-8B for prompts of (new, cached) tokens, microseconds."""
    grid = split_grid(compile_costs(request("Llama-3.1-8B", hardware)).attention)
    assert grid.shared_ps is not None

    def at(ps: np.ndarray, q: int, k: int) -> float:
        by_k = [float(np.interp(q, grid.q_axis, column)) for column in ps.T]
        return float(np.interp(k, grid.k_axis, by_k))

    shared = [at(grid.shared_ps, *prompt) for prompt in prompts]
    alone = [at(grid.prefill_ps, *prompt) for prompt in prompts]
    return (sum(alone) - sum(shared) + max(shared)) / 1e6


@pytest.mark.parametrize("hardware", CARDS)
def test_batches_that_gave_nothing_are_met(hardware: str) -> None:
    """The rule takes a prompt alone and the largest batch of each length; those between test it."""
    asked = request("Llama-3.1-8B", hardware)
    op = next(op for op in asked.operators if isinstance(op, Attention))
    rows = find_rows(database(hardware).tables("context_attention"), op, "bf16")
    batch, length = rows.numbers("batch_size"), rows.numbers("isl")
    ours, sums, measured = [], [], []
    for count in (4, 8, 16, 32):
        for tokens in (128, 256, 512, 1024, 2048):
            row = (batch == count) & (length == tokens)
            if count * tokens > 8192 or not row.any():
                continue
            measured.append(rows.numbers("latency")[row].min() * 1e3)
            ours.append(grid_us(hardware, [(tokens, 0)] * count))
            sums.append(count * grid_us(hardware, [(tokens, 0)]))
    errors = np.abs(np.array(ours) / measured - 1)
    assert len(errors) >= 10 and np.median(errors) < 0.08 and errors.max() < 0.35
    assert np.median(np.abs(np.array(sums) / measured - 1)) > 3 * np.median(errors)


@pytest.mark.parametrize("hardware", CARDS)
def test_one_more_prompt_never_takes_longer_than_one_alone(hardware: str) -> None:
    asked = request("Llama-3.1-8B", hardware)
    op = next(op for op in asked.operators if isinstance(op, Attention))
    rows = find_rows(database(hardware).tables("context_attention"), op, "bf16")
    (lengths, alone), (others, further) = prompt_times(rows), further_prompt_times(rows)
    assert (lengths == others).all() and (further > 0).all() and (further <= alone).all()
    assert (np.diff(further) >= 0).all()
    assert further[-1] > 0.8 * alone[-1]  # a long prompt fills the card


def test_without_the_term_times_add_up() -> None:
    asked = request("Llama-3.1-8B", "H100", prompts_together=False)
    assert split_grid(compile_costs(asked).attention).shared_ps is None


@pytest.mark.parametrize("source", ["silicon", "roofline"])
def test_cached_tokens_are_each_prompts_own(source: str) -> None:
    """What is shared hardly grows with the cache, of which each prompt reads its own."""
    asked = request("Llama-3.1-8B", "H100", source=source)
    grid = split_grid(compile_costs(asked).attention)
    assert grid.shared_ps is not None
    row = int(np.searchsorted(grid.q_axis, 256))
    own = grid.prefill_ps - grid.shared_ps
    grown = grid.prefill_ps[row, -1] - grid.prefill_ps[row, 0]
    assert own[row, -1] - own[row, 0] > 0.9 * grown

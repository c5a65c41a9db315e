"""Orders of SGLang's queue by what prompts still have to compute."""

from typing import Any

import pytest
from scheduling.tiny import Options, run
from token_balance import assert_nothing_is_lost

from llmsim.config.engine.options import SGLANG_POLICIES


def ran(policy: str, requests: list[tuple[int, int, int]], **fields: Any) -> Any:
    """The simulation of these; nothing of a prompt is shared."""
    keys = [
        [(row << 20) + j + 1 for j in range(prompt)] for row, (_, prompt, _) in enumerate(requests)
    ]
    options = Options(
        "sglang",
        block_size=1,
        caching=True,
        keys=keys,
        extra={"sglang_policy": SGLANG_POLICIES.index(policy), "sglang_new_tokens": 1},
        **fields,
    )
    return run(requests, options)


def starts(
    policy: str, requests: list[tuple[int, int, int]], *, seqs: int = 1, budget: int = 4096
) -> list[int]:
    """Rows of the requests in the order of their starts."""
    sim = ran(policy, requests, blocks=4001, max_seqs=seqs, budget=budget)
    scheduled = sim.requests()["scheduled_ps"].tolist()
    return sorted(range(len(requests)), key=scheduled.__getitem__)


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fcfs", [0, 1, 2, 3]), ("shortest-prefill-first", [0, 2, 3, 1])],
)
def test_the_shortest_prompt_is_first(policy: str, order: list[int]) -> None:
    assert starts(policy, [(0, 50, 9), (1, 90, 2), (2, 30, 2), (3, 60, 2)]) == order


def test_a_short_prompt_passes_the_chunks_of_a_long_one() -> None:
    """A prompt of nine chunks leaves room in one of them for 30 tokens that came later."""
    late = [(0, 900, 2), (1, 600, 2), (2, 30, 2)]
    assert starts("shortest-prefill-first", late, seqs=4, budget=100) == [0, 2, 1]
    assert starts("fcfs", late, seqs=4, budget=100) == [0, 1, 2]


def test_the_ratio_of_waited_tokens_counts_decodes_as_sglang_does() -> None:
    """Each decode of the first request counts its prompt of 50 tokens again: the third has then
    waited for a larger multiple of its own prompt than the second, which came before it.
    """
    requests = [(0, 50, 40), (2, 400, 2), (20, 10, 2)]
    assert starts("hrrn", requests) == [0, 2, 1]
    assert starts("fcfs", requests) == [0, 1, 2]
    assert starts("hrrn", [(0, 50, 40), (2, 100, 2), (36, 90, 2)]) == [0, 1, 2]


def test_a_long_prompt_goes_on_with_the_memory_that_shorter_ones_leave() -> None:
    """Those were admitted without counting the rest of it; SGLang itself ends here."""
    requests = [(0, 220, 2), (1, 30, 60), (1, 30, 60), (1, 30, 60), (2, 30, 60)]
    sim = ran("shortest-prefill-first", requests, blocks=260, budget=100)
    assert sim.requests()["preemptions"].tolist()[0] == 0
    assert sum(sim.requests()["preemptions"].tolist()) > 0
    assert_nothing_is_lost(sim, 260, requests)

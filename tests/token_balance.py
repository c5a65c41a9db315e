"""Invariant 5 of a native simulation, as its end checks it of the results of a run."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from llmsim.core import RequestColumns, Status
from llmsim.results.invariants import unscheduled_tokens


def token_balance(simulation: Any, input_tokens: Sequence[int]) -> str:
    """Scheduled tokens against prompts, answers, caches and what was computed again: "ok", or the
    first difference.
    """
    requests, counters = RequestColumns(**simulation.requests()), simulation.counters()
    workload = SimpleNamespace(input_tokens=np.array(input_tokens, np.int32))
    groups = range(len(counters["steps"]))
    results: Any = SimpleNamespace(
        requests=requests, counters=counters, groups=groups, workload=workload
    )
    return unscheduled_tokens(results, np.flatnonzero(requests.status == Status.FINISHED))


def assert_nothing_is_lost(
    simulation: Any, blocks: int, requests: Sequence[tuple[int, int, int]]
) -> None:
    """Whoever is done has the whole answer, and the pool is as it was; `requests` are (arrival,
    prompt, answer).
    """
    rows, counters = simulation.requests(), simulation.counters()
    done = rows["status"] == Status.FINISHED
    answers = np.array([answer for _, _, answer in requests])
    assert (rows["emitted_tokens"] == np.where(done, answers, 0)).all()
    assert counters["pool_consistent"].all() and not counters["idle_with_work"].any()
    assert counters["free_blocks"][0] == blocks - 1
    assert counters["peak_blocks_used"][0] <= blocks - 1
    assert token_balance(simulation, [prompt for _, prompt, _ in requests]) == "ok"

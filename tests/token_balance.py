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

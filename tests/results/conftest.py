"""Builds results as a run would fill them."""

import numpy as np
import pytest
from numpy.typing import NDArray

from llmsim.columns import GroupCounters, LatencyCauses
from llmsim.core import GroupInfo, RequestColumns, Results, Status, TimeShare, Workload

US = 1_000_000


def _split(requests: RequestColumns, part: str) -> NDArray[np.int64]:
    """A tenth of every latency waits in the queue, the rest is prefill."""
    latency = np.where(requests.finish_ps < 0, 0, requests.finish_ps - requests.arrival_ps)
    queue = latency // 10
    zero = np.zeros_like(latency)
    return {"queue_ps": queue, "prefill_ps": latency - queue}.get(part, zero)


def make_results(
    n: int, *, seed: int = 0, groups: int = 2, finished_share: float = 0.8, max_tokens: int = 12
) -> Results:
    """n requests with random, causal times; inter-token latencies repeat, so that counts matter."""
    random = np.random.Generator(np.random.PCG64(seed))
    statuses = [Status.FINISHED, Status.REJECTED, Status.RUNNING, Status.PENDING]
    rest = (1 - finished_share) / 3
    status = random.choice(statuses, size=n, p=[finished_share, rest, rest, rest]).astype(np.uint8)
    finished = status == Status.FINISHED
    emitted = np.where(finished, random.integers(1, max_tokens + 1, n), 0).astype(np.int32)
    arrival = np.sort(random.integers(0, 10**13, n))
    queued = arrival + 1_500 * US
    scheduled = queued + random.integers(0, 10**10, n)
    first = scheduled + random.integers(1, 10**10, n)
    itl = [random.integers(1, 40, max(int(count) - 1, 0)) * 333_333_333 for count in emitted]
    finish = first + np.array([values.sum() for values in itl], dtype=np.int64)
    gone = np.where(finished, 0, -1)
    times = {
        name: np.where(gone < 0, -1, column)
        for name, column in (
            ("first", first),
            ("finish", finish),
            ("scheduled", scheduled),
            ("queued", queued),
        )
    }
    every = np.concatenate([*itl, np.zeros(0, dtype=np.int64)])
    values, counts = np.unique(every.astype(np.int64), return_counts=True)
    workload = Workload(
        arrival_ps=arrival,
        input_tokens=random.integers(1, 999, n).astype(np.int32),
        output_tokens=np.maximum(emitted, 1).astype(np.int32),
        model=np.full(n, -1, dtype=np.int16),
        models=("m",),
        next_call=np.full(n, -1, dtype=np.int32),
        tool_delay_ps=np.zeros(n, dtype=np.int64),
        key_offsets=np.zeros(n + 1, dtype=np.int64),
        keys=np.zeros(0, dtype=np.uint64),
        granularity=16,
        source="test",
        notes=("from the workload",),
    )
    requests = RequestColumns(
        group=random.integers(0, groups, n).astype(np.int16), status=status,
        arrival_ps=np.where(status == Status.PENDING, -1, arrival), queued_ps=times["queued"],
        scheduled_ps=times["scheduled"], first_token_ps=times["first"], finish_ps=times["finish"],
        cancelled_ps=np.full(n, -1, dtype=np.int64), emitted_tokens=emitted,
        cached_tokens=np.zeros(n, dtype=np.int32), preemptions=np.zeros(n, dtype=np.int32),
    )  # fmt: skip
    return Results(
        workload=workload,
        groups=tuple(
            GroupInfo(i, "org/model", "H100", 1, 1, 101, 16, 8192, 8192) for i in range(groups)
        ),
        requests=requests,
        itl_values_ps=values,
        itl_counts=counts.astype(np.int64),
        itl_of=lambda row: itl[row].astype(np.int64),
        steps={},
        series={},
        counters={
            column.name: np.arange(1, groups + 1, dtype=np.int64) * 25
            for column in GroupCounters.COLUMNS
        },
        time_shares=(
            TimeShare(0, "attention", "bundle", (60, 0, 0, 0, 0)),
            TimeShare(1, "qkv_proj", "roofline", (0, 10, 0, 0, 30)),
        ),
        blame={column.name: _split(requests, column.name) for column in LatencyCauses.COLUMNS},
        invariants={"1 conservation": "ok"},
        notes=("from the run",),
    )


@pytest.fixture
def build():
    return make_results


@pytest.fixture
def info():
    return {
        "groups": [{"ledger": [("weights", 10), ("KV cache", 20)], "block_bytes": 2_097_152}, {}],
        "notes": ["from the costs"],
    }

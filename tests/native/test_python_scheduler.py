"""A scheduler written in Python behind the loop: the smallest one, its errors, and equality with the native twin."""

from typing import Any

import numpy as np
import pytest
from test_serving_core import program

from llmsim import _native

BLOCK = 16


class OneAtATime:
    """Runs requests one after the other, each prompt in one step."""

    def __init__(self, rows: list[tuple[int, int, int]], blocks: int) -> None:
        self.rows, self.blocks = rows, blocks
        self.waiting: list[int] = []
        self.running: list[list[int]] = []  # request, tokens computed, tokens received

    def add(self, request: int) -> None:
        self.waiting.append(request)

    def build(self, now_ps: int) -> tuple[list[tuple[int, int, int, int, bool]], list[int]]:
        if not self.running and self.waiting:
            self.running = [[self.waiting.pop(0), 0, 0]]
        items = []
        for entry in self.running:
            request, computed, received = entry
            tokens = self.rows[request][1] + received - computed
            items.append((request, tokens, computed, 0, True))
            entry[1] += tokens
        return items, []

    def complete(self) -> list[tuple[int, int, bool]]:
        entry = self.running[0]
        entry[2] += 1
        done = entry[2] == self.rows[entry[0]][2]
        if done:
            self.running = []
        return [(entry[0], 1, done)]

    def gauges(self) -> tuple[int, int, int]:
        held = sum(-(-entry[1] // BLOCK) for entry in self.running)
        return len(self.running), len(self.waiting), self.blocks - 1 - held


def run(rows: list[tuple[int, int, int]], scheduler: Any) -> Any:
    columns = np.array(rows, np.int64)
    n = len(rows)
    sim = _native.Simulation(
        columns[:, 0].copy(), columns[:, 1].astype(np.int32), columns[:, 2].astype(np.int32), np.zeros(n, np.int16),
        np.full(n, -1, np.int32), np.zeros(n, np.int64), np.empty(0, np.int32), np.zeros(n + 1, np.int64),
        np.empty(0, np.uint64), BLOCK, 0,
    )  # fmt: skip
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.block_size, kv.max_model_len, kv.prefix_caching = 100, BLOCK, 10_000, False
    if scheduler is None:
        config = _native.VllmV1Config()
        config.max_num_seqs, config.max_num_scheduled_tokens, config.kv = 1, 512, kv
        sim.add_group(_native.GroupConfig(), config, program(512, 4), record_steps=True)
    else:
        sim.add_python_group(_native.GroupConfig(), scheduler, kv, program(512, 4), record_steps=True)
    while not sim.run(1000):
        pass
    return sim


ROWS = [(0, 100, 5), (10**9, 30, 1), (2 * 10**9, 200, 9), (10**12, 7, 3)]


def test_a_python_scheduler_equals_its_native_twin() -> None:
    ours, native = run(ROWS, OneAtATime(ROWS, 100)), run(ROWS, None)
    for name in ("first_token_ps", "finish_ps", "scheduled_ps", "status", "emitted_tokens"):
        assert (ours.requests()[name] == native.requests()[name]).all(), name
    assert (ours.steps()["end_ps"] == native.steps()["end_ps"]).all()
    assert ours.counters()["generation_tokens"][0] == 18


def test_its_exceptions_end_the_run_and_reach_the_caller() -> None:
    class Broken(OneAtATime):
        def build(self, now_ps: int) -> Any:
            raise KeyError("no such queue")

    with pytest.raises(KeyError, match="no such queue"):
        run(ROWS, Broken(ROWS, 100))


def test_one_that_never_schedules_is_reported_as_stalled() -> None:
    class Lazy(OneAtATime):
        def build(self, now_ps: int) -> Any:
            return [], []

    with pytest.raises(_native.Stalled, match="waiting"):
        run(ROWS, Lazy(ROWS, 100))

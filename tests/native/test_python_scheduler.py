"""A scheduler written in Python behind the loop: the smallest one, its errors, and equality with
the native twin.
"""

from typing import Any

import pytest
from simulations import simulation
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
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.block_size, kv.max_model_len, kv.prefix_caching = 100, BLOCK, 10_000, False
    if scheduler is None:
        config = _native.SchedulerConfig()
        config.max_num_seqs, config.max_num_scheduled_tokens, config.kv = 1, 512, kv
        made: Any = config
    else:
        made = _native.PythonSchedulerConfig(scheduler, kv)
    spec = _native.GroupSpec(_native.GroupConfig(), made, program(512, 4), record_steps=True)
    sim = simulation(rows, [spec], granularity=BLOCK)
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


class TakesTurns:
    """After `steps` steps of one request, the next that waits takes its place; what it had computed
    is lost.
    """

    def __init__(self, rows: list[tuple[int, int, int]], steps: int) -> None:
        self.rows, self.steps, self.used = rows, steps, 0
        self.waiting: list[tuple[int, int]] = []  # request, tokens received
        self.running: list[int] = []  # request, tokens computed, tokens received

    def add(self, request: int) -> None:
        self.waiting.append((request, 0))

    def build(self, now_ps: int) -> tuple[list[tuple[int, int, int, int, bool]], list[int]]:
        victims = []
        if self.running and self.waiting and self.used == self.steps:
            victims = [self.running[0]]
            self.waiting.append((self.running[0], self.running[2]))
            self.running = []
        if not self.running and self.waiting:
            request, received = self.waiting.pop(0)
            self.running, self.used = [request, 0, received], 0
        if not self.running:
            return [], victims
        request, computed, received = self.running
        tokens = self.rows[request][1] + received - computed
        self.running[1] += tokens
        self.used += 1
        return [(request, tokens, computed, 0, True)], victims

    def complete(self) -> list[tuple[int, int, bool]]:
        request = self.running[0]
        self.running[2] += 1
        done = self.running[2] == self.rows[request][2]
        if done:
            self.running = []
        return [(request, 1, done)]

    def gauges(self) -> tuple[int, int, int]:
        return int(bool(self.running)), len(self.waiting), 99


def test_what_it_preempts_is_counted_and_waits_again() -> None:
    """A A, B B, A A, C C, B B, C C: each of three is preempted once but the last, who has no one
    behind it.
    """
    rows = [(0, 32, 4), (0, 32, 4), (0, 32, 4)]
    sim = run(rows, TakesTurns(rows, 2))
    r, counters = sim.requests(), sim.counters()
    assert r["status"].tolist() == [3, 3, 3] and r["emitted_tokens"].tolist() == [4, 4, 4]
    assert r["preemptions"].tolist() == [1, 1, 1] and counters["preemptions"].tolist() == [3]
    assert sim.steps()["tokens"].tolist() == [32, 1] * 3 + [34, 1] * 3
    assert (sim.blame()["preemption_ps"] > 0).all()


CASE = {
    "config": {"max_num_seqs": 4, "max_num_batched_tokens": 64},
    "resolved": {"max_num_scheduled_tokens": 64},
}

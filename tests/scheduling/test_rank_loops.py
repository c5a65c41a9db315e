"""Data-parallel ranks that run their own loop, with a stand-in for vLLM's engine core: where the
loop pauses, what lies between the ranks, and the rounds of the simulation.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rank_agreements import AGREEMENTS
from simulations import simulation

from llmsim import _native
from llmsim._native import EngineTurn
from llmsim.scheduling.conformance.cases import step_program
from llmsim.scheduling.conformance.vllm.core_loop import InFlight
from llmsim.scheduling.conformance.vllm.known_model import Call
from llmsim.scheduling.conformance.vllm.ranks.exchange import Rank, RankGroup
from llmsim.scheduling.conformance.vllm.ranks.loop import RankLoop

INTERVAL = 4
CASE = {
    "config": {"max_num_seqs": 4, "max_num_batched_tokens": 64},
    "resolved": {"max_num_scheduled_tokens": 64},
}


class StandIn:
    """A rank that runs a request at a time, in the order of vLLM's `run_busy_loop`: it looks, runs
    a batch or a dummy, and agrees with the others in each fourth step.
    """

    dp_group: Any

    def __init__(self, number: int, tokens: dict[int, int]) -> None:
        """`tokens` of the answers by request."""
        self.model_executor = SimpleNamespace(batches=InFlight())
        self.scheduler = SimpleNamespace(requests={})
        self.number, self.left = number, dict(tokens)
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.computed: dict[int, int] = {}
        self.wave = self.steps = 0
        self.runs = False
        self.said: list[str] = []

    def has_work(self) -> bool:
        return self.runs or bool(self.waiting or self.running)

    def run_busy_loop(self) -> None:
        while True:
            self.dp_group.pause(EngineTurn.LOOKS)
            while not self.has_work():
                self.dp_group.pause(EngineTurn.LOOKS)
            executed = self._step()
            unfinished = bool(self.waiting or self.running)
            if not executed and not unfinished and not self.runs:
                continue
            if not executed:
                self.said.append("dummy")
                self.dp_group.pause(EngineTurn.DUMMY)
            self.runs = self._goes_on(unfinished)
            if self.runs:
                continue
            if self.number == 0:
                told = SimpleNamespace(wave_complete=self.wave, start_wave=None)
                self.dp_group.tell(-1, told)
            self.wave, self.steps = self.wave + 1, 0

    def _goes_on(self, unfinished: bool) -> bool:
        self.steps += 1
        if self.steps % INTERVAL:
            return True
        self.said.append("agrees")
        work, _ = self.dp_group.agree(has_unfinished=unfinished, pending_pause=False)
        return bool(work)

    def _step(self) -> bool:
        if not self.running and self.waiting:
            self.running.append(self.waiting.pop(0))
        if not self.running:
            return False
        (request,) = self.running
        before = self.computed.get(request, 0)
        tokens = 20 if before == 0 else 1
        self.computed[request] = before + tokens
        self.said.append(f"batch {request}")
        batches = self.model_executor.batches
        batches.launched = Call([(request, tokens, before, 0, True)], [], [str(request)], [[1]])
        batches.launch(request)
        batches.newest.result()
        self.left[request] -= 1
        done = self.left[request] == 0
        if done:
            self.running.clear()
        self.dp_group.tell(0, SimpleNamespace(outputs=[(request, 1, done)]))
        return True

    def hear_request(self, request: int, wave: int) -> None:
        self.waiting.append(request)

    def hear_wave(self, wave: int, begun_by: int) -> None:
        if begun_by != self.number:
            self.wave, self.runs = wave, True


class StandInRank:
    """A scheduler of the simulation, of such a rank."""

    queues_empty_batches = True

    def __init__(self, core: StandIn, rank: Rank) -> None:
        self.core, self.loop = core, RankLoop(core, None, rank)  # type: ignore[arg-type]

    @property
    def turn(self) -> EngineTurn:
        return self.loop.turn

    def has_work(self) -> bool:
        return self.loop.has_work()

    def go_on(self) -> None:
        self.loop.go_on()

    def add(self, request: int) -> None:
        self.loop.add(request)

    def build(self, now_ps: int) -> tuple[list[Any], list[int]]:
        call = self.loop.next_call()
        return ([], []) if call is None else (call.items, call.preempted)

    def complete(self) -> list[Any]:
        return self.loop.next_outputs()

    def gauges(self) -> tuple[int, int, int]:
        return len(self.core.running), len(self.core.waiting), 99


def two_ranks(tokens: dict[int, int]) -> list[StandInRank]:
    together = RankGroup(2)
    return [StandInRank(StandIn(one, tokens), together.rank(one)) for one in range(2)]


def run(rows: list[tuple[int, int, int]]) -> tuple[Any, list[StandInRank]]:
    """Requests (arrival in ps, prompt, answer) in turn on two ranks."""
    ranks = two_ranks({row: answer for row, (_, _, answer) in enumerate(rows)})
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.block_size, kv.max_model_len, kv.prefix_caching = 100, 16, 10_000, False
    specs = []
    for index, rank in enumerate(ranks):
        group = _native.GroupConfig()
        group.index = index
        made = _native.PythonSchedulerConfig(rank, kv)
        specs.append(_native.GroupSpec(group, made, step_program(CASE, ranks=2), record_steps=True))
    router = _native.native_router("RR", 0, {}, np.empty(0, np.int32))
    together = [_native.LockstepSpec([0, 1], 16)]
    sim = simulation(rows, specs, granularity=16, lockstep=together, router=router)
    while not sim.run(1000):
        pass
    for rank in ranks:
        rank.loop.end()
    return sim, ranks


def test_a_rank_without_work_runs_dummies_until_all_agree() -> None:
    sim, (first, second) = run([(0, 20, 5)])
    assert first.core.said == [*["batch 0"] * 4, "agrees", "batch 0", *["dummy"] * 3, "agrees"]
    assert second.core.said == [*["dummy"] * 4, "agrees", *["dummy"] * 4, "agrees"]
    steps = sim.steps()
    assert steps["sequences"].tolist().count(1) == 5 and len(steps["sequences"]) == 16
    for rank in (first, second):
        assert (rank.core.wave, rank.core.steps, rank.turn) == (1, 0, EngineTurn.LOOKS)
        assert not rank.has_work()


def test_a_request_begins_the_next_wave_and_wakes_the_others() -> None:
    later_ps = 10**12
    sim, ranks = run([(0, 20, 1), (later_ps, 20, 2)])
    assert [rank.core.wave for rank in ranks] == [2, 2]
    assert ranks[0].core.said == ["batch 0", *["dummy"] * 3, "agrees", *["dummy"] * 4, "agrees"]
    assert ranks[1].core.said[5:] == ["batch 1", "batch 1", "dummy", "dummy", "agrees"]
    requests = sim.requests()
    assert requests["scheduled_ps"][1] == requests["queued_ps"][1] >= later_ps
    assert requests["emitted_tokens"].tolist() == [1, 2]


def test_a_request_that_comes_in_a_wave_waits_for_the_end_of_the_dummy() -> None:
    """The loop looks for messages between two steps of its own."""
    sim, (_, second) = run([(0, 20, 6), (10**6, 20, 1)])
    assert second.core.said[:2] == ["dummy", "batch 1"]
    steps = sim.steps()
    ends = steps["end_ps"][steps["group"] == 1]
    assert sim.requests()["scheduled_ps"][1] == ends[0] > 10**6


def test_the_loop_stands_where_it_waits() -> None:
    first, second = two_ranks({0: 1})
    first.add(0)
    assert second.has_work() and second.turn == EngineTurn.LOOKS
    assert first.build(0) == ([(0, 20, 0, 0, True)], []) and first.turn == EngineTurn.AWAITS
    assert second.build(0) == ([], []) and second.turn == EngineTurn.DUMMY
    assert first.complete() == [(0, 1, True)] and first.turn == EngineTurn.LOOKS
    second.go_on()
    for _ in range(3):
        for rank in (first, second):
            assert rank.build(0) == ([], []) and rank.turn == EngineTurn.DUMMY
            rank.go_on()
    assert first.turn == second.turn == EngineTurn.AGREES
    for rank in (first, second):
        rank.go_on()
        assert rank.turn == EngineTurn.LOOKS and not rank.has_work()
        rank.loop.end()


class Reader(StandIn):
    """Its calls give no batch, and it takes the output of the one before with each."""

    def run_busy_loop(self) -> None:
        made: list[int] = []
        while True:
            self.dp_group.pause(EngineTurn.LOOKS)
            made.append(self.dp_group.now_ps)
            if len(made) > 1:
                self.dp_group.take(made.pop(0))
                self.said.append("takes")


def test_a_loop_that_takes_the_output_of_a_call_says_when_it_was_made() -> None:
    core = Reader(0, {})
    loop = RankLoop(core, None, RankGroup(1).rank(0))  # type: ignore[arg-type]
    for now_ps, turn in ((5, EngineTurn.LOOKS), (9, EngineTurn.TAKES)):
        loop.now_ps = now_ps
        assert loop.next_call() is None and loop.turn == turn
    assert loop.taken_from_ps == 5 and core.said == []
    loop.go_on()
    assert loop.turn == EngineTurn.LOOKS and core.said == ["takes"]
    loop.end()


class Waker:
    """Notes the waves that begin."""

    def __init__(self) -> None:
        self.waves: list[tuple[int, int]] = []

    def wake(self, wave: int, begun_by: int) -> None:
        self.waves.append((wave, begun_by))


def outputs(start: int | None = None, complete: int | None = None) -> Any:
    return SimpleNamespace(start_wave=start, wave_complete=complete)


def test_the_coordinator_begins_each_wave_once() -> None:
    """Whether the engine begins it (from vLLM 0.33 on) or the front-end does."""
    group, member = RankGroup(2), Waker()
    group.joins(member)
    group.hear(1, outputs(start=0))
    group.first_request(1)
    assert member.waves == [(0, 1)]
    group.hear(0, outputs(start=0))
    group.hear(0, outputs(complete=0))
    assert group.wave == 1
    group.first_request(0)
    group.first_request(1)
    assert member.waves == [(0, 1), (1, 0)]
    group.hear(1, outputs(start=3))
    assert member.waves[2:] == [(3, 1)] and group.wave == 3


@pytest.mark.parametrize(("said", "agreed"), AGREEMENTS)
def test_ranks_agree_as_in_an_all_reduce(
    said: list[tuple[bool, bool]], agreed: tuple[bool, bool]
) -> None:
    group = RankGroup(2)
    for _ in range(2):
        for unfinished, pauses in said:
            group.say(has_unfinished=unfinished, pending_pause=pauses)
        assert group.agreed == agreed


def test_ranks_with_and_without_a_loop_of_their_own_do_not_run_together() -> None:
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.block_size, kv.max_model_len, kv.prefix_caching = 100, 16, 10_000, False
    (rank, other) = two_ranks({0: 1})
    ours = _native.SchedulerConfig()
    ours.max_num_seqs, ours.max_num_scheduled_tokens, ours.kv = 1, 64, kv
    specs = []
    for index, made in enumerate((_native.PythonSchedulerConfig(rank, kv), ours)):
        group = _native.GroupConfig()
        group.index = index
        specs.append(_native.GroupSpec(group, made, step_program(CASE, ranks=2)))
    with pytest.raises(ValueError, match="either all members of a lockstep run their own loop"):
        simulation(
            [(0, 20, 1)],
            specs,
            granularity=16,
            lockstep=[_native.LockstepSpec([0, 1], 16)],
            router=_native.native_router("RR", 0, {}, np.empty(0, np.int32)),
        )
    for one in (rank, other):
        one.loop.end()

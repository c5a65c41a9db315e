"""Groups that come and go while a run goes on: nothing is lost, and who stays notices nothing."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import clients, router, simulation

from llmsim import _native
from llmsim.core import RequestColumns
from llmsim.results import invariants
from tests.routing.routing_runs import MAX_SEQS, MAX_TOKENS, MS, program

FINISHED, REFUSED = 3, 7
DRAIN, HAND_BACK = _native.Removal.DRAIN, _native.Removal.HAND_BACK
ROUTERS = ("LOAD", "RR", "LOR", "VLLM_DP", "PREFIX", "SESSION", "WEIGHTED")


def group(index: int, depth: int = 1, blocks: int = 60, api_ps: int = 0) -> Any:
    """A group with few blocks, so that requests lose them."""
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.block_size, kv.max_model_len, kv.prefix_caching = blocks, 16, 800, True
    scheduler = _native.SchedulerConfig()
    scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens = MAX_SEQS, MAX_TOKENS
    scheduler.async_scheduling, scheduler.defer_block_free = depth == 2, depth == 2
    scheduler.kv = kv
    config = _native.GroupConfig()
    config.index, config.depth, config.api_latency_ps = index, depth, api_ps
    return _native.GroupSpec(config, scheduler, program(), record_steps=True)


def run(rows: list[tuple[int, int, int]], groups: list[Any], **parts: Any) -> Any:
    sim = simulation(rows, groups, check_every_step=True, interval_ps=50 * MS, **parts)
    for _ in range(500):
        if sim.run(2_000):
            return sim
    raise AssertionError("no end")


def controllers(actions: dict[int, Any]) -> list[Any]:
    """One controller that acts at the given times."""
    return [_native.python_controller(sorted(actions), lambda m, now: actions[now](m))]


def first(request: Any, groups: Any) -> int:
    return int(groups[0].index)


def only_first() -> Any:
    return _native.python_router(first, None, ["model"])


ROWS = [(i * 20 * MS, 40 + 7 * i, 12) for i in range(20)]


def test_a_group_that_gets_no_work_changes_nothing() -> None:
    """Every column of the others is the same, byte for byte."""
    alone = run(ROWS, [group(0)], router=only_first())
    added = {90 * MS: lambda m: m.add_group(group(1)), 300 * MS: lambda m: m.remove_group(1, DRAIN)}
    beside = run(ROWS, [group(0)], router=only_first(), controllers=controllers(added))
    for table in ("requests", "steps", "blame"):
        ours, theirs = getattr(alone, table)(), getattr(beside, table)()
        assert ours.keys() == theirs.keys()
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)
    series, other = alone.series(), beside.series()
    mine = other["group"] == 0
    assert all(series[name].tobytes() == other[name][mine].tobytes() for name in series)
    first_ps = other["time_ps"][~mine].min()
    assert first_ps == 100 * MS and (other["running"][~mine] == 0).all()


def test_an_added_group_serves_arrivals_of_its_time_and_a_drained_one_none() -> None:
    rows = [(i * 100 * MS, 30, 2) for i in range(8)]
    actions = {
        200 * MS: lambda m: m.add_group(group(1)),
        500 * MS: lambda m: m.remove_group(0, DRAIN),
    }
    sim = run(rows, [group(0)], router=router("RR"), controllers=controllers(actions))
    groups = sim.requests()["group"].tolist()
    assert groups[:2] == [0, 0] and set(groups[2:5]) == {0, 1} and groups[5:] == [1, 1, 1]
    assert (sim.requests()["status"] == FINISHED).all()


def test_a_step_in_flight_is_cut_and_its_requests_begin_anew() -> None:
    """The step lasts 5.4 ms and more; the group leaves 2 ms after its start."""
    actions = {2 * MS: lambda m: m.remove_group(0, HAND_BACK)}
    sim = run([(0, 40, 3)], [group(0), group(1)], router=only_first(),
              controllers=controllers(actions))  # fmt: skip
    late = run([(2 * MS, 40, 3)], [group(0)], router=only_first())
    requests, counters = sim.requests(), sim.counters()
    assert requests["group"].tolist() == [1] and requests["queued_ps"].tolist() == [2 * MS]
    assert requests["finish_ps"][0] == late.requests()["finish_ps"][0]
    assert counters["busy_ps"].tolist() == [2 * MS, late.counters()["busy_ps"][0]]
    assert counters["discarded_tokens"].tolist() == [40, 0]
    assert counters["free_blocks"].tolist() == [59, 59]


def test_without_any_group_requests_are_refused() -> None:
    actions = {100 * MS: lambda m: m.remove_group(0, HAND_BACK)}
    sim = run(ROWS, [group(0)], router=only_first(), controllers=controllers(actions))
    status = sim.requests()["status"].tolist()
    assert status[0] == FINISHED and set(status[4:]) == {REFUSED}


def test_what_cannot_come_or_leave_is_said() -> None:
    def attempt(act: Any) -> None:
        run([(0, 40, 3)], [group(0), group(1)], router=only_first(),
            controllers=controllers({MS: act}))  # fmt: skip

    with pytest.raises(ValueError, match=r"groups\[2\]\.config\.index: group 5 is number 2"):
        attempt(lambda m: m.add_group(group(5)))
    with pytest.raises(ValueError, match="group 7 does not exist"):
        attempt(lambda m: m.remove_group(7, DRAIN))
    with pytest.raises(ValueError, match="group 1 has been removed"):
        attempt(lambda m: (m.remove_group(1, HAND_BACK), m.remove_group(1, DRAIN)))
    kept: list[Any] = []
    attempt(kept.append)
    with pytest.raises(RuntimeError, match="only during the call"):
        kept[0].outstanding()


def check(sim: Any, rows: list[tuple[int, int, int]]) -> None:
    """The invariants of a run, on the native columns alone."""
    requests, counters = RequestColumns(**sim.requests()), sim.counters()
    values, counts = _native.TokenTimes(sim).inter_token_latencies()
    workload = SimpleNamespace(
        input_tokens=np.array([row[1] for row in rows], np.int32),
        output_tokens=np.array([row[2] for row in rows], np.int32),
    )
    results: Any = SimpleNamespace(
        requests=requests, counters=counters, workload=workload, cut_short=False, kv_tiers=(),
        groups=range(len(counters["steps"])), itl_values_ps=values, itl_counts=counts,
        blame=sim.blame(),
    )  # fmt: skip
    for holds in ("conservation", "causality", "clock", "blocks", "tokens", "work", "blame"):
        assert getattr(invariants, f"_{holds}")(results) == invariants.OK, holds


ACTIONS = ("add", "drain", "hand back")
changes = st.lists(
    st.tuples(st.integers(1, 900), st.sampled_from(ACTIONS), st.integers(0, 9)),
    max_size=8, unique_by=lambda change: change[0],
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 600), st.integers(1, 300), st.integers(1, 40)),
        min_size=1, max_size=25,
    ),
    changes=changes, name=st.sampled_from(ROUTERS), depth=st.integers(1, 2),
    gone_ms=st.sampled_from([0, 0, 150]), api_ms=st.sampled_from([0, 3]),
)  # fmt: skip
def test_groups_come_and_go_and_nothing_is_lost(
    arrivals: Any, changes: Any, name: str, depth: int, gone_ms: int, api_ms: int
) -> None:
    rows = [(at * MS, prompt, answer) for at, prompt, answer in sorted(arrivals)]
    alive, number = [0, 1], 2
    actions: dict[int, Any] = {}
    for at, what, which in sorted(changes):
        if what == "add":
            actions[at * MS] = lambda m, n=number: m.add_group(group(n, depth, api_ps=api_ms * MS))
            alive.append(number)
            number += 1
        elif len(alive) > 1:
            index = alive.pop(which % len(alive))
            how = DRAIN if what == "drain" else HAND_BACK
            actions[at * MS] = lambda m, i=index, h=how: m.remove_group(i, h)
    sim = run(
        rows,
        [group(index, depth, api_ps=api_ms * MS) for index in range(2)],
        keys=[list(range(1, 1 + prompt // 16)) for _, prompt, _ in rows],
        router=router(name),
        clients=clients(timeout_ps=[gone_ms * MS] * len(rows)) if gone_ms else None,
        controllers=controllers(actions),
    )
    check(sim, rows)
    if not gone_ms:
        assert (sim.requests()["status"] == FINISHED).all()
        assert sim.num_finished == len(rows)

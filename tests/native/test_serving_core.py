"""The serving core through its bindings: closed forms, and nothing lost under pressure."""

import re
from typing import Any

import numpy as np
import pytest
import simulations
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim import _native
from tests.native.pd import Cluster
from tests.native.pd import run as pd_run

MS = 10**9
STEP, PER_TOKEN, PER_SEQUENCE = 5 * MS, 10**7, 2 * 10**7


def program(max_tokens: int, max_seqs: int, padded: np.ndarray | None = None) -> Any:
    """Linear step time without attention: STEP + tokens * PER_TOKEN + sequences * PER_SEQUENCE."""
    tokens = np.arange(max_tokens + 1, dtype=np.int64)
    sequences = np.arange(max_seqs + 1, dtype=np.int64)
    zero = np.zeros(1, np.int64)
    operators = [
        _native.Operator(
            "a",
            _native.NodeKind.COMPUTE,
            _native.Feature.TOKENS,
            0,
            1,
            STEP + tokens * PER_TOKEN,
            np.zeros(max_tokens + 1, np.uint8),
        ),
        _native.Operator(
            "b",
            _native.NodeKind.COMPUTE,
            _native.Feature.SEQUENCES,
            0,
            1,
            sequences * PER_SEQUENCE,
            np.zeros(max_seqs + 1, np.uint8),
        ),
    ]
    attention = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
    return _native.Program(
        operators,
        attention,
        (tokens if padded is None else padded).astype(np.int32),
        _native.LowerBound(),
        0,
    )


def simulation(
    requests: list[tuple[int, int, int]],
    *,
    blocks: int = 1000,
    block_size: int = 16,
    max_seqs: int = 64,
    budget: int = 256,
    depth: int = 1,
    caching: bool = False,
    groups: int = 1,
    chunked: bool = True,
    keys: list[list[int]] | None = None,
    interval_ps: int = 0,
    max_model_len: int = 100_000,
    run: bool = True,
) -> Any:
    """Runs (arrival_ps, input, output) rows to the end, unless the caller wants to."""
    specs = []
    for index in range(groups):
        scheduler = _native.SchedulerConfig()
        scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens = max_seqs, budget
        scheduler.async_scheduling, scheduler.chunked_prefill = depth == 2, chunked
        kv = _native.KvCacheConfig()
        kv.num_blocks, kv.block_size, kv.max_model_len, kv.prefix_caching = (
            blocks,
            block_size,
            max_model_len,
            caching,
        )
        scheduler.kv = kv
        group = _native.GroupConfig()
        group.index, group.depth = index, depth
        step = program(budget, max_seqs)
        specs.append(_native.GroupSpec(group, scheduler, step, record_steps=True))
    sim = simulations.simulation(
        requests,
        specs,
        keys=keys,
        granularity=block_size,
        router=simulations.router("LOAD"),
        interval_ps=interval_ps,
    )
    while run and not sim.run(1000):
        pass
    return sim


def test_one_request_takes_the_closed_form() -> None:
    sim = simulation([(7, 600, 3)])
    r = sim.requests()
    chunks = [256, 256, 88]  # the token budget cuts the prompt
    prefill = sum(STEP + q * PER_TOKEN + PER_SEQUENCE for q in chunks)
    decode = STEP + PER_TOKEN + PER_SEQUENCE
    assert r["scheduled_ps"][0] == 7
    assert r["first_token_ps"][0] == 7 + prefill
    assert r["finish_ps"][0] == 7 + prefill + 2 * decode
    assert _native.TokenTimes(sim).inter_token_latencies_of(0).tolist() == [decode, decode]


def test_an_arrival_during_a_step_runs_in_the_next_or_with_async_scheduling_the_one_after() -> None:
    decode = STEP + PER_TOKEN + PER_SEQUENCE
    for depth, steps_later in ((1, 1), (2, 2)):
        sim = simulation([(0, 1, 50), (decode * 5 + 1, 1, 1)], depth=depth)
        starts = np.sort(sim.steps()["start_ps"])
        during = np.searchsorted(starts, decode * 5 + 1, side="right") - 1
        schedule = sim.steps()["sequences"]
        joined = int(np.flatnonzero(schedule == 2)[0])
        assert joined - during == steps_later


def test_a_prompt_longer_than_the_pool_or_the_model_is_rejected_and_the_rest_runs() -> None:
    sim = simulation([(0, 200, 10), (0, 16 * 20, 1), (0, 150, 2)], blocks=20, max_model_len=100_000)
    assert sim.requests()["status"].tolist() == [3, 4, 3]
    sim = simulation([(0, 99, 1), (0, 98, 50)], max_model_len=99)
    assert sim.requests()["status"].tolist() == [4, 3]
    assert sim.requests()["emitted_tokens"].tolist() == [0, 1]  # stopped by length


def test_requests_with_equal_content_share_blocks_but_compute_their_last_token() -> None:
    keys = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 9, 9]]
    sim = simulation([(0, 64, 2), (10**12, 64, 2), (2 * 10**12, 64, 2)], caching=True, keys=keys)
    assert sim.requests()["cached_tokens"].tolist() == [0, 48, 32]
    assert sim.counters()["prefix_hit_tokens"][0] == 80


requests_strategy = st.lists(
    st.tuples(st.integers(0, 400 * MS), st.integers(1, 300), st.integers(1, 60)),
    min_size=1,
    max_size=25,
).map(sorted)


@settings(max_examples=120, deadline=None)
@given(
    requests=requests_strategy,
    blocks=st.integers(30, 120),
    block_size=st.sampled_from([1, 4, 16, 32]),
    max_seqs=st.integers(1, 12),
    budget=st.sampled_from([16, 64, 256]),
    depth=st.sampled_from([1, 2]),
    caching=st.booleans(),
    groups=st.integers(1, 3),
    shared_prefix=st.integers(0, 6),
)
def test_nothing_is_lost_under_any_pressure(
    requests: list[tuple[int, int, int]],
    blocks: int,
    block_size: int,
    max_seqs: int,
    budget: int,
    depth: int,
    caching: bool,
    groups: int,
    shared_prefix: int,
) -> None:
    keys = [
        list(range(1, 1 + min(shared_prefix, tokens // block_size))) for _, tokens, _ in requests
    ]
    options: dict[str, Any] = {
        "blocks": blocks,
        "block_size": block_size,
        "max_seqs": max_seqs,
        "budget": max(budget, max_seqs),
        "depth": depth,
        "caching": caching,
        "groups": groups,
        "keys": keys,
    }
    sim = simulation(requests, **options)
    r, c = sim.requests(), sim.counters()
    usable = (blocks - 1) * block_size
    fits = np.array([i + o - 1 <= usable for _, i, o in requests])
    assert (r["status"] == np.where(fits, 3, 4)).all()
    assert (r["emitted_tokens"] == np.where(fits, [o for _, _, o in requests], 0)).all()
    done = r["status"] == 3
    for early, late in (
        ("arrival_ps", "scheduled_ps"),
        ("scheduled_ps", "first_token_ps"),
        ("first_token_ps", "finish_ps"),
    ):
        assert (r[early][done] <= r[late][done]).all()
    assert (
        (c["free_blocks"] == blocks - 1).all()
        and c["pool_consistent"].all()
        and not c["idle_with_work"].any()
    )
    steps = sim.steps()
    assert (steps["tokens"] <= max(budget, max_seqs)).all() and (steps["running"] <= max_seqs).all()
    for group in range(groups):  # kept as gaps between steps
        assert (
            sim.activity(group)["start_ps"].tolist()
            == steps["start_ps"][steps["group"] == group].tolist()
        )
    # every token that was scheduled is a prompt token, an emitted one, or was computed again after
    # a preemption
    needed = sum(i + o - 1 for (_, i, o), ok in zip(requests, fits, strict=True) if ok)
    hits = int(r["cached_tokens"][done].sum())
    assert int(steps["tokens"].sum()) == needed - hits + int(c["recomputed_tokens"].sum())
    values, counts = _native.TokenTimes(sim).inter_token_latencies()
    gaps = [_native.TokenTimes(sim).inter_token_latencies_of(i) for i in range(len(requests))]
    every = np.sort(np.concatenate([*gaps, np.empty(0, np.int64)]))
    assert (np.repeat(values, counts) == every).all()
    parts = sim.blame()
    total = sum(parts.values())
    assert (total[done] == (r["finish_ps"] - r["arrival_ps"])[done]).all() and all(
        (p >= 0).all() for p in parts.values()
    )
    assert (parts["preemption_ps"][done & (r["preemptions"] == 0)] == 0).all()
    again = simulation(requests, **options).requests()
    assert all((again[name] == r[name]).all() for name in r)


@pytest.mark.parametrize("pause_ps", [0, 1, 2**31 - 1, 2**31, 10**12])
def test_steps_start_when_the_requests_come(pause_ps: int) -> None:
    """Every 300th request comes some time after the device has fallen idle."""
    alone = simulation([(0, 32, 1)]).requests()["finish_ps"][0]
    rows, at_ps, starts_ps = [], 0, []
    for index in range(1000):
        at_ps += pause_ps * (index % 300 == 0)
        rows.append((at_ps, 32, 1))
        starts_ps.append(at_ps)
        at_ps += int(alone)
    sim = simulation(rows)
    activity = sim.activity(0)
    assert activity["start_ps"].tolist() == starts_ps
    assert (activity["end_ps"] - activity["start_ps"] == alone).all()
    parts = sim.blame()
    assert (parts["prefill_ps"] == alone).all() and sum(parts.values()).sum() == 1000 * alone


def test_inter_token_latencies_of_very_many_lengths_of_steps() -> None:
    """A long answer beside one prompt after the other, each of 35,000 lengths twice: as many gaps,
    each twice.
    """
    lengths = np.random.default_rng(1).permutation(np.repeat(np.arange(1, 35_001), 2)).tolist()
    rows = [(0, 1, len(lengths) + 2), *((0, length, 1) for length in lengths)]
    sim = simulation(rows, blocks=20_000, max_seqs=2, budget=40_000)
    emissions = _native.TokenTimes(sim)
    values, counts = emissions.inter_token_latencies()
    expected = np.unique(emissions.inter_token_latencies_of(0), return_counts=True)
    assert len(values) > 35_000 and (values == expected[0]).all() and (counts == expected[1]).all()


def test_two_simulations_in_one_process_do_not_meet() -> None:
    rows = [(i * 3 * MS, 50 + 7 * i, 20) for i in range(10)]
    alone = simulation(rows, blocks=30).requests()
    simulation([(0, 10, 10)] * 5)
    assert all((alone[k] == v).all() for k, v in simulation(rows, blocks=30).requests().items())


def test_series_add_up_to_the_counters() -> None:
    rows = [(i * 20 * MS, 40, 30) for i in range(20)]
    sim = simulation(rows, interval_ps=100 * MS)
    series, counters = sim.series(), sim.counters()
    assert int(series["generation_tokens"].sum()) == counters["generation_tokens"][0] == 600
    assert int(series["prompt_tokens"].sum()) == 800
    assert (np.diff(series["time_ps"]) > 0).all()
    assert series["running"][-1] == 0 and series["time_ps"][-1] == sim.now_ps


def made(groups: list[Any], n: int = 2, **columns: Any) -> Any:
    """A simulation of `n` requests, some of whose columns are given."""
    usual = {
        "arrival_ps": np.zeros(n, np.int64),
        "input_tokens": np.full(n, 8, np.int32),
        "output_tokens": np.full(n, 2, np.int32),
        "model": np.zeros(n, np.int16),
        "next_call": np.full(n, -1, np.int32),
        "tool_delay_ps": np.zeros(n, np.int64),
        "priority": np.empty(0, np.int32),
        "key_offsets": np.zeros(n + 1, np.int64),
        "keys": np.empty(0, np.uint64),
    }
    source = _native.Source(**{**usual, **columns}, granularity=16)
    return _native.Simulation(_native.SimulationConfig(source, groups))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"input_tokens": np.full(1, 8, np.int32)}, "differ in length"),
        ({"priority": np.zeros(1, np.int32)}, "differ in length"),
        ({"next_call": np.array([2, -1], np.int32)}, "does not exist"),
        ({"key_offsets": np.array([0, 1], np.int64), "keys": np.ones(1, np.uint64)}, "do not fit"),
        (
            {"key_offsets": np.array([0, 1, 2], np.int64), "keys": np.ones(1, np.uint64)},
            "do not fit",
        ),
        (
            {"key_offsets": np.array([0, 2, 1], np.int64), "keys": np.ones(1, np.uint64)},
            "do not fit",
        ),
    ],
)
def test_columns_that_do_not_fit_each_other_are_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made([one_group()], **columns)


def one_group(**fields: Any) -> Any:
    """A group of 100 blocks; `fields` are those of its configuration."""
    scheduler, kv, config = (
        _native.SchedulerConfig(),
        _native.KvCacheConfig(),
        _native.GroupConfig(),
    )
    kv.num_blocks, kv.max_model_len = 100, 1000
    scheduler.kv = kv
    for name, value in fields.items():
        setattr(config, name, value)
    return _native.GroupSpec(config, scheduler, program(2048, 128))


def test_groups_have_the_order_of_their_numbers_and_tell_only_what_they_record() -> None:
    with pytest.raises(ValueError, match=r"^groups\[1\].config.index: group 0 is number 1"):
        made([one_group(), one_group()])
    sim = made([one_group()])
    assert sim.run(1000)
    with pytest.raises(ValueError, match="not recorded"):
        sim.schedule(0)


def lockstep_of(*members: int, sync_interval: int = 1) -> Any:
    return _native.LockstepSpec(list(members), sync_interval)


def test_errors_of_a_configuration_begin_with_the_path_of_the_field() -> None:
    network = _native.NetworkConfig(_native.Sharing.FAIR)
    two = [one_group(), one_group(index=1)]
    contended = [_native.ContentionSpec([0], [], [])]
    tiers = _native.KvTiersConfig(_native.TierWrite.THROUGH)
    transfers = _native.KvTransferConfig(False, False, [])
    cases: list[tuple[list[Any], dict[str, Any], str]] = [
        ([one_group(depth=0)], {}, "groups[0].config.depth: "),
        ([one_group(model=1)], {}, "source.model[0]: "),
        ([one_group()], {"lockstep": [lockstep_of(0, 1)]}, "lockstep[0].groups: "),
        ([one_group()], {"lockstep": [lockstep_of()]}, "lockstep[0].groups: "),
        (two, {"lockstep": [lockstep_of(0), lockstep_of(1, 0)]}, "lockstep[1].groups: "),
        (two, {"lockstep": [lockstep_of(0, 1, sync_interval=-1)]}, "lockstep[0].sync_interval: "),
        ([one_group()], {"contention": contended}, "contention: "),
        (two, {"contention": contended, "lockstep": [lockstep_of(0, 1)]}, "contention[0].groups: "),
        ([one_group()], {"kv_tiers": tiers}, "kv_tiers: "),
        ([one_group()], {"kv_tiers": tiers, "network": network}, "kv_tiers.groups: "),
        ([one_group()], {"kv_transfer": transfers}, "kv_transfer: "),
        ([one_group()], {"kv_transfer": transfers, "network": network}, "kv_transfer: "),
        ([one_group()], {"router": simulations.router("BEST")}, "frontend.router: "),
        ([one_group()], {"interval_ps": -1}, "observers.series_interval_ps: "),
        ([one_group()], {"clients": simulations.clients(timeout_ps=[1])}, "source.clients.timeout"),
        ([one_group()], {"clients": simulations.clients(count=-1)}, "source.clients.count: "),
    ]
    for groups, parts, path in cases:
        with pytest.raises(ValueError, match="^" + re.escape(path)):
            simulations.simulation([(0, 8, 2)] * 2, groups, **parts)


def test_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="padding"):
        program(8, 4, padded=np.array([0, 1, 2, 3, 4, 5, 6, 7, 9]))
    zero = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="ascend"):
        _native.Attention.split(
            [np.array([2, 1]), zero], np.zeros(2, np.int64), [zero, zero], zero, 0, 0
        )
    attention = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
    _native.Program([], attention, np.zeros(0, np.int32), _native.LowerBound(), 0)
    with pytest.raises(ValueError, match="already belongs"):
        _native.Program([], attention, np.zeros(0, np.int32), _native.LowerBound(), 0)


def test_steps_faster_than_light_are_counted() -> None:
    """Weights of 8 MB at 1 GB/s need 8 ms, a step takes 5 ms and 10 us per token; KV counts beyond
    the cache only.
    """
    for weight_bytes, cached, flops, below in (
        (8 * 10**6, 0, 0, True),
        (10**6, 0, 0, False),
        (10**6, 0, 10**9, True),
    ):
        floor = _native.LowerBound()
        floor.weight_bytes, floor.bytes_per_s, floor.cached_kv_bytes = weight_bytes, 10**9, cached
        floor.flops_per_token, floor.flops_per_s = flops, 10**11
        counted = below_lower_bound(floor, prompt=10)
        assert (counted > 0) == below
    floor = _native.LowerBound()
    floor.kv_bytes_per_token, floor.bytes_per_s = (
        10**5,
        10**9,
    )  # 100 us per cached token: 6 ms at 60
    assert below_lower_bound(floor, prompt=60) > 0
    floor.cached_kv_bytes = 10**7
    assert below_lower_bound(floor, prompt=60) == 0


def below_lower_bound(floor: Any, prompt: int) -> int:
    tokens = np.arange(65, dtype=np.int64)
    op = _native.Operator(
        "a",
        _native.NodeKind.COMPUTE,
        _native.Feature.TOKENS,
        0,
        1,
        STEP + tokens * PER_TOKEN,
        np.zeros(65, np.uint8),
    )
    head = _native.Operator(
        "h",
        _native.NodeKind.COMPUTE,
        _native.Feature.SEQUENCES,
        0,
        1,
        np.zeros(5, np.int64),
        np.zeros(5, np.uint8),
    )
    zero = np.zeros(1, np.int64)
    attention = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
    scheduler = _native.SchedulerConfig()
    scheduler.max_num_seqs, scheduler.max_num_scheduled_tokens = 4, 64
    kv = _native.KvCacheConfig()
    kv.num_blocks, kv.max_model_len = 100, 1000
    scheduler.kv = kv
    program = _native.Program([op, head], attention, tokens.astype(np.int32), floor, 0)
    spec = _native.GroupSpec(_native.GroupConfig(), scheduler, program)
    sim = simulations.simulation([(0, prompt, 3)], [spec])
    while not sim.run(100):
        pass
    return int(sim.counters()["steps_below_lower_bound"][0])


def test_blame_names_the_cause() -> None:
    decode = STEP + PER_TOKEN + PER_SEQUENCE
    sim = simulation([(0, 100, 11), (decode, 100, 1)], max_seqs=1)
    parts = {name: column.tolist() for name, column in sim.blame().items()}
    prefill = STEP + 100 * PER_TOKEN + PER_SEQUENCE
    assert parts["prefill_ps"] == [prefill, prefill]
    assert parts["decode_ps"] == [10 * decode, 0]
    assert parts["queue_ps"] == [
        0,
        prefill + 9 * decode,
    ]  # until the first request left its only place
    lone = simulation([(0, 1, 5), (decode + 1, 1, 2)], depth=2).blame()
    assert lone["wait_ps"][1] > 0  # scheduled behind the batch in flight


def test_a_series_that_is_taken_on_the_way_is_the_same_in_parts() -> None:
    rows = [(0, 40, 30), (10**12, 40, 30)]
    whole = simulation(
        rows, interval_ps=2 * 10**6
    )  # half a million samples until the second request
    expected = whole.series()
    assert len(expected["time_ps"]) > 500_000
    parts: list[Any] = []
    sim = simulation(rows, interval_ps=2 * 10**6, run=False)
    calls = 0
    while not sim.run(1 << 40):
        parts.append(sim.take_series())
        assert len(parts[-1]["time_ps"]) <= 1 << 18
        assert len(sim.series()["time_ps"]) == 0
        calls += 1
    parts.append(sim.take_series())
    assert calls >= 1
    for name, column in expected.items():
        assert (np.concatenate([part[name] for part in parts]) == column).all(), name


def test_attended_and_read_tokens_of_two_chunks_and_four_decodes() -> None:
    """Each token attends to itself and to all before it; each step reads the keys up to its last
    token.
    """
    sim = pd_run([(0, 100, 5)], Cluster([], [], both=[50]))
    counters = sim.counters()
    decodes = 101 + 102 + 103 + 104
    assert counters["attended_tokens"].tolist() == [100 * 101 // 2 + decodes]
    assert counters["kv_read_tokens"].tolist() == [64 + 100 + decodes]

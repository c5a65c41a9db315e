"""Each native router does what its source does: exact choices on tiny traces, and twins written in
Python.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from package import package_sources
from routing_runs import MS, Run, program, python
from simulations import router, simulation

from llmsim import _native
from llmsim.config.errors import InputError
from llmsim.routing.spec import parse_router

burst = [(0, 16, 4)]
traces = st.lists(
    st.tuples(st.integers(0, 200 * MS), st.integers(1, 200), st.integers(1, 30)),
    min_size=1,
    max_size=30,
).map(sorted)


def mix64(seed: int, counter: int) -> int:
    """splitmix64, the number after `counter` others."""
    mask = (1 << 64) - 1
    x = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def outstanding(group: Any) -> int:
    return int(group.waiting + group.running)


class LeastOutstanding:
    def route(self, request: Any, groups: Any) -> int:
        return int(min(groups, key=outstanding).index)


class LeastLoaded:
    def route(self, request: Any, groups: Any) -> int:
        return int(min(groups, key=lambda group: 4 * group.waiting + group.running).index)


class TwoChoices:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def route(self, request: Any, groups: Any) -> int:
        first = mix64(self.seed, 2 * request.row) * len(groups) >> 64
        second = mix64(self.seed, 2 * request.row + 1) * (len(groups) - 1) >> 64
        second += second >= first
        return int(min(groups[first], groups[second], key=outstanding).index)


class Sticky:
    def __init__(self) -> None:
        self.home: dict[str, int] = {}

    def route(self, request: Any, groups: Any) -> int:
        least = int(min(groups, key=outstanding).index)
        return least if request.session is None else self.home.setdefault(request.session, least)


@settings(max_examples=40, deadline=None)
@given(traces, st.integers(2, 5), st.sampled_from([1, 2]), st.sampled_from([0, 3 * MS]))
def test_native_routers_equal_their_twins_in_python(
    trace: list[tuple[int, int, int]], groups: int, depth: int, api_latency_ps: int
) -> None:
    run = Run(trace, groups=groups, depth=depth, api_latency_ps=api_latency_ps, seed=7, blocks=60)
    assert run.routes("LOR") == run.routes(python(LeastOutstanding()))
    assert run.routes("LOAD") == run.routes(python(LeastLoaded()))
    assert run.routes("P2C") == run.routes(python(TwoChoices(7)))
    assert run.routes("WEIGHTED:kv=0,prefix=0") == run.routes("LOR")
    assert run.routes("PREFIX:weight=0") == run.routes("LOR")
    assert run.routes("SESSION") == run.routes("LOR")  # without sessions


def test_round_robin_takes_turns_for_each_model() -> None:
    run = Run(burst * 8, groups=4, models=(0, 1), model_of=[0, 0, 1, 0, 1, 1, 1, 0])
    assert run.routes("RR") == [0, 2, 1, 0, 3, 1, 3, 2]


def test_random_routing_depends_on_seed_and_row_alone() -> None:
    many = [(i * MS, 16, 1) for i in range(200)]
    run = Run(many, groups=4)
    routes = run.routes("RAND")
    assert routes == [mix64(0, row) * 4 >> 64 for row in range(200)]
    assert routes[:50] == Run(many[:50], groups=4).routes("RAND")
    assert routes != Run(many, groups=4, seed=1).routes("RAND")
    assert set(routes) == {0, 1, 2, 3}


def test_two_choices_balance_better_than_one() -> None:
    run = Run(burst * 256, groups=32)

    def most(router: str) -> int:
        routes = run.routes(router)
        return max(routes.count(group) for group in range(32))

    assert most("LOR") == 8 <= most("P2C") <= 10 < most("RAND")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 100 * MS), st.integers(1, 4)), min_size=1, max_size=8),
    st.booleans(),
)
def test_calls_of_a_session_stay_together(sessions: list[tuple[int, int]], named: bool) -> None:
    requests, following, names = [], [], []
    for number, (arrival, calls) in enumerate(sorted(sessions)):
        for call in range(calls):
            following.append(len(requests) + 1 if call + 1 < calls else -1)
            requests.append((arrival if call == 0 else -1, 40 + 10 * call, 5))
            names.append(f"s{number}")
    run = Run(requests, groups=3, next_call=following, session_id=names if named else None)
    routes = run.routes("SESSION")
    for row, successor in enumerate(following):
        assert successor < 0 or routes[row] == routes[successor]
    assert routes == run.routes(python(Sticky()))


def test_a_session_named_by_its_requests_stays_together_without_being_a_chain() -> None:
    run = Run([(i * 500 * MS, 32, 2) for i in range(6)], session_id=["a", "b", "", "a", "b", ""])
    run.requests = [(0, 32, 500), *run.requests[1:]]  # so that the others start elsewhere
    assert run.routes("SESSION") == [0, 1, 1, 0, 1, 1]


def test_a_call_for_another_model_leaves_its_session() -> None:
    requests = [(i * 500 * MS, 32, 2) for i in range(3)]
    run = Run(requests, groups=4, models=(0, 0, 1, 1), model_of=[0, 1, 0], session_id=["a"] * 3)
    assert run.routes("SESSION") == [0, 2, 0]


def test_vllm_rotates_among_equals_and_sees_load_when_it_is_reported() -> None:
    apart = [(i * 200 * MS, 16, 1) for i in range(6)]
    assert Run(apart, groups=3).routes("VLLM_DP") == [0, 1, 2, 0, 1, 2]
    busy = [(0, 16, 400), *apart[1:]]  # the first one runs all the time
    assert Run(busy, groups=2).routes("VLLM_DP") == [0, 1, 1, 1, 1, 1]
    # Without reports after the first it knows only what it sent, as waiting: round robin.
    assert Run(busy, groups=2).routes("VLLM_DP:period_ms=1e8") == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("first_us", "report_us"), [(0, 6_360), (37_000, 43_360), (37_500, 43_860)]
)
@pytest.mark.parametrize(("late_ps", "group"), [(0, 1), (1, 0)])
def test_vllm_sees_what_has_ended_when_it_is_reported(
    first_us: int, report_us: int, late_ps: int, group: int
) -> None:
    """Group 0 runs two requests that end with its first step after 5.36 ms, group 1 a long one.

    The first report comes with the first requests, and the next one 6 whole milliseconds later, as
    far into its millisecond as that end.
    """
    us = MS // 1000
    requests = [(0, 16, 1), (0, 16, 60), (0, 16, 1)]
    shifted = [(first_us * us, prompt, answer) for _, prompt, answer in requests]
    shifted.append((report_us * us + late_ps, 16, 1))
    assert Run(shifted).routes("VLLM_DP:period_ms=6") == [0, 1, 0, group]


def test_vllm_reports_every_five_seconds_without_news() -> None:
    """After those at 0 and 100.18 ms, the report at 5,100.18 puts off the next one to 5,200."""
    requests = [(0, 16, 2000), (5110 * MS, 16, 1), (5205 * MS, 16, 1)]
    assert Run(requests, blocks=600).routes("VLLM_DP") == [0, 1, 1]


@pytest.mark.parametrize(("arrival_us", "group"), [(6_300, 1), (6_400, 0)])
def test_vllm_chooses_when_the_api_server_has_read_the_prompt(arrival_us: int, group: int) -> None:
    """It takes 2 ms. Group 0 has ended its two requests at 7.36 ms, which is reported at 8.36."""
    requests = [(0, 16, 1), (0, 16, 60), (0, 16, 1), (arrival_us * MS // 1000, 16, 1)]
    run = Run(requests, api_latency_ps=2 * MS)
    assert run.routes("VLLM_DP:period_ms=1") == [0, 1, 0, group]


def test_vllm_avoids_a_queue_where_kv_is_short() -> None:
    """Group 0: one running with 4/5 of the blocks and one waiting, 2 + 1 * 6 * 0.3; group 1: two
    running, 2.
    """
    requests = [(0, 240, 60), (1, 16, 60), (2, 240, 60), (3, 16, 60), (150 * MS, 16, 1)]
    assert Run(requests, groups=2, blocks=21, caching=False).routes("VLLM_DP") == [0, 1, 0, 1, 1]
    assert Run(requests, groups=2, blocks=210, caching=False).routes("VLLM_DP") == [
        0,
        1,
        0,
        1,
        0,
    ]  # a tie


QUIET = {"by_requests_in_flight": False, "hears_loads": False, "quiet_ps": 50 * MS}
"""Of vLLM 0.24 to 0.26, whose dense engines tell nobody their load."""


@pytest.mark.parametrize(
    ("rotates", "groups"), [(False, [0, 0, 1, 2, 0, 1, 2, 0]), (True, [0, 1, 2, 0, 1, 2, 0, 1])]
)
def test_without_loads_the_balancer_forgets_what_it_sent(rotates: bool, groups: list[int]) -> None:
    """The coordinator reports 50 ms behind the first request, and 5 s later, that all are idle."""
    arrivals = [0, *range(200, 1400, 200), 5060]
    requests = [(at * MS, 16, 400) for at in arrivals]
    rules = QUIET | {"rotates": rotates, "hears_of_first_requests": True}
    assert Run(requests, groups=3, balancer=rules).routes("VLLM_DP") == groups


@pytest.mark.parametrize(("second_ms", "group"), [(40, 1), (51, 0)])
def test_the_coordinator_waits_behind_a_message(second_ms: int, group: int) -> None:
    """Its first report comes after 50 ms, or 50 ms behind a message that came before."""
    requests = [(0, 16, 400), (second_ms * MS, 16, 1)]
    assert Run(requests, balancer=QUIET | {"rotates": False}).routes("VLLM_DP") == [0, group]
    apart = [(30 * MS, 16, 400), ((30 + second_ms) * MS, 16, 1)]
    rules = QUIET | {"rotates": False, "hears_of_first_requests": True}
    assert Run(apart, balancer=rules).routes("VLLM_DP") == [0, group]


@pytest.mark.parametrize(("tells", "group"), [(False, 0), (True, 2)])
def test_a_first_request_puts_off_the_next_report(tells: bool, group: int) -> None:
    """Group 0 ends its requests at 5.36 ms, which is reported at 6.36; a request that the
    coordinator hears of at 5.9 ms makes that 6.9.
    """
    us = MS // 1000
    requests = [(0, 16, 1), (0, 16, 60), (0, 16, 60), (0, 16, 1)]
    requests += [(5_900 * us, 16, 60), (6_500 * us, 16, 1)]
    run = Run(requests, groups=3, balancer={"hears_of_first_requests": tells})
    assert run.routes("VLLM_DP:period_ms=6") == [0, 1, 2, 0, 1, group]


def test_vllm_clients_begin_at_different_engines() -> None:
    assert Run(burst * 4, groups=4).routes("VLLM_DP:clients=4") == [0, 1, 2, 3]
    assert Run(burst * 4, groups=4).routes("VLLM_DP:clients=2") == [0, 2, 1, 3]


def test_free_blocks_decide_by_weight() -> None:
    """Group 0 holds one long prompt, group 1 two short ones."""
    requests = [(0, 200, 90), (1, 16, 90), (2, 16, 90), (150 * MS, 16, 1), (160 * MS, 16, 1)]
    run = Run(requests, groups=2, blocks=40, caching=False)
    assert run.routes("WEIGHTED:load=0,prefix=0,kv=1")[1:4] == [1, 1, 1]
    assert run.routes("WEIGHTED:load=1,prefix=0,kv=0")[1:4] == [1, 0, 1]


def test_prompt_tokens_in_flight_decide_where_counts_of_requests_would_not() -> None:
    """Group 0 gets 160 tokens in one prompt, group 1 the same in ten; LOR would take turns."""
    burst_of = [(0, 160, 40), *[(1 + i, 16, 40) for i in range(10)]]
    # At a tie in tokens, group 0 has fewer outstanding requests.
    run = Run([*burst_of, (20, 16, 1), (21, 16, 1)], groups=2)
    assert run.routes("TOKENS") == [0, *[1] * 10, 0, 1]
    assert run.routes("LOR")[:4] == [0, 1, 0, 1]


def test_prompt_tokens_count_until_the_last_token_of_the_answer() -> None:
    busy, later = (0, 160, 400), 200 * MS
    requests = [busy, (1, 200, 1), (later, 16, 1), (2 * later, 16, 1)]
    assert Run(requests, groups=2).routes("TOKENS") == [0, 1, 1, 1]  # the second one has ended
    idle = [(0, 160, 1), (later, 16, 1), (2 * later, 16, 1)]
    assert Run(idle, groups=2).routes("TOKENS") == [0, 0, 0]


def test_every_router_says_what_it_does() -> None:
    kinds = _native.router_kinds()
    names = "LOAD RR RAND LOR TOKENS P2C SESSION PREFIX VLLM_DP WEIGHTED"
    assert [kind.name for kind in kinds] == names.split()
    for kind in kinds:
        assert kind.summary
        for option in kind.options:
            assert option.low <= option.default <= option.high and option.meaning


def test_the_core_refuses_what_the_command_line_would_have_refused() -> None:
    scheduler, kv = _native.SchedulerConfig(), _native.KvCacheConfig()
    kv.num_blocks, kv.max_model_len = 100, 1000
    scheduler.kv, scheduler.max_num_scheduled_tokens = kv, 256
    group = _native.GroupSpec(_native.GroupConfig(), scheduler, program())
    for name, options, words in (
        ("BEST", {}, "known: LOAD, RR"),
        ("RR", {"weight": 1.0}, "no option weight"),
        ("PREFIX", {"wait": 1.0}, "it has weight, delay_ms"),
        ("PREFIX", {"weight": -1.0}, "out of range"),
        ("PREFIX", {"weight": float("nan")}, "out of range"),
    ):
        with pytest.raises(ValueError, match=words):
            simulation([(0, 1, 1)], [group], router=router(name, **options))


def test_routers_do_not_read_the_oracle() -> None:
    """Invariant 8: no router asks how long an answer will be."""
    files = [path for path in package_sources("llmsim/native/router").rglob("*") if path.is_file()]
    assert len(files) > 15
    for path in files:
        assert "max_tokens(" not in path.read_text(encoding="utf-8"), path.name


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "ours"),
    [("round_robin", "RR"), ("least-loaded", "LOR"), ("Cache_Aware", "PREFIX")],
)
def test_names_of_other_routers_say_ours(name: str, ours: str) -> None:
    with pytest.raises(InputError, match=f'is "{name}"; it is called {ours} here'):
        parse_router(name)
    assert parse_router(ours).name == ours

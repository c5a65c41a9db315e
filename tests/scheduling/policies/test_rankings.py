"""Rankings: twins of built-in orders give the same schedules, and misuse is said in a sentence."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.tiny import MS, Options, built, preempted, run, schedule

from llmsim import _native
from llmsim.config import EngineArgs, EngineOverrides, load_cluster, resolve
from llmsim.config.errors import InputError
from llmsim.scheduling.ranking import places_by


class Fcfs:
    """First come, first served; the last one admitted is preempted first."""

    orders = ("waiting", "victims")

    def keys(self, view: Any, now_ps: int) -> Any:
        return np.column_stack([~view.parked, view.position])


class Priority:
    """vLLM's order by priority; of equal victims the one that was admitted first."""

    orders = ("waiting", "victims")

    def keys(self, view: Any, now_ps: int) -> Any:
        admitted = np.where(view.running, -view.position, 0)
        return np.column_stack([view.priority, view.arrival_ps, admitted])


class Shortest:
    """The shortest prompt first; parked and preempted requests go in front."""

    orders = ("waiting",)

    def keys(self, view: Any, now_ps: int) -> Any:
        front = np.where(view.parked, 0, np.where(view.preemptions > 0, 1, 2))
        second = np.where(front < 2, view.position, view.tokens)
        return np.column_stack([front, second, np.where(front < 2, 0, view.arrival_ps)])


TWINS = {"FCFS": ("fcfs", Fcfs), "PRIORITY": ("priority", Priority), "SHORTEST": ("sjf", Shortest)}


def in_python(ranking: Any) -> Any:
    """The policies of a scheduler whose requests that object ranks."""
    policies, orders = _native.Policies(), getattr(ranking, "orders", ("waiting",))
    policies.set_ranking(
        *(name in orders for name in ("waiting", "running", "victims", "pauses")),
        places_by(type(ranking).__name__, ranking.keys),
        *(getattr(ranking, event, None) for event in ("added", "scheduled", "executed", "left")),
    )
    return policies


def finished(sim: Any) -> Any:
    for _ in range(100):
        if sim.run(10_000):
            return sim
    raise AssertionError("no end")


def outcome(sim: Any) -> dict[str, Any]:
    tables = {"schedule": sim.schedule(0), "requests": sim.requests(), "counters": sim.counters()}
    return {
        f"{table}.{name}": column.tolist()
        for table, all in tables.items()
        for name, column in all.items()
    }


rows = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 200), st.integers(1, 50)), min_size=1, max_size=25
).map(sorted)
loads = st.fixed_dictionaries(
    {
        "blocks": st.integers(30, 80),
        "block_size": st.sampled_from([4, 16]),
        "max_seqs": st.integers(1, 12),
        "budget": st.sampled_from([16, 64, 256]),
        "caching": st.booleans(),
        "depth": st.sampled_from([1, 2]),
        "decode_only": st.booleans(),
    }
)


def random_load(requests: Any, sampled: dict[str, Any], seed: int) -> Options:
    rng = np.random.default_rng(seed)
    options = Options(**sampled, per_token_ms=0.1)
    options.budget = max(options.budget, options.max_seqs)
    options.priority = [int(rng.integers(-2, 3)) for _ in requests]
    options.extra = {"reserve_full_isl": bool(rng.random() < 0.7)}
    if rng.random() < 0.4:
        options.extra["speculation"] = drafts = _native.SpeculationConfig()
        drafts.tokens = drafts.lookahead = 2
        acceptance = _native.Acceptance()
        acceptance.chance, acceptance.seed = [1 << 52] * 2, seed
        drafts.acceptance = acceptance
    shared = int(rng.integers(0, 7))
    options.keys = [
        list(range(1, 1 + min(shared, n // options.block_size))) for _, n, _ in requests
    ]
    if rng.random() < 0.3:
        options.timeout_ms = [float(rng.choice([-1, 5, 60])) for _ in requests]
    return options


@pytest.mark.parametrize("order", TWINS)
@settings(max_examples=60, deadline=None)
@given(requests=rows, sampled=loads, seed=st.integers(0, 2**32))
def test_twins_give_the_same_schedules(
    order: str, requests: Any, sampled: dict[str, Any], seed: int
) -> None:
    """With preemption, chunks, a prefix cache, drafts, cancellations, and two batches in flight."""
    native, mine = TWINS[order]
    options = replace(random_load(requests, sampled, seed), order=order)
    expected = outcome(finished(built(requests, options)))
    plain = replace(options, order="FCFS")
    assert outcome(finished(built(requests, replace(plain, ranking=native)))) == expected
    assert outcome(finished(built(requests, plain, in_python(mine())))) == expected


@pytest.mark.parametrize("scheduler", ["orca", "sarathi", "sglang", "static"])
@pytest.mark.parametrize("order", ["FCFS", "SHORTEST"])
@settings(max_examples=20, deadline=None)
@given(requests=rows, seed=st.integers(0, 2**32))
def test_twins_order_the_queue_of_every_scheduler(
    scheduler: str, order: str, requests: Any, seed: int
) -> None:
    class WaitingOnly(Shortest if order == "SHORTEST" else Fcfs):  # type: ignore[misc]
        orders = ("waiting",)

    options = Options(scheduler, order=order, blocks=60, budget=400, max_model_len=400)
    expected = outcome(finished(built(requests, options)))
    plain = replace(options, order="FCFS")
    mine = outcome(finished(built(requests, plain, in_python(WaitingOnly()))))
    if scheduler == "sglang":  # in outline where the queue has another order than its own
        assert mine["requests.emitted_tokens"] == expected["requests.emitted_tokens"]
    else:
        assert mine == expected


class Longest:
    """The longest prompt takes the budget first."""

    orders = ("waiting", "running")

    def keys(self, view: Any, now_ps: int) -> Any:
        return -view.tokens


def test_a_ranking_of_running_requests_decides_who_takes_the_budget() -> None:
    requests = [(0.0, 30, 2), (0.0, 60, 2)]
    options = Options(budget=40)
    assert schedule(run(requests, options))[:2] == [
        [(0, 30, 0), (1, 10, 0)],
        [(0, 1, 30), (1, 39, 10)],
    ]
    ranked = schedule(finished(built(requests, options, in_python(Longest()))))
    assert ranked[:3] == [[(1, 40, 0)], [(1, 20, 40), (0, 20, 0)], [(1, 1, 60), (0, 10, 20)]]


class FirstIsVictim:
    """The request that was admitted first loses its blocks."""

    orders = ("waiting", "victims")

    def keys(self, view: Any, now_ps: int) -> Any:
        return np.where(view.running, -view.position, view.position)


def test_a_ranking_of_victims_decides_who_is_preempted() -> None:
    requests, options = [(0.0, 4, 9), (0.0, 4, 9)], Options(max_seqs=2, block_size=4, blocks=5)
    assert preempted(run(requests, options))[0] == (5, 1)
    assert preempted(finished(built(requests, options, in_python(FirstIsVictim()))))[0] == (5, 0)


class LeastServed:
    """The request with the fewest tokens so far takes its turn; the others keep their KV."""

    orders = ("waiting", "running", "victims", "pauses")

    def __init__(self) -> None:
        self.served: dict[int, int] = {}

    def added(self, request: int, seen_ps: int) -> None:
        self.served[request] = 0

    def executed(self, requests: Any, tokens: Any) -> None:
        for request, count in zip(requests.tolist(), tokens.tolist(), strict=True):
            if request in self.served:
                self.served[request] += count

    def left(self, request: int) -> None:
        del self.served[request]

    def keys(self, view: Any, now_ps: int) -> Any:
        return [self.served[row] for row in view.row.tolist()]


def test_a_ranking_may_pause_requests_that_keep_their_kv() -> None:
    ranking = LeastServed()
    options = Options(max_seqs=1, blocks=100)
    sim = finished(built([(0.0, 8, 4), (0.5, 6, 5)], options, in_python(ranking)))
    assert schedule(sim) == [
        [(0, 8, 0)], [(1, 6, 0)], [(1, 1, 6)], [(1, 1, 7)], [(0, 1, 8)], [(1, 1, 8)], [(0, 1, 9)],
        [(1, 1, 9)], [(0, 1, 10)],
    ]  # fmt: skip
    assert preempted(sim) == [] and ranking.served == {}


class NewestFirst:
    """The request that came last takes its turn first."""

    orders = ("waiting", "running", "victims", "pauses")

    def keys(self, view: Any, now_ps: int) -> Any:
        return -view.row


@settings(max_examples=40, deadline=None)
@given(requests=rows, sampled=loads, seed=st.integers(0, 2**32))
def test_nothing_is_lost_while_requests_take_turns(
    requests: Any, sampled: dict[str, Any], seed: int
) -> None:
    options = random_load(requests, sampled, seed)
    drafts = options.extra.get("speculation")
    ahead = 0 if drafts is None else drafts.lookahead + drafts.tokens * options.depth
    sim = finished(built(requests, options, in_python(NewestFirst())))
    status, slots = sim.requests()["status"], (options.blocks - 1) * options.block_size
    fits = np.array([n + m - 1 + ahead <= slots for _, n, m in requests])
    ended = np.isin(status, [3, 5]) if options.timeout_ms else status == 3
    assert ended[fits].all()
    assert sim.counters()["free_blocks"][0] == options.blocks - 1
    assert sim.counters()["pool_consistent"].all()


class Watches:
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.seen: list[dict[str, list[int]]] = []

    def keys(self, view: Any, now_ps: int) -> Any:
        names = ("row", "running", "tokens", "received", "computed", "left", "blocks", "priority")
        more = ("session", "round", "position", "preemptions", "arrival_ps", "parked")
        self.seen.append({name: getattr(view, name).tolist() for name in (*names, *more)})
        return np.zeros(len(view))


def test_a_ranking_sees_requests_and_their_sessions() -> None:
    """Row 2 is the second call of row 0's session; a step takes a millisecond."""
    watch = Watches()
    options = Options(next_call=[2, -1, -1], priority=[7, 8, 9], block_size=4, blocks=50)
    policies = in_python(watch)
    sim = built([(0.0, 5, 2), (0.5, 9, 4), (-1, 6, 1)], options, policies)
    finished(sim)
    first, second, third = watch.seen[:3]
    assert (first["row"], first["running"], first["left"], first["blocks"]) == ([0], [0], [5], [0])
    by_row = dict(
        zip(second["row"], zip(*(second[name] for name in second), strict=True), strict=True)
    )
    columns = list(second)
    zero, one = (dict(zip(columns, by_row[row], strict=True)) for row in (0, 1))
    assert (zero["running"], zero["received"], zero["computed"], zero["left"]) == (True, 1, 5, 1)
    assert (one["running"], one["tokens"], one["priority"]) == (False, 9, 8)
    assert one["arrival_ps"] == MS // 2 and zero["blocks"] == 2
    assert third["row"] == [2, 0, 1] or 2 in third["row"]
    last = next(seen for seen in watch.seen if 2 in seen["row"])
    at = last["row"].index(2)
    assert (last["session"][at], last["round"][at]) == (0, 1)
    assert (one["session"], one["round"]) == (1, 0)


def answering(answer: Any) -> Any:
    class Answers:
        def keys(self, view: Any, now_ps: int) -> Any:
            return answer(view)

    return Answers()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda view: [1], r"answered shape \(1,\) for 2 requests; one key each is needed"),
        (lambda view: 3, r"answered shape \(\) for 2 requests"),
        (lambda view: [0.0, float("nan")], "answered NaN for request 1 of 2"),
        (lambda view: ["a", "b"], "integers or floats are needed"),
        (lambda view: None, "integers or floats are needed"),
        (lambda view: [[1], [1, 2]], "rows of different lengths"),
        (lambda view: np.zeros((2, 9)), "answered 9 numbers per key; 1 to 8 are possible"),
        (lambda view: view.colour, "failed: AttributeError"),
    ],
)
def test_keys_that_mean_nothing_are_said(answer: Any, said: str) -> None:
    with pytest.raises(InputError, match=f"^ranking Answers.*{said}"):
        finished(built([(0.0, 5, 2), (0.0, 5, 2)], Options(), in_python(answering(answer))))


CLUSTER = "cluster_config/h100_llama31_8b.json"
MODULE = """
import numpy as np

class Oldest:
    def keys(self, view, now_ps):
        return view.position

class Pauses(Oldest):
    orders = ("pauses",)

class Odd(Oldest):
    orders = "waiting"

class Running(Oldest):
    orders = ("waiting", "running")

class Nothing:
    pass

class Needs(Oldest):
    def __init__(self, weight):
        pass
"""


@pytest.fixture
def module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"ranking_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def engine(policy: str, scheduler: str = "vllm_v1") -> EngineArgs:
    from pathlib import Path

    cluster = load_cluster(Path(__file__).resolve().parents[3] / CLUSTER)
    overrides = EngineOverrides(scheduling_policy=policy, scheduler=scheduler)
    return resolve(cluster, overrides).groups[0].engine


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Odest", 'has no Odest .did you mean "Oldest"'),
        ("Pauses", 'orders has "pauses" without running, victims, waiting'),
        ("Odd", "orders is 'waiting'; it must be a tuple of waiting, running, victims, pauses"),
        ("Nothing", r"has no method keys\(view, now_ps\)"),
        ("Needs", "cannot be made: TypeError: missing a required argument: 'weight'"),
    ],
)
def test_a_class_that_is_no_ranking_is_said_before_the_run(
    name: str, said: str, module: str
) -> None:
    with pytest.raises(InputError, match=said):
        engine(f"{module}:{name}")


def test_what_is_no_policy_at_all_is_said() -> None:
    with pytest.raises(InputError, match=r'"sfj" .did you mean "sjf".*; it may be fcfs, priority'):
        engine("sfj")


def test_a_ranking_of_running_requests_is_refused_where_the_scheduler_orders_them(
    module: str,
) -> None:
    from llmsim.core import Workload
    from llmsim.scheduling.ranking import with_ranking

    workload: Workload = None  # type: ignore[assignment]
    config = _native.SchedulerConfig()
    with pytest.raises(InputError, match="for the waiting queue alone: its rules fix the order"):
        with_ranking(config, engine(f"{module}:Running", "sarathi"), workload)
    with pytest.raises(InputError, match="the scheduler mlfq orders by its levels; remove it"):
        engine(f"{module}:Oldest", "mlfq")

"""Runs whose requests take KV blocks from each other for ever end, and no other run is ended."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scheduling.tiny import (
    MS,
    PIPELINED,
    SCHEDULERS,
    WHOLE_PROMPTS,
    Options,
    built,
    configuration,
    program,
    run,
    schedule,
)
from simulations import simulation

from llmsim import _native
from llmsim.cli import run_main
from llmsim.core import Status

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
CORNER = (
    *(
        "--scheduling-policy",
        "priority",
        "--no-reserve-full-isl",
        "--long-prefill-token-threshold",
        "128",
    ),
    *("--no-enable-prefix-caching", "--num-gpu-blocks-override", "120", "--max-model-len", "1800"),
    *("--max-num-batched-tokens", "2048", "--max-num-seqs", "9"),
)
TIED = [(1392, 2, 0, 1), (1392, 2, 0, 1)]
"""Two prompts (input, output, arrival in s, priority) that do not fit together, equally urgent, of
one arrival.
"""


def trace(folder: Path, rows: list[tuple[int, int, float, int]]) -> Path:
    lines = [
        {"input_toks": i, "output_toks": o, "arrival_time_ns": int(at * 1e9), "priority": p}
        for i, o, at, p in rows
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_an_endless_run_ends_with_what_had_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(1000, 5, 0, 0), *((i, o, 5, p) for i, o, _, p in TIED)]
    output = tmp_path / "o.csv"
    given = [
        "--cluster-config",
        CLUSTER,
        "--dataset",
        trace(tmp_path, rows),
        "--cost-source",
        "roofline",
        *CORNER,
    ]
    assert run_main([*map(str, given), "--output", str(output), "--json"]) == 3
    captured = capsys.readouterr()
    assert (
        "the requests 1, 2 of group 0 can never end" in captured.err
        and captured.err.count("\n") == 1
    )
    summary = json.loads(captured.out)
    assert (summary["completed"], summary["unfinished"], summary["circular_groups"]) == (1, 2, [0])
    assert set(summary["invariants"].values()) == {"ok"} and not summary["interrupted"]
    assert len(output.read_text(encoding="utf-8").splitlines()) == 2


def corner(**more: Any) -> Options:
    """The corner of vllm_v1 in which tied requests may never end."""
    limits = _native.StepLimits()
    limits.long_prefill_token_threshold = 128
    extra = {"reserve_full_isl": False, "limits": limits}
    named = {
        "blocks": 120,
        "budget": 2048,
        "max_seqs": 9,
        "max_model_len": 1800,
        "order": "PRIORITY",
        **more,
    }
    return Options(**{"extra": extra, **named})


def ends(requests: list[tuple[float, int, int]], options: Options) -> bool:
    """Whether all finish; False: the run was ended as circular. Anything else fails."""
    try:
        simulation = run(requests, options)
    except _native.Circular:
        return False
    assert set(simulation.requests()["status"].tolist()) <= {
        Status.FINISHED,
        Status.REJECTED,
        Status.CANCELLED,
    }
    return True


def test_the_schedule_up_to_there_is_vllms() -> None:
    """As vLLM 0.24's scheduler runs them: it comes back to the same state after ten steps, for
    ever.
    """
    options = corner(priority=[1, 1])
    simulation = built([(0, 1392, 2), (0, 1392, 2)], options)
    with pytest.raises(_native.Circular, match=r"^0$"):
        simulation.run(1_000_000)
    steps = schedule(simulation)
    assert steps[6] == [(0, 128, 768), (1, 128, 768)]
    assert steps[7] == [] and steps[8] == [(1, 128, 896), (0, 128, 0)]
    assert steps[23] == [(0, 128, 512)] and steps[28] == [(1, 128, 512)]
    swapped = [
        [(1 - request, tokens, before) for request, tokens, before in step] for step in steps[23:28]
    ]
    assert steps[28:33] == swapped
    assert simulation.requests()["emitted_tokens"].tolist() == [0, 1]


def test_clients_that_give_up_end_it() -> None:
    """Nothing is ended while something is left to come: here one of two clients leaves
    after 40 s.
    """
    tied = [(0.0, 1392, 2), (0.0, 1392, 2)]
    simulation = run(tied, corner(priority=[1, 1], timeout_ms=[-1, 40_000]))
    status = simulation.requests()["status"].tolist()
    assert status == [Status.FINISHED, Status.CANCELLED]


def test_an_arrival_that_is_still_to_come_is_served() -> None:
    """A request that arrives long after two others began to run in circles finishes before the run
    is ended.
    """
    simulation = built([(0, 1392, 2), (0, 1392, 2), (60_000, 100, 3)], corner(priority=[1, 1, 0]))
    with pytest.raises(_native.Circular):
        simulation.run(10_000_000)
    assert simulation.requests()["status"].tolist()[2] == Status.FINISHED
    assert simulation.now_ps > 60_000 * MS


SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_draw_of_the_corner_ends(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    longest = [1000, 1200, 1392]
    requests = sorted(
        (float(rng.integers(0, 3) * 1000), int(rng.choice(longest)), int(rng.integers(1, 40)))
        for _ in range(n)
    )
    options = corner(
        priority=[int(rng.integers(0, 2)) for _ in requests],
        depth=int(rng.integers(1, 3)), caching=bool(rng.random() < 0.3),
    )  # fmt: skip
    ends(requests, options)


def test_most_draws_of_the_corner_would_never_end() -> None:
    """The property above is worth something only where the guard acts."""
    endless = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        requests = [(0.0, 1392, int(rng.integers(2, 40))) for _ in range(2)]
        endless += not ends(requests, corner(priority=[1, 1]))
    assert endless >= 10


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("seed", range(12))
def test_every_scheduler_ends_under_ties_and_pressure(scheduler: str, seed: int) -> None:
    """All orders, with requests of one arrival and one priority, and a pool that holds little more
    than one of them.
    """
    rng = np.random.default_rng([seed, SCHEDULERS.index(scheduler)])
    n, size = int(rng.integers(2, 10)), int(rng.choice([1, 4, 16]))
    requests = [(0.0, int(rng.integers(100, 300)), int(rng.integers(1, 60))) for _ in range(n)]
    options = Options(
        scheduler,
        blocks=int(370 / size) + 2,
        block_size=size,
        max_seqs=int(rng.integers(2, 9)),
        budget=400 if scheduler in WHOLE_PROMPTS else int(rng.choice([16, 64, 256])),
        max_model_len=400,
        order=str(rng.choice(["FCFS", "PRIORITY", "SHORTEST", "SLACK"])),
        priority=[0] * n,
        caching=bool(rng.random() < 0.3),
        ttft_target_ms=40,
    )
    if scheduler == "vllm_v1":
        limits = _native.StepLimits()
        limits.long_prefill_token_threshold = int(rng.choice([0, 8, 32]))
        options.depth = int(rng.integers(1, 3))
        options.extra = {
            "reserve_full_isl": False,
            "limits": limits,
            "prefill_first": bool(rng.random() < 0.3),
        }
    elif scheduler in PIPELINED:
        options.depth = int(rng.integers(1, 4))
    ends(requests, options)


@pytest.mark.parametrize("victim", ["first", "last", "needy", "least computed", "random"])
@pytest.mark.parametrize("seed", range(4))
def test_every_victim_policy_ends(victim: str, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def choose(running: list[Any], needy: Any) -> int:
        places = {
            "first": 0, "last": len(running) - 1, "random": int(rng.integers(len(running))),
            "needy": next(i for i, one in enumerate(running) if one.row == needy.row),
            "least computed": min(range(len(running)), key=lambda i: running[i].computed),
        }  # fmt: skip
        return places[victim]

    requests = [(0.0, int(rng.integers(600, 1392)), int(rng.integers(1, 40))) for _ in range(4)]
    options = corner(priority=[0] * 4)
    policies = _native.Policies()
    policies.set_victim(choose)
    simulation = built(requests, options, policies)
    try:
        while not simulation.run(100_000):
            pass
    except _native.Circular:
        pass


class Circles:
    """A scheduler in Python that preempts its two requests in turn."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.held: list[int] = []
        self.turn = 0

    def add(self, request: int) -> None:
        self.waiting.append(request)

    def build(self, now_ps: int) -> tuple[list[tuple[int, int, int, int, bool]], list[int]]:
        preempted, self.held = self.held, [self.waiting[self.turn % len(self.waiting)]]
        self.turn += 1
        return [(self.held[0], 10, 0, 0, False)], preempted

    def complete(self) -> list[tuple[int, int, bool]]:
        return []

    def abort(self, request: int) -> None:
        self.waiting.remove(request)

    def gauges(self) -> tuple[int, int, int]:
        return len(self.held), len(self.waiting) - len(self.held), 100


class Asks(Circles):
    """One that never schedules anything, and always asks to be called again."""

    def build(self, now_ps: int) -> tuple[list[tuple[int, int, int, int, bool]], list[int]]:
        return [], []

    def asks_again(self) -> bool:
        return True


def in_python(scheduler: Any, members: int = 1) -> Any:
    options = Options(blocks=101)
    step = program(options.budget, options.max_seqs)
    groups = []
    for index in range(members):
        group = _native.GroupConfig()
        group.index, group.depth, group.model = index, 1, index
        config = _native.PythonSchedulerConfig(scheduler(), configuration(options).kv)
        groups.append(_native.GroupSpec(group, config, step))
    together = [_native.LockstepSpec(list(range(members)), 32)] if members > 1 else []
    return simulation([(0, 100, 5)] * 2, groups, lockstep=together)


def test_a_scheduler_in_python_that_runs_in_circles_ends() -> None:
    simulation = in_python(Circles)
    with pytest.raises(_native.Circular):
        while not simulation.run(100_000):
            pass


def test_a_scheduler_in_python_that_always_asks_again_ends() -> None:
    with pytest.raises(_native.Stalled, match="was asked"):
        in_python(Asks).run(100_000)


class Idle(Circles):
    """One that never schedules anything."""

    def build(self, now_ps: int) -> tuple[list[tuple[int, int, int, int, bool]], list[int]]:
        return [], []


@pytest.mark.parametrize("members", [1, 2])
def test_a_scheduler_in_python_that_never_schedules_stalls(members: int) -> None:
    """Members of a wave would run dummies for ever."""
    simulation = in_python(Idle, members)
    with pytest.raises(_native.Stalled, match="no event is left"):
        while not simulation.run(100_000):
            pass


def test_prompts_whose_kv_nobody_reads_end_a_run_of_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The decode instance's requests take KV from each other for ever, while ranks of the prefill
    side run dummies in lock-step: their requests wait for memory that is never read.
    """
    fields = json.loads(
        (ROOT / "cluster_config" / "rtxpro6000_qwen3_30b_a3b_dp2_ep2.json").read_text()
    )
    node = fields["nodes"][0]
    first = {**node["instances"][0], "pd_type": "prefill", "dp_group": "prompts"}
    decode = {key: value for key, value in first.items() if key != "dp_group"}
    node["instances"] = [first, first, {**decode, "pd_type": "decode", "ep_size": 1}]
    node["num_instances"] = 3
    cluster = tmp_path / "apart.json"
    cluster.write_text(json.dumps(fields), encoding="utf-8")
    given = ["--cluster-config", cluster, "--engine-profile", "vllm-0.28"]
    given += [
        "--dataset",
        "synthetic:n=30,rate=12,input=uniform:500-3000,output=uniform:2-50,seed=3",
    ]
    given += ["--cost-source", "roofline", "--max-num-batched-tokens", "512"]
    given += ["--num-gpu-blocks-override", "600", "--max-model-len", "3072"]
    assert run_main([*map(str, given), "--json"]) == 3
    captured = capsys.readouterr()
    assert "of group 2 can never end" in captured.err and captured.err.count("\n") == 1
    summary = json.loads(captured.out)
    assert summary["unfinished"] == 25 and summary["circular_groups"] == [2]

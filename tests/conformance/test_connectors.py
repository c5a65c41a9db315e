"""KV connectors in conformance: what is drawn, what real schedulers did with them, and what a
scheduler in Python sees of pools.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from connector_cases import connector_case

from llmsim import _native
from llmsim.scheduling.conformance.cases import GroupSteps, run_groups
from llmsim.scheduling.conformance.compare import _difference, _goes_on_at
from llmsim.scheduling.conformance.random_cases import random_case
from llmsim.scheduling.conformance.recorded import load_recording, replay

RECORDINGS = Path(__file__).parent / "recordings" / "connectors"


def test_random_cases_have_connectors_of_both_kinds() -> None:
    configs = [random_case(seed, 5)["config"] for seed in range(300)]
    drawn = [config for config in configs if "connector" in config]
    kinds = [config["connector"]["kind"] for config in drawn]
    assert kinds.count("handover") > 20 and kinds.count("pool") > 10
    pools = [one["connector"] for one in drawn if one["connector"]["kind"] == "pool"]
    handovers = [one["connector"] for one in drawn if one["connector"]["kind"] == "handover"]
    assert {one["parks"] for one in pools} == {one["selective"] for one in pools} == {True, False}
    assert {one["push"] for one in handovers} == {True, False}
    assert {"state_bytes" in one for one in handovers} == {True, False}
    for config in drawn:
        assert not {"kv_windows", "encoder_tokens"} & set(config)
        assert config["enable_prefix_caching"] or config["connector"]["kind"] == "handover"


@pytest.mark.parametrize("release", ["0.24.0", "0.28.0", "0.33.0"])
def test_recordings_with_connectors_are_identical(release: str) -> None:
    """Random cases of 40 requests that `engine_worker` wrote with the release."""
    paths = sorted(RECORDINGS.glob(f"vllm_{release}_*.json.gz"))
    kinds = [load_recording(path)["config"]["connector"]["kind"] for path in paths]
    assert kinds.count("handover") >= 3 and kinds.count("pool") >= 2
    assert [replay(path).difference for path in paths] == [""] * len(paths)


def test_releases_differ_in_what_they_do_with_connectors(tmp_path: Path) -> None:
    differing = 0
    for path in RECORDINGS.glob("vllm_0.33.0_*.json.gz"):
        case = load_recording(path)
        case["resolved"]["engine_profile"] = "vllm-0.24"
        old = tmp_path / "old.json.gz"
        old.write_bytes(gzip.compress(json.dumps(case).encode()))
        differing += not replay(old).identical
    assert differing >= 2


class Alone:
    """Runs one request at a time, whole prompt first, and notes what the pools have of it."""

    connects, keeps_finished = True, False

    def __init__(self, lengths: list[tuple[int, int]]) -> None:
        self.lengths, self.waiting, self.found = lengths, list[int](), list[int]()
        self.computed, self.received, self.batch = 0, 0, 0
        self.below: Any = None

    def use_tiers(self, below: Any) -> None:
        self.below = below

    def take_reserved(self) -> list[tuple[int, int]]:
        return []

    def transferred(self, request: int) -> None:
        raise AssertionError("nobody was parked")

    def add(self, request: int) -> None:
        self.waiting.append(request)

    def build(self, now_ps: int) -> tuple[list[Any], list[int]]:
        if not self.waiting or self.batch:
            return [], []
        row = self.waiting[0]
        if self.computed == 0:
            self.found.append(self.below.find(row, 0))
            self.below.load(row, 0, self.found[-1])
            self.computed = self.found[-1]
        before, known = self.computed, self.lengths[row][0] + self.received
        self.batch, self.computed = known - before, known
        return [(row, known - before, before, 0, True)], []

    def complete(self) -> list[tuple[int, int, bool]]:
        row, self.batch = self.waiting[0], 0
        self.received += 1
        done = self.received == self.lengths[row][1]
        if done:
            self.waiting.pop(0)
            self.computed = self.received = 0
        return [(row, 1, done)]

    def gauges(self) -> tuple[int, int, int]:
        return min(1, len(self.waiting)), max(0, len(self.waiting) - 1), 10

    def abort(self, request: int) -> None:
        raise AssertionError("nobody gives up")


POOL = {
    "kind": "pool",
    "chunk_blocks": 1,
    "pool_chunks": 100,
    "parks": False,
    "selective": False,
    "bytes_per_s": 10**10,
    "latency_ns": 0,
}


def a_case(**connector: Any) -> dict[str, Any]:
    """Three prompts of 40 tokens, of which the last repeats the first."""
    return connector_case({**POOL, **connector}, segments=(1, 2, 1), enable_prefix_caching=True)


def in_python(scheduler: Any) -> Any:
    def group(group: Any, config: Any, program: Any) -> Any:
        theirs = _native.PythonSchedulerConfig(scheduler, config.kv, config.speculation)
        return _native.GroupSpec(group, theirs, program, record_schedule=True)

    return group


def test_a_scheduler_in_python_finds_in_the_pool_what_was_computed_before() -> None:
    """Nine whole blocks of four tokens, since the last token is computed anyway."""
    scheduler = Alone([(40, 3)] * 3)
    ran = run_groups(a_case(), in_python(scheduler))
    assert scheduler.found == [0, 0, 36]
    assert ran.groups[0][-1]["finished"] == ["r2"]


def test_pools_that_need_to_know_of_lost_blocks_are_refused() -> None:
    case = a_case()
    parts = _native.KvTiersConfig(_native.TierWrite.BACK, False)
    network = _native.NetworkConfig(_native.Sharing.FAIR)
    ports = [(network.add_link(10**9, 0), network.add_link(10**9, 0)) for _ in range(2)]
    places = [network.add_place(i, port, port) for i, port in enumerate(ports)]
    parts.add_pool("pool", 10**6, _native.TierEviction.LRU, [places[1]])
    parts.add_group([0], [places[0]], 4, [1], 0)
    made: list[Any] = []

    def group(group: Any, config: Any, program: Any) -> Any:
        made.append(in_python(Alone([(40, 3)] * 3))(group, config, program))
        return made[-1]

    run_groups({**case, "config": {**case["config"], "connector": POOL}}, group)
    empty = np.empty(0, np.int64)
    source = _native.Source(
        empty, *[empty.astype(np.int32)] * 2, empty.astype(np.int16), empty.astype(np.int32), empty,
        empty.astype(np.int32), np.zeros(1, np.int64), np.empty(0, np.uint64), 1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="which blocks lose their content"):
        _native.Simulation(_native.SimulationConfig(source, made, network=network, kv_tiers=parts))


def test_prompts_are_not_computed_for_others_by_a_scheduler_that_hands_nothing_over() -> None:
    alone = Alone([(40, 3)])
    alone.connects = False
    link = {"bytes_per_s": 10**9, "latency_ns": 0}
    handover = {"kind": "handover", "prefill_blocks": 50, "push": False} | link
    case = a_case()
    case["config"]["connector"] = handover
    with pytest.raises(ValueError, match="hands no KV over"):
        run_groups(case, in_python(alone))


def test_loads_that_leave_no_slots_for_drafts_do_not_stand_still() -> None:
    """vLLM 0.28 and earlier reserve none beside loads: two prompts fill the pool to the last slot,
    and whoever would begin needs one more block. vLLM then waits for ever.
    """
    case = a_case()
    link = {"bytes_per_s": 10**6, "latency_ns": 0}
    case["config"] |= {
        "num_gpu_blocks": 21,
        "enable_prefix_caching": False,
        "connector": {"kind": "handover", "prefill_blocks": 50, "push": False} | link,
    }
    case["resolved"] |= {"num_spec_tokens": 4, "num_lookahead_tokens": 4, "draft_slots": 0}
    case["resolved"]["engine_profile"] = "vllm-0.28"
    ran = run_groups(case)
    assert ran.stalled is None
    first = next(step for step in ran.groups[1] if step["scheduled"])
    assert first["free_blocks"] == 0 and first["scheduled"] == [("r0", 1, 39)]
    assert [name for step in ran.groups[1] for name in step["finished"]].count("r2") == 1


@pytest.mark.parametrize("stalled", [None, RuntimeError("ours runs in circles")])
def test_where_vllm_stands_still_what_comes_later_is_not_compared(stalled: Any) -> None:
    """Steps of both groups count up to the first that only ours makes."""
    steps = [{"schedule_ps": at} for at in (0, 10, 20)]
    ours = GroupSteps([steps, steps[:1]], stalled)
    still = GroupSteps([steps[:2], steps[:1]], RuntimeError("no event is left"))
    assert _goes_on_at(ours, still) == 20
    assert _goes_on_at(ours, GroupSteps(still.groups, None)) > 10**15
    assert _goes_on_at(still, still) > 10**15


def test_a_difference_names_the_field() -> None:
    assert _difference({"running": 1}, {"running": 2}) == "running is 1, vLLM's 2"
    assert "only vLLM goes on" in _difference(None, {"running": 2})

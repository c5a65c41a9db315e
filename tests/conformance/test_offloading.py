"""vLLM's own KV offloading in conformance: what is drawn, what the real connector did, and cases by
hand.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from connector_cases import connector_case

from llmsim import _native
from llmsim.config.engine import offloading
from llmsim.scheduling.conformance.cases import (
    PS_PER_US,
    SEQUENCE_PS,
    STEP_PS,
    TOKEN_PS,
    run_groups,
)
from llmsim.scheduling.conformance.random_cases import random_case
from llmsim.scheduling.conformance.recorded import load_recording, replay

RECORDINGS = Path(__file__).parent / "recordings" / "offloading"
MS = 1000 * PS_PER_US


def test_random_cases_draw_every_option() -> None:
    configs = [random_case(seed, 5)["config"] for seed in range(400)]
    drawn = [one for one in configs if one.get("connector", {}).get("kind") == "offloading"]
    assert len(drawn) > 15
    connectors = [one["connector"] for one in drawn]
    assert {one["eviction"] for one in connectors} == {"lru", "arc"}
    assert {one["prompt_only"] for one in connectors} == {True, False}
    assert {one["store_threshold"] for one in connectors} == {0, 2, 3}
    assert {one["sync_load_tokens"] for one in connectors} == {0, 40, 200, 10**6}
    assert {one["max_tracker_size"] for one in connectors} == {8, 40, 64_000}
    for config in drawn:
        assert config["enable_prefix_caching"]
        assert not {"kv_windows", "encoder_tokens"} & set(config)


def test_recordings_with_offloading_are_identical() -> None:
    """Random cases of 40 requests that `engine_worker` wrote with 0.33.0, and the smallest cases of
    a load in front of what a drafter reads ahead, and of a chunk that is loaded twice at once; with
    0.30.0, of a chunk that was used last, and of who waits for a load of another request; with
    0.24.0 to 0.29.0, cases in which a rule of later releases would matter.
    """
    verdicts = [replay(path) for path in sorted(RECORDINGS.iterdir())]
    assert [verdict.difference for verdict in verdicts] == [""] * 29
    assert sum(verdict.steps for verdict in verdicts) > 8000


@pytest.mark.parametrize(
    ("option", "other"),
    [
        ("eviction", {"lru": "arc", "arc": "lru"}),
        ("prompt_only", {True: False, False: True}),
        ("store_threshold", {0: 2, 2: 0, 3: 0}),
        ("chunk_blocks", {1: 2, 2: 1, 4: 1}),
        ("sync_load_tokens", {0: 0, 200: 0, 10**6: 0}),
        ("bytes_per_s", {10**6: 10**7, 10**7: 10**6, 10**8: 10**6, 10**10: 10**6}),
    ],
)
def test_each_option_changes_what_is_recorded(
    option: str, other: dict[Any, Any], tmp_path: Path
) -> None:
    differing = 0
    for path in RECORDINGS.glob("*.json.gz"):
        case = load_recording(path)
        connector = case["config"]["connector"]
        if connector.get(option, 0) not in other:  # a rate of a smallest case
            continue
        connector[option] = other[connector.get(option, 0)]
        changed = tmp_path / "changed.json.gz"
        changed.write_bytes(gzip.compress(json.dumps(case).encode()))
        differing += not replay(changed).identical
    assert differing >= 1


@pytest.mark.parametrize(
    ("rule", "since"),
    [
        ("stores_ends", 26),
        ("keeps_progress", 26),
        ("ends_with_step", 27),
        ("counts_offers", 29),
        ("remembers_offers", 30),
        ("stores_computed", 30),
        ("offloads_drafted", 30),
        ("gives_up_either", 30),
    ],
)
def test_each_rule_explains_recordings_of_releases_without_it(
    rule: str, since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rules = offloading.set_rules

    def with_rule(native: Any, rules: Any) -> None:
        set_rules(native, rules)
        setattr(native, rule, True)

    monkeypatch.setattr(offloading, "set_rules", with_rule)
    earlier = [path for path in RECORDINGS.iterdir() if minor_release(path) < since]
    assert any(not replay(path).identical for path in earlier)


def minor_release(path: Path) -> int:
    return int(path.name.split(".")[1])


CONNECTOR = {
    "kind": "offloading",
    "chunk_blocks": 1,
    "pool_chunks": 100,
    "eviction": "lru",
    "store_threshold": 0,
    "prompt_only": True,
    "bytes_per_s": 10**7,
    "latency_ns": 0,
}


def one_at_a_time(**connector: Any) -> dict[str, Any]:
    """Three prompts of 40 tokens, of which the last repeats the first; a pool of 11 blocks of four
    tokens holds one of them with its answer of three tokens.
    """
    case = connector_case(
        {**CONNECTOR, **connector},
        segments=(1, 2, 1),
        enable_prefix_caching=True,
        num_gpu_blocks=12,
    )
    case["resolved"] |= {"engine_profile": "vllm-0.33", "draft_slots": 0}
    return case


FIRST, LATER = 5_420 * PS_PER_US, 5_030 * PS_PER_US
"""A step with the prompt, and each of the two behind it."""
WHOLE = FIRST + 2 * LATER


def starts(case: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    """When each request first runs, in ps, with how many tokens, behind how many computed ones."""
    found: dict[str, tuple[int, int, int]] = {}
    for step in run_groups(case).groups[0]:
        for name, tokens, computed in step["scheduled"]:
            found.setdefault(name, (step["schedule_ps"], tokens, computed))
    return found


def test_a_prompt_that_has_left_the_device_comes_back_whole() -> None:
    """40,000 bytes at 10 MB/s take 4 ms; the last token is computed again."""
    found = starts(one_at_a_time())
    assert found["r1"] == (WHOLE, 40, 0)
    assert found["r2"] == (2 * WHOLE + 4 * MS, 1, 39)


def test_a_chunk_of_several_blocks_comes_whole_or_not_at_all() -> None:
    """Three blocks make a chunk of 12 tokens, of which 40 have three: 36,000 bytes take 3.6 ms."""
    found = starts(one_at_a_time(chunk_blocks=3))
    assert found["r2"] == (2 * WHOLE + 3_600 * PS_PER_US, 4, 36)


def test_a_step_waits_for_loads_within_its_budget() -> None:
    """36 tokens take 3.6 ms. Whoever fits the budget is scheduled in front of them, and its step
    ends when that of a parked request does.
    """
    parked, waited = (
        run_groups(one_at_a_time(chunk_blocks=3, sync_load_tokens=tokens)).groups[0]
        for tokens in (35, 36)
    )
    (late,), (early,) = (
        [step for step in steps if step["scheduled"][0] == ("r2", 4, 36)]
        for steps in (parked, waited)
    )
    assert late["schedule_ps"] == 2 * WHOLE + 3_600 * PS_PER_US
    assert early["schedule_ps"] == 2 * WHOLE
    assert early["end_ps"] == late["end_ps"]


def test_a_whole_prompt_is_parked_within_any_budget() -> None:
    """Something has to be left to compute."""
    assert starts(one_at_a_time(sync_load_tokens=1000))["r2"] == (2 * WHOLE + 4 * MS, 1, 39)


def test_who_takes_blocks_of_a_store_waits_for_it() -> None:
    """At 1 MB/s the first prompt is stored from the end of its first step on, for 40 ms. The second
    one, whose blocks are the same, begins then.
    """
    ran = run_groups(one_at_a_time(bytes_per_s=10**6)).groups[0]
    second = next(step for step in ran if step["scheduled"][0][0] == "r1")
    assert second["schedule_ps"] == WHOLE
    assert second["end_ps"] == FIRST + 40 * MS + FIRST


@pytest.mark.parametrize(("tokens", "waits"), [(2, False), (6, True)])
def test_the_end_of_a_sequence_is_taken_before_what_is_stored(tokens: int, waits: bool) -> None:
    """Two modules read ahead, so that the prompt's second block of four tokens is stored but has no
    key, as the one behind it for drafts. The next request takes that one first.
    """
    case = one_at_a_time(bytes_per_s=10**6)
    case["resolved"] |= {
        "num_spec_tokens": 2,
        "num_lookahead_tokens": 2,
        "num_prefill_lookahead_tokens": 2,
    }
    case["requests"] = [
        {"id": "r0", "arrival": 0.0, "segments": [[1, 8]], "output_len": 1},
        {"id": "r1", "arrival": 1e-6, "segments": [[2, tokens]], "output_len": 1},
    ]
    case["config"]["max_num_seqs"] = 1
    first, second = run_groups(case).groups[0][:2]
    assert second["schedule_ps"] == first["end_ps"]
    step_ps = STEP_PS + tokens * TOKEN_PS + SEQUENCE_PS
    stored_ps = 8 * MS if waits else 0
    assert second["end_ps"] - first["end_ps"] == stored_ps + step_ps


def test_a_pool_without_room_stores_nothing() -> None:
    """Ten chunks are offered at once, and nine have no place."""
    assert starts(one_at_a_time(pool_chunks=9))["r2"] == (2 * WHOLE, 40, 0)


def test_who_waits_for_a_chunk_on_its_way_is_overtaken() -> None:
    """Three prompts leave one block of the first. At 60 ms two more repeat it: one loads the other
    nine blocks at once, which takes 3.6 ms, and the other waits for that. Another prompt runs
    meanwhile; the second of its steps is the first to be launched behind the load, and tells of it.
    """
    case = one_at_a_time()
    case["config"]["num_gpu_blocks"] = 35
    arrivals = [(0.0, 1), (0.02, 2), (0.02, 3), (0.02, 4), (0.06, 1), (0.06, 1), (0.06, 5)]
    case["requests"] = [
        {"id": f"r{i}", "arrival": at + i / 1e6, "segments": [[segment, 40]], "output_len": 3}
        for i, (at, segment) in enumerate(arrivals)
    ]
    found = starts(case)
    begins = 60 * MS + 6 * PS_PER_US
    assert found["r6"] == (begins, 40, 0)
    assert found["r4"] == (begins + FIRST + LATER, 1, 39)
    assert found["r5"][0] > found["r4"][0]


class Storing:
    """Runs one request, stores its prompt twice, and waits for the second copy with its last
    step.
    """

    connects, keeps_finished = True, False

    def __init__(self) -> None:
        self.copies: Any = None
        self.waiting, self.step, self.told, self.under_way = list[int](), 0, list[int](), 0

    def use_copies(self, copies: Any) -> None:
        self.copies = copies

    def pending(self) -> bool:
        return self.under_way > 0

    def take_reserved(self) -> list[tuple[int, int]]:
        return []

    def transferred(self, request: int) -> None:
        self.told.append(request)
        self.under_way -= 1

    def add(self, request: int) -> None:
        self.waiting.append(request)

    def build(self, now_ps: int) -> tuple[list[Any], list[int]]:
        if not self.waiting:
            return [], []
        self.step += 1
        if self.step == 1:
            for job in (0, 1):
                self.copies.store(job, 0, 40)
                self.under_way += 1
            return [(0, 40, 0, 0, True)], []
        if self.step == 3:
            self.copies.flush(1)
        return [(0, 1, 38 + self.step, 0, True)], []

    def complete(self) -> list[tuple[int, int, bool]]:
        done = self.step == 3
        if done:
            self.waiting.pop()
        return [(0, 1, done)]

    def gauges(self) -> tuple[int, int, int]:
        return len(self.waiting), 0, 5

    def abort(self, request: int) -> None:
        raise AssertionError("nobody gives up")


def test_a_scheduler_in_python_asks_for_copies_one_after_the_other() -> None:
    """Each takes 4 ms from the end of the first step on, and the last step waits for both."""
    scheduler = Storing()

    def group(group: Any, config: Any, program: Any) -> Any:
        theirs = _native.PythonSchedulerConfig(scheduler, config.kv, config.speculation)
        return _native.GroupSpec(group, theirs, program, record_schedule=True)

    case = one_at_a_time()
    case["requests"] = case["requests"][:1]
    steps = run_groups(case, group).groups[0]
    assert scheduler.told == [0, 0] and scheduler.copies is not None
    assert steps[2]["end_ps"] == FIRST + 8 * MS + LATER


def test_offloading_is_refused_where_it_cannot_be() -> None:
    group = _native.OffloadingCopies([0], [1], [1000], [1000])
    empty = np.empty(0, np.int64)
    source = _native.Source(
        empty, *[empty.astype(np.int32)] * 2, empty.astype(np.int16), empty.astype(np.int32), empty,
        empty.astype(np.int32), np.zeros(1, np.int64), np.empty(0, np.uint64), 1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="needs the network"):
        _native.Simulation(_native.SimulationConfig(source, [], kv_offloading=[group]))
    with pytest.raises(ValueError, match="need the prefix cache"):
        case = one_at_a_time()
        case["config"]["enable_prefix_caching"] = False
        run_groups(case)
    with pytest.raises(ValueError, match="at least one block, not 0"):
        run_groups(one_at_a_time(chunk_blocks=0))

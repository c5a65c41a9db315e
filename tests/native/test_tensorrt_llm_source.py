"""Runs of the scheduler tensorrt_llm are those of TensorRT-LLM's own scheduler in Python."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scheduling.tiny import Options, preempted, run, schedule
from tensorrt_llm_source import source
from tensorrt_llm_twin import Sequence, drawn, same

RECORDED = Path(__file__).parent / "recordings" / "tensorrt_llm.json.gz"
CHECKOUT = "LLMSIM_TENSORRT_LLM"
"""Names a checkout of TensorRT-LLM, or a copy of its scheduler's file in its folders."""


def recorded() -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(gzip.decompress(RECORDED.read_bytes()))["runs"]
    return runs


def ours(requests: list[Sequence], options: Options) -> tuple[Any, Any]:
    sim = run([(one.arrival_ms, one.prompt, one.answer) for one in requests], options)
    return schedule(sim), preempted(sim)


def theirs(one: dict[str, Any]) -> tuple[Any, Any]:
    steps = [[tuple(item) for item in step] for step in one["steps"]]
    return steps, [tuple(pause) for pause in one["paused"]]


def test_runs_are_those_recorded_of_the_source() -> None:
    runs = recorded()
    pauses = cuts = 0
    for one in runs:
        requests, twin = drawn(one["seed"])
        assert ours(requests, same(twin, requests)) == theirs(one), one["seed"]
        pauses += len(one["paused"])
        cuts += sum(
            0 < before < requests[row].prompt for step in one["steps"] for row, _, before in step
        )
    assert len(runs) == 100 and pauses > 30 and cuts > 100


@pytest.mark.parametrize("name", ["capacity", "chunking"])
def test_another_policy_gives_other_runs(name: str) -> None:
    option = f"tensorrt_llm_{name}_policy"
    differing = 0
    for one in recorded()[:30]:
        requests, twin = drawn(one["seed"])
        made = same(twin, requests)
        other = replace(made, extra=made.extra | {option: 1 - made.extra[option]})
        differing += ours(requests, other) != theirs(one)
    assert differing >= 5


def test_the_twin_runs_as_the_source() -> None:
    for one in recorded():
        requests, twin = drawn(one["seed"])
        twin.run(requests)
        assert (twin.steps, twin.paused) == theirs(one), one["seed"]


def test_random_runs_are_those_of_the_source() -> None:
    checkout = os.environ.get(CHECKOUT)
    if not checkout:
        pytest.skip(f"{CHECKOUT} names no checkout of TensorRT-LLM")
    with source(Path(checkout)) as kind:
        for seed in range(400):
            requests, twin = drawn(seed, kind)
            found = ours(requests, same(twin, requests))
            twin.run(requests)
            assert found == (twin.steps, twin.paused), seed

"""Drafts of each request: rates, recorded acceptance, depths, and what became of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scheduling.tiny import Options, run, schedule

import llmsim
from llmsim import _native
from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.lowering.scheduler import acceptance
from llmsim.lowering.speculation.request_speculation import request_speculation
from llmsim.workload import load_trace

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
DRAFTER = {"method": "mtp", "num_speculative_tokens": 4, "acceptance_rate": [0.5]}


def speculation(
    tokens: int, rate: float, depth: Any = None, rates: Any = None, counts: Any = None
) -> dict[str, Any]:
    """The configuration of a group, and what a trace says of its rows."""
    native = _native.SpeculationConfig()
    native.tokens, native.lookahead = tokens, tokens
    native.acceptance = acceptance([rate] * tokens)
    workload: Any = type("Said", (), {})()
    workload.draft_depth = None if depth is None else np.array(depth, np.int32)
    workload.acceptance_rate, workload.accepted_drafts = rates, counts
    native.requests = request_speculation(workload)
    return {"speculation": native}


def drafts(sim: Any) -> dict[str, list[int]]:
    return {name: column.tolist() for name, column in sim.drafts().items()}


@pytest.mark.parametrize("depth", [1, 2])
def test_each_request_has_its_own_rate(depth: int) -> None:
    """Row 0 takes the group's rate 0, row 1 accepts all drafts, row 2 the first one alone."""
    rates = [(), (1.0,), (1.0, 0.0)]
    sim = run(
        [(0.0, 8, 13)] * 3,
        Options(depth=depth, extra=speculation(3, 0.0, rates=rates)),
    )
    found = drafts(sim)
    assert found["accepted_tokens"] == [0, 9, 6]
    assert found["committed_tokens"] == [12, 12, 12]
    assert found["verified_tokens"] == [36, 9, 18]
    counters = sim.counters()
    for name, total in (
        ("drafted_tokens", "verified_tokens"),
        ("accepted_tokens", "accepted_tokens"),
        ("verified_tokens", "committed_tokens"),
    ):
        assert counters[name][0] == sum(found[total])


@pytest.mark.parametrize("depth", [1, 2])
def test_recorded_acceptance_is_replayed_verification_by_verification(depth: int) -> None:
    counts = [(2, 0, 3, 9, 1)]
    sim = run([(0.0, 8, 40)], Options(depth=depth, extra=speculation(3, 0.0, counts=counts)))
    gaps = _native.TokenTimes(sim).inter_token_latencies_of(0)
    starts = [0, *(np.flatnonzero(gaps > 0) + 1).tolist(), len(gaps) + 1]
    # The prompt's token; as recorded, at most 3 drafts; then the group's rate, which is 0.
    assert np.diff(starts).tolist()[:9] == [1, 3, 1, 4, 4, 2, 1, 1, 1]


def test_each_request_has_its_own_depth() -> None:
    sim = run([(0.0, 8, 13)] * 3, Options(depth=1, extra=speculation(3, 1.0, depth=[-1, 1, 0])))
    assert schedule(sim)[1] == [(0, 4, 8), (1, 2, 8), (2, 1, 8)]
    found = drafts(sim)
    assert found["accepted_tokens"] == [9, 6, 0]
    assert found["verified_tokens"] == [9, 6, 0]
    assert found["committed_tokens"] == [12, 12, 0]
    assert found["drafted_tokens"][2] == 0


def test_without_speculation_there_are_no_columns() -> None:
    assert run([(0.0, 8, 3)], Options()).drafts() is None
    result = llmsim.run(CLUSTER, "synthetic:n=2,rate=1,input=9,output=4", cost_source="roofline")
    assert "drafted_tokens" not in result.requests


def traced(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "trace.jsonl"
    base = {"input_toks": 60, "output_toks": 50, "arrival_time_ns": 0}
    path.write_text("".join(json.dumps(base | line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_trace_says_what_becomes_of_drafts(tmp_path: Path) -> None:
    path = traced(
        tmp_path,
        {"acceptance_rate": 1},
        {"acceptance_rate": [1, 0.0]},
        {"accepted_drafts": [4, 4]},
        {"num_speculative_tokens": 1},
        {},
    )
    result = llmsim.run(CLUSTER, path, cost_source="roofline", speculative_config=DRAFTER)
    table = result.requests
    assert table.accepted_tokens[0] == table.verified_tokens[0] == 40
    assert (table.committed_tokens == 49).all()
    assert table.accepted_tokens[1] == 25 and table.verified_tokens[3] <= 49
    assert (table.drafted_tokens >= table.verified_tokens).all()
    assert (table.verified_tokens >= table.accepted_tokens).all()
    block = result.summary["speculation"]
    assert block["accepted_tokens"] == table.accepted_tokens.sum()
    assert block["drafted_tokens"] == table.verified_tokens.sum()
    unused = llmsim.run(CLUSTER, path, cost_source="roofline")
    assert any("of the trace changes nothing" in note for note in unused.notes)


def test_values_of_a_session_hold_for_its_calls_and_read_back(tmp_path: Path) -> None:
    from llmsim.export.jsonl import write_jsonl

    call = {"input_toks": 5, "output_toks": 5}
    calls = [call, call | {"acceptance_rate": [0.5, 0.25]}, call | {"num_speculative_tokens": 0}]
    path = tmp_path / "session.jsonl"
    line = {"arrival_time_ns": 0, "acceptance_rate": 0.75, "sub_requests": calls}
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    first = load_trace(path, known_models=[], granularity=0)
    assert first.acceptance_rate == [(0.75,), (0.5, 0.25), (0.75,)]
    assert first.draft_depth is not None and first.draft_depth.tolist() == [-1, -1, 0]
    write_jsonl(first, tmp_path / "again.jsonl")
    again: Workload = load_trace(tmp_path / "again.jsonl", known_models=[], granularity=0)
    assert again.acceptance_rate == first.acceptance_rate


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"acceptance_rate": 1.5}, '"acceptance_rate" is 1.5, but must be a number from 0 to 1'),
        ({"acceptance_rate": -0.1}, "must be a number from 0 to 1"),
        ({"acceptance_rate": []}, "or a list of 1 to 64"),
        ({"acceptance_rate": [0.5] * 65}, "or a list of 1 to 64"),
        ({"acceptance_rate": [0.5, "x"]}, "must be a number from 0 to 1"),
        ({"acceptance_rate": True}, "is true, but must be a number"),
        ({"acceptance_rate": None}, "is null, but must be a number"),
        ({"accepted_drafts": 3}, "must be a list of integers from 0 to 64, one for each"),
        ({"accepted_drafts": []}, "must be a list of integers from 0 to 64"),
        ({"accepted_drafts": [1, -1]}, '"accepted_drafts[1]" is -1'),
        ({"accepted_drafts": [1, 65]}, '"accepted_drafts[1]" is 65'),
        ({"accepted_drafts": [1.0]}, '"accepted_drafts[0]" is 1.0'),
        ({"num_speculative_tokens": -1}, "must be an integer from 0 to 64"),
        ({"num_speculative_tokens": 65}, "must be an integer from 0 to 64"),
        ({"num_speculative_tokens": "3"}, "must be an integer from 0 to 64"),
    ],
)
def test_bad_values_are_said(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    path = traced(tmp_path, {}, fields)
    with pytest.raises(InputError) as caught:
        load_trace(path, known_models=[], granularity=16)
    assert said in str(caught.value) and f"{path}:2:" in str(caught.value)

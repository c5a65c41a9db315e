"""What `trace-enabled` and `track-local-mem` of a system file write."""

import json
from pathlib import Path

import pytest

from engine import chakra_file as ck
from engine.command import Result, run_case

KEEPS = {"track-local-mem": 1, "trace-enabled": 1}
NODES = [
    ck.node(1, ck.COMP, micros=5, inputs=["a", "100"], outputs=["b", "200"]),
    ck.node(2, ck.COMP, (1,), micros=7, inputs=["b", "200"], outputs=["c", "50"]),
    ck.node(3, ck.COMP, (2,), micros=1, inputs=["c", "50"], outputs=["d", "400"]),
]


def run(
    command: Path, scratch: Path, rules: str, traces: list[list[bytes]], system: dict[str, object]
) -> Result:
    case = ck.write_case(scratch / "case", traces, ck.network("FullyConnected", 2), system)
    return run_case(command, case, scratch, rules=rules)


def test_the_log_says_when_nodes_were_issued_and_ended(command: Path, tmp_path: Path) -> None:
    """Under default rules; strict ones write upstream's log (`test_upstream_output.py`)."""
    assert run(command, tmp_path, "default", [NODES] * 2, KEEPS).exit_code == 0
    lines = (tmp_path / "log" / "log.log").read_text().splitlines()
    assert len(lines) == 2 * 2 * len(NODES)
    of_second = [line.split(",", 2)[2] for line in lines if line.split(",")[1] == "npu=1"]
    assert of_second == [
        "cycle=0,node_id=1,name=n1",
        "cycle=5000,node_id=1,name=n1",
        "cycle=5000,node_id=2,name=n2",
        "cycle=12000,node_id=2,name=n2",
        "cycle=12000,node_id=3,name=n3",
        "cycle=13000,node_id=3,name=n3",
    ]
    assert [line.split(",")[0] for line in lines if "npu=0" in line] == ["issue", "callback"] * 3


@pytest.mark.parametrize("rules", ["strict", "default"])
def test_tensors_live_from_their_first_node_to_their_last(
    command: Path, tmp_path: Path, rules: str
) -> None:
    result = run(
        command, tmp_path, rules, [NODES] * 2, {**KEEPS, "local-mem-trace-filename": "tensors"}
    )
    assert result.report is not None
    assert [npu["peak_memory_bytes"] for npu in result.report["npus"]] == [
        450,
        450,
    ]  # c and d in the third node
    events = [
        event
        for event in json.loads((tmp_path / "tensors.json").read_text())["traceEvents"]
        if event["pid"] == 0
    ]
    assert [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"] == [
        (0, 300),
        (5, 250),
        (12, 450),
        (13, 0),
    ]
    begin = {event["name"]: event["ts"] for event in events if event["ph"] == "b"}
    end = {event["name"]: event["ts"] for event in events if event["ph"] == "e"}
    assert {name: (begin[name], end[name]) for name in "abcd"} == {
        "a": (0, 5),
        "b": (0, 12),
        "c": (5, 13),
        "d": (12, 13),
    }
    reads = [
        (event["name"], event["ts"]) for event in events if event["ph"] == "X" and event["tid"] == 1
    ]
    assert reads == [("a", 0), ("b", 5), ("c", 12)]


def test_nodes_without_tensors_are_an_error_under_strict_rules_only(
    command: Path, tmp_path: Path
) -> None:
    plain = [[ck.node(7, ck.COMP, micros=1)]] * 2
    refused = run(command, tmp_path, "strict", plain, KEEPS)
    assert refused.exit_code == 2
    assert 'node 7 (COMP "n7"): attribute inputs is missing' in refused.errors
    assert run(command, tmp_path, "default", plain, KEEPS).exit_code == 0


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (["a"], "has an odd number of entries"),
        (["a", "x"], 'gives "x" bytes'),
        (["a", "-1"], 'gives "-1" bytes'),
    ],
)
def test_malformed_tensors_are_named(
    command: Path, tmp_path: Path, tensors: list[str], sentence: str
) -> None:
    traces = [[ck.node(7, ck.COMP, micros=1, inputs=tensors, outputs=["b", "1"])]] * 2
    refused = run(command, tmp_path, "default", traces, KEEPS)
    assert refused.exit_code == 2
    assert f"attribute inputs {sentence}" in refused.errors


@pytest.mark.parametrize("option", ["node-times", "link-counters", "timeline"])
def test_what_cannot_be_written_is_said_before_the_run(
    command: Path, tmp_path: Path, option: str
) -> None:
    case = ck.write_case(tmp_path / "case", [NODES] * 2, ck.network("FullyConnected", 2), {})
    result = run_case(
        command, case, tmp_path, flags=(f"--{option}={tmp_path}/nowhere/x",), rules="default"
    )
    assert (result.exit_code, result.report) == (2, None)
    assert f"cannot write {tmp_path}/nowhere/x: No such file or directory" in result.errors
    assert not (tmp_path / "node_times.csv").exists()

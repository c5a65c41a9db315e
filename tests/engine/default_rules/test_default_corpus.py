"""The recorded cases under default rules: what upstream fails on has a stated end, and all others
run soundly.
"""

import json
from pathlib import Path

import pytest
from shared_data import SHARED, shared

from engine.command import Result, run_case

CORPUS = SHARED / "astra_conformance"
BACKENDS = ("unaware", "aware", "fair-share")
# Exit code, and a part of the sentence; docs/reference/engine/strict.md lists them.
EDGES = {
    "delay_local_mem_bw_missing": (0, ""),
    "delay_sharedbus_LogGP": (2, "model-shared-bus is not supported"),
    "edge_AG_size_lt_splits": (0, ""),
    "edge_DBT_allgather": (2, "double binary tree all-gather is not possible"),
    "edge_coll_reduce_unsupported": (0, ""),
    "edge_collective_latency_zero_fc_tiny": (0, ""),
    "edge_comm_on_cpu": (2, "only compute runs on the CPU"),
    "edge_comm_size_string": (2, "comm_size is a string_val"),
    "edge_custom_collective_splits4_hang": (0, ""),
    "edge_empty_et": (0, ""),
    "edge_group_id0": (2, "comm_group.json"),
    "edge_group_single_npu": (0, ""),
    "edge_missing_parent": (2, "which is not in the file"),
    "edge_no_splits": (0, ""),
    "edge_pg_name_text": (2, "pg_name is"),
    "edge_recv_without_send": (3, "which are never sent"),
    "edge_send_size0": (0, ""),
    "edge_send_to_self": (2, "the NPU of the file itself"),
    "invalid_node_root_hang": (0, ""),
    "mem_none_error": (2, "NO_MEMORY_EXPANSION"),
    "metadata_node": (0, ""),
    "misc_duplicate_ids": (2, "appears twice"),
    "rendezvous_AR": (2, "--rendezvous-protocol is not there"),
    "roofline_tensor0_only_child_hang": (0, ""),
}


def run(command: Path, name: str, scratch: Path, backend: str) -> Result:
    expected = json.loads((CORPUS / name / "expected.json").read_text())
    flags = tuple(expected["extra_flags"])
    return run_case(
        command,
        CORPUS / name,
        scratch,
        backend,
        flags,
        expected["cwd_is_case_dir"],
        rules="default",
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_edges_end_as_documented(command: Path, tmp_path: Path, backend: str) -> None:
    shared("astra_conformance")
    tagged = {
        path.parent.name
        for path in CORPUS.glob("*/expected.json")
        if "edge" in json.loads(path.read_text())["tags"] or path.parent.name.startswith("edge")
    }
    assert tagged - {"edge_switch_of_2"} <= EDGES.keys()
    for name, (code, part) in EDGES.items():
        result = run(command, name, tmp_path, backend)
        assert result.exit_code == code, (name, result.errors)
        assert part in result.errors, name


def test_all_others_end_and_congestion_never_helps(command: Path, tmp_path: Path) -> None:
    shared("astra_conformance")
    names = sorted(path.parent.name for path in CORPUS.glob("*/expected.json"))
    others = [name for name in names if name not in EDGES and not name.startswith("large")]
    assert len(others) > 80
    for name in others:
        ends = {}
        for backend in BACKENDS:
            result = run(command, name, tmp_path, backend)
            assert result.exit_code == 0, (name, backend, result.errors)
            finish = result.finish_ps()
            assert all(time is not None for time in finish)
            ends[backend] = max(time or 0 for time in finish)
            for key, (issue, done) in result.times().items():
                assert 0 <= issue <= done <= ends[backend], (name, key)
        assert ends["unaware"] <= ends["aware"], name

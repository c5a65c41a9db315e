"""Strict rules against recorded results of ASTRA-sim: finish times, node times and statistics, both
networks.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from shared_data import SHARED, shared

from engine.command import Result, run_case

CORPUS = SHARED / "astra_conformance"
BACKENDS = ("unaware", "aware")
# A path of upstream that strict rules refuse (docs/reference/engine/strict.md).
NOT_SUPPORTED = ("delay_sharedbus_LogGP",)
# Upstream's failures that are no failures here: what they give is written beside them.
SOUND_EDGES = {
    "delay_local_mem_bw_missing",  # reductions take no time
    "edge_DBT_allgather",  # an all-reduce, as upstream
    "edge_collective_latency_zero_fc_tiny",  # everything ends at 0 ns
    "metadata_node",  # ends at once
    "misc_duplicate_ids",  # the last record wins
}


@dataclass(frozen=True)
class Case:
    name: str
    expected: dict[str, Any]

    def recorded(self, backend: str) -> dict[str, Any] | None:
        found = self.expected.get(f"congestion_{backend}")
        assert found is None or isinstance(found, dict)
        return found

    def run(self, executable: Path, scratch: Path, backend: str) -> Result:
        flags = tuple(self.expected["extra_flags"])
        in_case = self.expected["cwd_is_case_dir"]
        return run_case(executable, CORPUS / self.name, scratch, backend, flags, in_case)


def cases(edge: bool) -> Iterator[Case]:
    for path in sorted(CORPUS.glob("*/expected.json")):
        case = Case(path.parent.name, json.loads(path.read_text()))
        if case.name not in NOT_SUPPORTED and ("edge" in case.expected["tags"]) == edge:
            yield case


def differences(
    case: Case, recorded: dict[str, Any], result: Result, backend: str
) -> Iterator[str]:
    if result.exit_code != 0 or result.report is None:
        yield f"exit {result.exit_code}: {result.errors}"
        return
    npus = {str(npu["npu"]): npu for npu in result.report["npus"]}
    for key, name in (("finish_cycles", "finish_ns"), ("exposed_comm_cycles", "exposed_comm_ns")):
        wrong = {
            npu: (npus[npu][name], want)
            for npu, want in recorded[key].items()
            if npus[npu][name] != want
        }
        if wrong:
            yield f"{name} (ours, recorded): {dict(list(wrong.items())[:4])}"
    for npu, want in recorded.get("statistics", {}).items():
        if npus[npu]["statistics"] != want:
            yield f"statistics of NPU {npu}: {npus[npu]['statistics']} is not {want}"
            break
    nodes = CORPUS / case.name / f"nodes_{backend}.csv"
    if nodes.exists():
        wrong_nodes = set(nodes.read_text().split()[1:]) ^ set(result.node_times)
        if wrong_nodes:
            yield f"node times: {sorted(wrong_nodes)[:4]}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_recorded_time(command: Path, tmp_path: Path, backend: str) -> None:
    """Every case that ASTRA-sim itself completes: per NPU, per node, and the statistics, to the
    nanosecond.
    """
    shared("astra_conformance")
    wrong = {}
    ran = 0
    for case in cases(edge=False):
        recorded = case.recorded(backend)
        if recorded is None or recorded["exit"] != 0:
            continue
        ran += 1
        found = list(differences(case, recorded, case.run(command, tmp_path, backend), backend))
        if found:
            wrong[case.name] = found
    assert ran >= 100
    assert not wrong, f"{len(wrong)} of {ran} cases differ: {json.dumps(wrong, indent=1)[:4000]}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_upstream_fails_on_ends_with_a_sentence_or_a_sound_result(
    command: Path, tmp_path: Path, backend: str
) -> None:
    shared("astra_conformance")
    for case in cases(edge=True):
        if case.recorded(backend) is None:
            continue
        result = case.run(command, tmp_path, backend)
        if case.name in SOUND_EDGES:
            assert result.exit_code == 0, (case.name, result.errors)
        else:
            assert result.exit_code in (2, 3), (case.name, result.exit_code)
            assert result.errors.startswith("error: "), case.name


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tree_asked_for_an_all_gather(command: Path, tmp_path: Path, backend: str) -> None:
    """Upstream carries out an all-reduce and ends: to the nanosecond."""
    shared("astra_conformance")
    case = next(case for case in cases(edge=True) if case.name == "edge_DBT_allgather")
    recorded = case.recorded(backend)
    assert recorded is not None and len(recorded["finish_cycles"]) == 4
    assert not list(differences(case, recorded, case.run(command, tmp_path, backend), backend))


def test_refusals_of_the_aware_network(command: Path, tmp_path: Path) -> None:
    """More than one dimension: upstream exits with 255, strict rules with a sentence."""
    shared("astra_conformance")
    for case in cases(edge=False):
        recorded = case.recorded("aware")
        if recorded is not None and recorded["exit"] == 255:
            result = case.run(command, tmp_path, "aware")
            assert result.exit_code == 2
            assert "one dimension" in result.errors

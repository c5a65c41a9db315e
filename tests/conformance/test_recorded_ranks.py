"""Data-parallel ranks that hand KV over, against recordings of vLLM's own busy loop."""

from pathlib import Path

import pytest

from llmsim.scheduling.conformance.connectors import groups_of, ranks_of
from llmsim.scheduling.conformance.random_cases import random_case
from llmsim.scheduling.conformance.recorded import load_recording, replay

RECORDINGS = Path(__file__).parent / "recordings" / "ranks"


@pytest.mark.parametrize("release", ["0.24.0", "0.28.0", "0.33.0"])
def test_ranks_hear_of_moved_kv_when_those_of_vllm_do(release: str) -> None:
    """Random cases of 16 requests that `vllm.worker SEED 1 16 FOLDER` wrote with the release."""
    paths = sorted(RECORDINGS.glob(f"vllm_{release}_*.json.gz"))
    verdicts = [replay(path) for path in paths]
    assert [verdict.difference for verdict in verdicts] == [""] * 7
    assert sum(verdict.steps for verdict in verdicts) > 2000


def test_the_recordings_have_ranks_on_both_sides() -> None:
    cases = [load_recording(path) for path in RECORDINGS.glob("*.json.gz")]
    assert {ranks_of(case) for case in cases} == {(1, 2), (2, 1), (2, 2), (2, 4), (4, 2)}
    assert {case["config"]["async_scheduling"] for case in cases} == {False, True}
    assert any("cancel_after" in request for case in cases for request in case["requests"])


def test_random_cases_have_ranks_where_kv_is_pulled() -> None:
    cases = [random_case(seed, 5) for seed in range(1500)]
    with_ranks = [case for case in cases if max(ranks_of(case)) > 1]
    assert len(with_ranks) > 20
    for case in with_ranks:
        config = case["config"]
        assert not config["connector"]["push"]
        assert not {"pipeline_parallel_size", "speculative"} & set(config)
        prefills, decodes = ranks_of(case)
        roles = [group.role.name for group in groups_of(case)]
        assert roles == ["PREFILL"] * prefills + ["DECODE"] * decodes

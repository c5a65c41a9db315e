"""SGLang forms steps ahead but for what its releases cannot: there devices wait for the host."""

from typing import Any

import pytest

import llmsim
from llmsim.config.engine.args import EngineArgs

LOAD = "synthetic:n=4,rate=50,input=fixed:64,output=fixed:8"
DENSE, STATES = "meta-llama/Llama-3.2-1B", "Qwen/Qwen3-Next-80B-A3B-Instruct"
GAP_PS = 610_000_000


def ran(model: str, profile: str, *, devices: int = 1, **engine: Any) -> Any:
    cluster = llmsim.Cluster.build(model, "H200", tp=devices).fields()
    cluster["engine"] = engine
    return llmsim.run(cluster, LOAD, engine_profile=profile, cost_source="roofline")


def settled(*args: Any, **options: Any) -> tuple[bool, int]:
    """Whether steps overlap, and the gap between them."""
    engine: EngineArgs = ran(*args, **options)._prepared.lowered.groups[0].engine
    return bool(dict(engine.scheduler_parameters)["sglang_overlap"]), engine.host_gap_ps


@pytest.mark.parametrize(
    ("profile", "overlaps"),
    [
        ("sglang-0.5.3", True),
        ("sglang-0.5.7", False),
        ("sglang-0.5.12", False),
        ("sglang-0.5.15", True),
    ],
)
def test_models_with_states_overlap_by_release(profile: str, overlaps: bool) -> None:
    assert settled(STATES, profile, devices=4) == (overlaps, 0 if overlaps else GAP_PS)


def test_states_without_cached_prefixes_overlap() -> None:
    found = settled(STATES, "sglang-0.5.7", devices=4, enable_prefix_caching=False)
    assert found == (True, 0)


def test_the_host_lengthens_steps_where_nothing_overlaps() -> None:
    """By 0.61 ms, the prompt's and those of decodes alike."""
    assert settled(DENSE, "sglang-0.5.7") == (True, 0)
    assert settled(DENSE, "sglang-0.5.7", sglang_overlap=False) == (False, GAP_PS)
    assert settled(DENSE, "sglang-0.5.7", sglang_overlap=False, host_gap_ns=7) == (False, 7_000)
    gap, none = (
        ran(DENSE, "sglang-0.5.7", sglang_overlap=False, **more).steps
        for more in ({}, {"host_gap_ns": 0})
    )
    longer_ps = (gap.end_ps - gap.start_ps)[:6] - (none.end_ps - none.start_ps)[:6]
    assert longer_ps.tolist() == [GAP_PS] * 6

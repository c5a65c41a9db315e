"""Steps whose copies and activations are transfers take the folded time where nobody else moves."""

from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.api import run as api_run
from llmsim.api.preparation.compiled import CompiledClusters
from llmsim.lowering import deployment as lowering_of_deployment

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = (
    "cpu_attention_instance",
    "single_node_cxl_instance",
    "single_node_moe_offload_instance",
    "single_node_pim_instance",
)
"""Bundled clusters with one group that keeps something elsewhere."""


@pytest.mark.parametrize("name", CLUSTERS)
def test_bundled_clusters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contended_groups = []

    def every_group(deployment: Any, groups: Any, **_: bool) -> frozenset[int]:
        offloaded = zip(deployment.groups, groups, strict=True)
        found = frozenset(group.index for group, lowered in offloaded if lowered.offload)
        contended_groups.append(found)
        return found

    cluster = ROOT / "cluster_config" / f"{name}.json"
    dataset = ROOT / "dataset" / "example_10.jsonl"
    folded = llmsim.run(cluster, dataset)
    assert len(folded.requests) == 10
    monkeypatch.setattr(lowering_of_deployment, "meeting_groups", every_group)
    monkeypatch.setattr(api_run, "_COMPILED", CompiledClusters())
    contended = llmsim.run(cluster, dataset)
    assert contended_groups == [{0}]
    assert contended.requests.equals(folded.requests)

"""The cluster files that come with the project run; those that people already have parse."""

from pathlib import Path

import pytest

from llmsim.config import EngineOverrides, load_cluster, resolve
from tests.shared_data import SHARED, shared

ROOT = Path(__file__).resolve().parents[2]
OURS = sorted((ROOT / "cluster_config").glob("*.json"))
ARTIFACT = sorted(
    [
        *SHARED.glob("artifact/cluster_config/*.json"),
        *SHARED.glob("artifact/figure_5/*/config/*.json"),
    ]
)
GROUND_TRUTH = sorted(SHARED.glob("groundtruth/*/cluster.json"))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_our_files_resolve_and_are_documented(path: Path) -> None:
    assert f"| {path.name} |" in (ROOT / "cluster_config" / "README.md").read_text(encoding="utf-8")
    cluster = load_cluster(path)
    deployment = resolve(cluster, EngineOverrides())
    assert deployment.cluster_path == str(path)
    assert deployment.groups
    assert all(group.engine.engine_profile == "vllm-0.24" for group in deployment.groups)
    for group in deployment.groups:
        if group.hardware.startswith(("TPU", "Xeon")):
            continue  # other defaults
        large = group.memory.capacity_bytes >= 70 << 30
        assert group.engine.max_num_batched_tokens == (8192 if large else 2048)


def test_the_tensor_parallel_example_uses_four_devices() -> None:
    (group,) = resolve(
        load_cluster(ROOT / "cluster_config" / "h100_llama31_70b_tp4.json"), EngineOverrides()
    ).groups
    assert (group.num_devices, group.tp, group.pp) == (4, 4, 1)


@pytest.mark.parametrize(
    "path", ARTIFACT or [None], ids=lambda path: path.stem if path else "absent"
)
def test_the_files_of_the_published_artifact_parse(path: Path | None) -> None:
    if path is None:
        shared("artifact/cluster_config")
    assert path is not None
    cluster = load_cluster(path)
    groups = resolve(cluster, EngineOverrides()).groups
    assert len(groups) == sum(len(node.instances) for node in cluster.nodes)


@pytest.mark.parametrize(
    "path", GROUND_TRUTH or [None], ids=lambda path: path.parent.name if path else "absent"
)
def test_the_measured_deployments_parse(path: Path | None) -> None:
    if path is None:
        shared("groundtruth")
    assert path is not None
    (group,) = resolve(
        load_cluster(path), EngineOverrides(max_num_seqs=128, max_num_batched_tokens=2048)
    ).groups
    assert group.hardware == "RTXPRO6000"
    assert group.memory.bandwidth_bytes_per_s == 1_597_000_000_000
    assert group.engine.gpu_memory_utilization == 0.9
    assert group.engine.origin["gpu_memory_utilization"] == "cluster file"
    assert max(group.engine.cuda_graph_sizes) == 256

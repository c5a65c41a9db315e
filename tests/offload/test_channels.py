"""Memory that computes is shared: each instance has channels in proportion to its devices."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from tests.offload.test_placement import TRACE, cluster


def channels(tmp_path: Path, devices: list[int], **changes: dict[int, Any]) -> list[int]:
    """Of each rank of the instances that attend in memory; `changes` by the number of
    the instance.
    """
    document = cluster(enable_attn_offloading=True)
    node = document["nodes"][0]
    node["cpu_mem"]["pim_config"] = "HBM2_1GB_2000_pim"
    [one] = node["instances"]
    node["instances"] = [{**one, "num_npus": n, "tp_size": n} for n in devices]
    for name, values in changes.items():
        for index, value in values.items():
            node["instances"][index][name] = value
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    options = ["--cluster-config", str(path), "--dataset", str(TRACE), "--cost-source", "roofline"]
    groups = prepare(checked_options(options)).lowered.groups
    plans = [group.offload.pim for group in groups if group.offload is not None]
    return [plan.channels for plan in plans if plan is not None]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [([1], [512]), ([4], [128]), ([1, 1], [256, 256]), ([2, 4, 2], [64, 64, 64])],
)
def test_instances_share_by_their_devices(
    tmp_path: Path, devices: list[int], expected: list[int]
) -> None:
    """512 GiB are 512 channels of one."""
    assert channels(tmp_path, devices) == expected


def test_who_attends_on_its_device_has_none(tmp_path: Path) -> None:
    assert channels(tmp_path, [1, 1], enable_attn_offloading={0: False}) == [512]

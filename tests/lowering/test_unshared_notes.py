"""A run says which collectives take their own times although KV moves on the same links."""

from pathlib import Path
from typing import Any

import pytest

from tests.lowering.clusters import cluster, lowered, model


def split(folder: Path, **keys: Any) -> dict[str, Any]:
    """Two ranks with prompts, two with answers."""
    path = model(folder, experts=8)
    sides = [cluster(path, members=2, dp_group=role, pd_type=role, **keys) for role in ("prefill", "decode")]
    instances = [entry for side in sides for entry in side["nodes"][0]["instances"]]
    return {**sides[0], "nodes": [{"instances": instances}]}


@pytest.mark.parametrize(("backend", "noted"), [("allgather_reducescatter", False), ("deepep_low_latency", True)])
def test_exchanges_of_rows_are_named(tmp_path: Path, backend: str, noted: bool) -> None:
    notes = lowered(split(tmp_path, all2all_backend=backend)).notes
    assert any("exchanges of rows take their own times" in note for note in notes) == noted

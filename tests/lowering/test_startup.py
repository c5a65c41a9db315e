"""What vLLM refuses when it starts is said in a note of the run."""

from typing import Any

import pytest

import llmsim

LOAD = "synthetic:n=1,rate=1,input=40,output=2"


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({"block_size": 7}, True),
        ({"block_size": 24}, True),
        ({"block_size": 16}, False),
        ({"block_size": 64}, False),
        ({}, False),
        ({"block_size": 7, "scheduler": "sglang", "engine_profile": "sglang-0.5.23"}, False),
    ],
)
def test_blocks_that_no_attention_backend_takes(options: dict[str, Any], noted: bool) -> None:
    cluster = llmsim.Cluster.build("Qwen/Qwen3-0.6B", "H100")
    found = llmsim.run(cluster, LOAD, cost_source="roofline", **options).summary["notes"]
    said = [note for note in found if "would not start with block_size" in note]
    assert len(said) == noted
    if noted:
        assert f"block_size {options['block_size']} (command line): " in said[0]

"""What a run says about the KV that its decode groups take: bytes by hand, for each
kind of layer.
"""

import json
from pathlib import Path

import pytest
from test_runs import cluster, instance

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options

HYBRID, WINDOWED = "Qwen/Qwen3-Next-80B-A3B-Instruct", "openai/gpt-oss-20b"


def note(tmp_path: Path, model: str, tp: int) -> str:
    one = {
        "model_name": model,
        "tp_size": tp,
        "npu_mem": {"mem_size": 400, "mem_bw": 4800, "mem_latency": 0},
    }
    document = cluster([instance("prefill", **one), instance("decode", **one)])
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    options = [
        "--cluster-config",
        str(path),
        "--dataset",
        "synthetic:n=1,rate=1,input=fixed:9,output=fixed:2",
    ]
    prepared = prepare(checked_options(options))
    return next(text for text in prepared.lowered.notes if text.startswith("disaggregated"))


@pytest.mark.parametrize("tp", [1, 2])
def test_layers_that_keep_all_and_layers_with_a_window(tmp_path: Path, tp: int) -> None:
    """12 layers of each kind with 8 heads of 64; a window of 128 tokens touches nine
    blocks of 16.
    """
    per_token = 12 * 2 * 8 * 64 * 2
    expected = f"{WINDOWED}: {per_token} B per token, {per_token} B per token in the last 144"
    assert (
        note(tmp_path, WINDOWED, tp) == f"disaggregated: KV is pulled, whole prompts ({expected})"
    )


@pytest.mark.parametrize("tp", [1, 2])
def test_layers_that_keep_a_state(tmp_path: Path, tp: int) -> None:
    """12 layers of attention with 2 heads of 256; 36 with 32 heads of 128 x 128 and three columns
    of convolution.
    """
    per_token = 12 * 2 * 2 * 256 * 2
    state = 36 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)) * 2
    expected = f"{HYBRID}: {per_token} B per token, {state} B of state"
    assert note(tmp_path, HYBRID, tp) == f"disaggregated: KV is pulled, whole prompts ({expected})"

"""A model made narrow keeps what Python does per layer, and loses its arithmetic."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmsim.model import load_model
from llmsim.profiler.serve.host_time import WIDTHS, host_gap_ns, narrow_fields
from llmsim.profiler.serve.serve_log import Job, ServeOptions, Step

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "head_dim": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}


@pytest.mark.parametrize("fields", [LLAMA, MOE], ids=["dense", "experts"])
def test_layers_heads_and_experts_stay(fields: dict[str, object], tmp_path: Path) -> None:
    models = []
    for name, content in (("wide", fields), ("narrow", narrow_fields(fields))):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        models.append(load_model(str(tmp_path / f"{name}.json")))
    wide, narrow = models
    assert (narrow.num_layers, narrow.num_experts) == (wide.num_layers, wide.num_experts)
    assert narrow.num_attention_heads == wide.num_attention_heads
    assert narrow.num_key_value_heads == wide.num_key_value_heads
    assert narrow.hidden_size == 8 * narrow.num_attention_heads < wide.hidden_size
    assert all(
        narrow_fields(fields)[name] == width for name, width in WIDTHS.items() if name in fields
    )


def test_the_gap_is_a_step_less_its_kernels(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra llmsim[profiler])")
    torch.set_num_threads(1)
    options = ServeOptions(
        "unused", "unused", tmp_path, dtype="fp32", max_num_seqs=4, max_num_batched_tokens=64
    )
    served: list[tuple[ServeOptions, Sequence[Job]]] = []

    def run(narrow: ServeOptions, jobs: Sequence[Job]) -> list[Step]:
        served.append((narrow, jobs))
        decode = ((1, 20),) * 4
        return [
            Step(0.0, 9.0, ((16, 0),) * 4),
            Step(9.0, 9.5, decode),
            Step(9.5, 10.0, decode),
            Step(10.0, 10.1, decode),
        ]

    gap = host_gap_ns(torch, torch.device("cpu"), options, LLAMA, run, tmp_path)
    assert (
        400_000_000 < gap < 500_000_000
    )  # the median decode step of half a second, less small kernels
    assert served[0][0].model.endswith("narrow.json") and len(served[0][1]) == 4
    alone = replace(options, max_num_seqs=3)
    assert (
        host_gap_ns(torch, torch.device("cpu"), alone, LLAMA, run, tmp_path) == 0
    )  # no full decode step was seen

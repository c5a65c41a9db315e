"""Tiny models of several kinds: measured on the CPU, then simulated from what was measured."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import run_main
from llmsim.profiler.bundle.plan import Limits
from llmsim.profiler.cli.measure import MeasureOptions, measure

TINY = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 512,
    "torch_dtype": "float32", "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
}  # fmt: skip
LIMITS = Limits(max_tokens=16, max_seqs=2, max_kv=64, chunk_factor=4.0, kv_factor=4.0)


def written(folder: Path, fields: dict[str, Any]) -> Path:
    path = folder / "models" / f"tiny-{fields['model_type']}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(fields))
    return path


def measured(path: Path, **changes: Any) -> Path:
    """A bundle of the model below `perf` beside it, of processor time on one thread."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra llmsim[profiler])")
    torch.set_grad_enabled(False)
    options = {
        "limits": LIMITS,
        "dtype": "fp32",
        "device": "cpu",
        "threads": 1,
        "clock": "cpu",
        "skew": False,
        **changes,
    }
    return measure(MeasureOptions(str(path), "cpu", path.parent.parent / "perf", (1,), **options))


def column(path: Path, name: str) -> list[str]:
    return [row[name] for row in csv.DictReader(path.open())]


def simulated(model: Path, lengths: list[tuple[int, int]]) -> list[dict[str, str]]:
    """Requests one after the other, priced by the bundle alone."""
    folder = model.parent.parent
    instance = {
        "model_name": str(model),
        "hardware": "cpu",
        "npu_mem": {"mem_size": 64, "mem_bw": 100, "mem_latency": 0},
        "num_npus": 1,
        "tp_size": 1,
        "pd_type": None,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 2,
        "enable_prefix_caching": False,
        "dtype": "float32",
    }
    node = {
        "num_instances": 1,
        "cpu_mem": {"mem_size": 8, "mem_bw": 9, "mem_latency": 0},
        "instances": [instance],
    }
    cluster = {"num_nodes": 1, "link_bw": 16, "link_latency": 0, "nodes": [node]}
    (folder / "cluster.json").write_text(json.dumps(cluster))
    trace = [
        {"input_toks": prompt, "output_toks": answer, "arrival_time_ns": 10**12 * index}
        for index, (prompt, answer) in enumerate(lengths)
    ]
    (folder / "trace.jsonl").write_text("\n".join(map(json.dumps, trace)) + "\n")
    files = {
        "cluster-config": "cluster.json",
        "dataset": "trace.jsonl",
        "profile-dir": "perf",
        "output": "out.csv",
    }
    given = [part for name, file in files.items() for part in (f"--{name}", str(folder / file))]
    assert run_main([*given, "--cost-source", "bundle"]) == 0
    return list(csv.DictReader((folder / "out.csv").open()))

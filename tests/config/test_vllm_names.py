"""vLLM's names stand for ours: in cluster files, in Python, and on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.cli import main
from llmsim.config import EngineOverrides, parse_cluster, resolve

ROOT = Path(__file__).resolve().parents[2]
MODEL = "meta-llama/Llama-3.1-8B"
MEMORY = {"mem_size": 80, "mem_bw": 3350}


def groups(**keys: Any) -> tuple[Any, ...]:
    instance = {"model_name": MODEL, "hardware": "H100", "npu_mem": MEMORY, **keys}
    fields = {"link_bw": 450, "link_latency": 1000, "nodes": [{"instances": [instance]}]}
    return resolve(parse_cluster(json.dumps(fields)), EngineOverrides()).groups


def test_sizes_of_a_cluster_file() -> None:
    (mine,) = groups(tensor_parallel_size=4, pipeline_parallel_size=2)
    (ours,) = groups(tp_size=4, pp_size=2)
    assert (mine.tp, mine.pp, mine.num_devices) == (ours.tp, ours.pp, ours.num_devices) == (4, 2, 8)
    (both,) = groups(tp_size=2, tensor_parallel_size=2)
    assert both.tp == 2
    with pytest.raises(llmsim.InputError, match="tensor_parallel_size is 4 but tp_size, the same"):
        groups(tp_size=2, tensor_parallel_size=4)
    with pytest.raises(llmsim.InputError, match="npu_num"):
        groups(npu_num=4, tensor_parallel_size=4)


def test_data_parallel_ranks() -> None:
    """`data_parallel_size` ranks are groups of their own, and lie as attn_dp_size lays them."""
    for keys in ({"enable_expert_parallel": True}, {}):
        theirs = groups(data_parallel_size=2, tensor_parallel_size=4, **keys)
        ours = groups(attn_dp_size=2, attn_tp_size=4)
        assert len(theirs) == 2
        for one, other in zip(theirs, ours, strict=True):
            assert (one.tp, one.dp, one.num_devices) == (4, 2, 4)
            assert (one.ep, other.ep) == (None if keys else 1, None)
            assert one.dp_group == other.dp_group
            assert one.whole_experts_asked is bool(keys)
    (alone,) = groups(data_parallel_size=1, tp_size=4)
    assert (alone.dp, alone.dp_group) == (1, None)


@pytest.mark.parametrize("keys", [{"tensor_parallel_size": 4}, {"data_parallel_size": 4}])
def test_experts_that_are_cut(keys: dict[str, int]) -> None:
    for group in groups(enable_expert_parallel=False, **keys):
        assert group.ep == 1
    for group in groups(enable_expert_parallel=True, **keys):
        assert group.ep is None
    for group in groups(**keys):  # vLLM's default goes with vLLM's names
        assert group.ep == 1


@pytest.mark.parametrize(
    ("keys", "ep"),
    [
        ({"tp_size": 4}, None),
        ({"num_npus": 4}, None),
        ({"tensor_parallel_size": 4, "ep_size": 2}, 2),
        ({"tensor_parallel_size": 4, "dp_group": "a"}, None),
        ({"pipeline_parallel_size": 2, "tp_size": 2}, None),
        ({"tp_size": 2, "tensor_parallel_size": 2}, 1),
    ],
)
def test_other_words_keep_the_experts_where_they_put_them(keys: dict[str, Any], ep: int) -> None:
    assert {group.ep for group in groups(**keys)} == {ep}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": "Qwen/Qwen3-8B"}, "model is given, and so is model_name"),
        ({"data_parallel_size": 2, "dp_group": "a"}, "data_parallel_size is given, and so is dp_"),
        ({"data_parallel_size": 2, "ep_size": 2}, "data_parallel_size is given, and so is ep_size"),
        ({"enable_expert_parallel": True, "ep_size": 2}, "enable_expert_parallel is given, and so"),
        ({"max-num-seqs": 4, "max_num_seqs": 4}, "max-num-seqs is given twice"),
        ({"trust-remote-code": True}, "trust-remote-code is an option of a server"),
        ({"port": 8000}, "port is an option of a server and changes no figure; leave it out"),
    ],
)
def test_names_that_contradict_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(llmsim.InputError, match=said):
        groups(**keys)


def test_a_file_with_the_names_of_vllm_serve_is_the_same_cluster() -> None:
    """YAML with hyphens, as `vllm serve --config FILE` reads it, and the same under our names."""
    text = """
link_bw: 450
link_latency: 1000
engine: {max-num-batched-tokens: 4096}
nodes:
  - instances:
      - model: meta-llama/Llama-3.1-8B
        hardware: H100
        npu_mem: {mem_size: 80, mem_bw: 3350}
        tensor-parallel-size: 2
        max-num-seqs: 64
        gpu-memory-utilization: 0.85
"""
    (theirs,) = resolve(parse_cluster(text, "c.yaml"), EngineOverrides()).groups
    (ours,) = groups(tp_size=2, max_num_seqs=64, gpu_memory_utilization=0.85)
    assert (theirs.model_name, theirs.tp, theirs.engine.max_num_seqs) == (MODEL, 2, 64)
    assert theirs.engine.gpu_memory_utilization == ours.engine.gpu_memory_utilization
    assert theirs.engine.max_num_batched_tokens == 4096
    schema = llmsim.config.cluster_schema()["$defs"]["Instance"]  # type: ignore[attr-defined]
    assert "model_name" not in schema["required"] and {"required": ["model"]} in schema["anyOf"]


def test_sizes_in_python() -> None:
    built = llmsim.Cluster.build(MODEL, "H100", tensor_parallel_size=2, pipeline_parallel_size=2)
    assert built == llmsim.Cluster.build(MODEL, "H100", tp=2, pp=2)
    with pytest.raises(llmsim.InputError, match="tp is 4 and tensor_parallel_size"):
        llmsim.Cluster.build(MODEL, "H100", tp=4, tensor_parallel_size=2)


def test_options_of_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cluster = str(tmp_path / "cluster.json")
    words = ["cluster", MODEL, "H100", "--tensor_parallel_size", "2", "--output", cluster]
    assert main(words) == 0
    words = ["run", "--cluster_config", cluster, "--cost-source", "roofline", "--json"]
    words += ["--dataset", str(ROOT / "dataset" / "example_10.jsonl")]
    capsys.readouterr()
    printed = []
    for option in ("--max_num_seqs=2", "--max-num-seqs=2"):
        assert main([*words, option]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert json.loads(printed[0])["kv_cache"][0]["tensor_parallel"] == 2
    assert main([*words, "--max_num_sequences", "2"]) == 2
    assert "--max_num_sequences is not an option" in capsys.readouterr().err

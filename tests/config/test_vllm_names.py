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

"""Checkpoints in float32 run in 16 bits, as the engines run them, unless float32 is asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.config import EngineOverrides, load_cluster, resolve
from llmsim.lowering.offload.host_memory import kv_room_of
from llmsim.model.families.presets import config_path

CPU_ATTENTION = Path(__file__).parents[2] / "cluster_config" / "cpu_attention_instance.json"
LOAD = "synthetic:n=2,rate=10,input=fixed:100,output=fixed:5"
MODEL = "meta-llama/Llama-3.1-8B"


def stored_in(tmp_path: Path, torch_dtype: str) -> str:
    """The path of a model's config, whose checkpoint has that type."""
    fields = json.loads(config_path(MODEL).read_text("utf-8")) | {"torch_dtype": torch_dtype}
    path = tmp_path / f"{torch_dtype}.json"
    path.write_text(json.dumps(fields))
    return str(path)


def summary(tmp_path: Path, torch_dtype: str, **engine: Any) -> dict[str, Any]:
    model = stored_in(tmp_path, torch_dtype)
    cluster = llmsim.Cluster.build(model, "H200").fields() | {"engine": engine}
    return llmsim.run(cluster, LOAD, cost_source="roofline").summary


def said(found: dict[str, Any]) -> list[str]:
    return [str(note) for note in found["notes"] if "in 16 bits unless" in str(note)]


@pytest.mark.parametrize(
    ("profile", "short"), [("vllm-0.24", "bf16"), ("vllm-0.8", "fp16"), ("sglang-0.5", "fp16")]
)
def test_an_engine_narrows_what_is_stored_in_float32(
    tmp_path: Path, profile: str, short: str
) -> None:
    plain = summary(tmp_path, "bfloat16", engine_profile=profile)
    narrowed = summary(tmp_path, "float32", engine_profile=profile)
    assert narrowed["mean_tpot_ms"] == plain["mean_tpot_ms"]
    [note] = said(narrowed)
    assert f"runs in {short}, " in note and not said(plain)


def test_float32_that_is_asked_for_runs(tmp_path: Path) -> None:
    asked = summary(tmp_path, "float32", engine_profile="vllm-0.24", dtype="float32")
    narrowed = summary(tmp_path, "float32", engine_profile="vllm-0.24")
    assert asked["mean_tpot_ms"] > 1.7 * narrowed["mean_tpot_ms"] and not said(asked)


def test_transformers_runs_float32_as_it_is(tmp_path: Path) -> None:
    own = summary(tmp_path, "float32", engine_profile="transformers-5")
    narrow = summary(tmp_path, "bfloat16", engine_profile="transformers-5")
    assert own["mean_tpot_ms"] > 1.7 * narrow["mean_tpot_ms"] and not said(own)


def test_weights_in_a_nodes_memory_are_counted_as_they_run(tmp_path: Path) -> None:
    """KV that is attended there has what they leave; float32 that is asked for leaves less."""

    def room(torch_dtype: str, **engine: Any) -> int:
        document = json.loads(CPU_ATTENTION.read_text("utf-8"))
        (instance,) = document["nodes"][0]["instances"]
        instance["model_name"] = stored_in(tmp_path, torch_dtype)
        instance["placement"] = {"default": {"weights": "cpu"}}
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps(document))
        return kv_room_of(resolve(load_cluster(path), EngineOverrides(**engine)), 0)

    assert room("float32") == room("bfloat16") > room("float32", dtype="float32")

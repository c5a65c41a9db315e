"""Checkpoints in float32 run in 16 bits, as the engines run them, unless float32 is asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.model.families.presets import config_path

LOAD = "synthetic:n=2,rate=10,input=fixed:100,output=fixed:5"
MODEL = "meta-llama/Llama-3.1-8B"


def summary(tmp_path: Path, torch_dtype: str, **engine: Any) -> dict[str, Any]:
    fields = json.loads(config_path(MODEL).read_text("utf-8")) | {"torch_dtype": torch_dtype}
    path = tmp_path / f"{torch_dtype}.json"
    path.write_text(json.dumps(fields))
    cluster = llmsim.Cluster.build(str(path), "H200").fields() | {"engine": engine}
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

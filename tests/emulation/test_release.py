"""The engine profile of an emulation: that of the installed release, unless another is named."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.emulation.engines import ENGINES
from llmsim.emulation.release import engine_profiles, other_release, with_release

HERE = Path(sys.executable)
CLUSTER = Path("cluster_config/h100_llama31_8b.json")
LOAD = [
    "--dataset",
    "synthetic:n=1,rate=1,input=fixed:9,output=fixed:2",
    "--cost-source",
    "roofline",
]


def profiles(engine: str, cluster: Path, *options: str) -> list[str]:
    """Those of the instances, as `llmsim emulate` prepares them."""
    chosen = ENGINES[engine]
    given = [*chosen.options(), "--cluster-config", str(cluster), *LOAD, *options]
    return engine_profiles(prepare(with_release(checked_options(given), chosen, HERE)).lowered)


@pytest.mark.parametrize(
    ("engine", "version", "profile"),
    [
        ("vllm", "0.33.0", "vllm-0.33"),
        ("vllm", "0.33.1rc1.dev7+g1234567", "vllm-0.33"),
        ("vllm", "0.24.0", "vllm-0.24"),
        ("sglang", "0.5.23.post1", "sglang-0.5.23"),
    ],
)
def test_the_profile_is_that_of_the_installed_release(
    engine: str, version: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(ENGINES[engine]), "version", lambda *_: version)
    assert profiles(engine, CLUSTER) == [profile]


def test_a_profile_that_is_named_stays_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ENGINES["vllm"]
    monkeypatch.setattr(type(engine), "version", lambda *_: "0.33.0")
    assert profiles("vllm", CLUSTER, "--engine-profile", "vllm-0.28") == ["vllm-0.28"]
    data: dict[str, Any] = json.loads(CLUSTER.read_text(encoding="utf-8"))
    whole, one = tmp_path / "whole.json", tmp_path / "one.json"
    whole.write_text(json.dumps(data | {"engine": {"engine_profile": "vllm-0.24"}}))
    assert profiles("vllm", whole) == ["vllm-0.24"]
    data["nodes"][0]["instances"][0]["engine_profile"] = "vllm-0.24"
    one.write_text(json.dumps(data))
    assert profiles("vllm", one) == ["vllm-0.24"]
    options = checked_options(["--cluster-config", str(one), *LOAD])
    said = other_release(prepare(options).lowered, engine, "0.33.0")
    assert said is not None and "vllm-0.24, but vLLM 0.33.0 has the rules of vllm-0.33" in said
    assert other_release(prepare(options).lowered, engine, "0.24.0") is None


def test_options_are_checked_where_no_engine_is_installed() -> None:
    """The sentence that the interpreter has no engine comes after those about the options."""
    assert profiles("sglang", CLUSTER) == ["sglang-0.5.23"]

"""Defaults of vLLM's server against those that vLLM itself resolves (`record_vllm_server.py`):
every case of the recorded releases, and of an installed one.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from record_vllm_server import CARDS

from llmsim.config.engine.args import EngineArgs, Given, resolve_engine, with_model_limits
from llmsim.config.engine.profile import load_profile
from llmsim.config.engine.speculative import SpeculativeConfig

HERE = Path(__file__).resolve().parent
GIB = 1 << 30
RELEASES = {"0.24.0": "vllm-0.24", "0.33.0": "vllm-0.33"}
ARCHITECTURES = {"llama": "LlamaForCausalLM", "gpt_oss": "GptOssForCausalLM"}
LONGEST = 131_072
"""Tokens of the context of both models."""
Case = dict[str, Any]


def recorded(release: str) -> list[Case]:
    """The cases of a release."""
    text = (HERE / "recordings" / f"vllm-{release}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def ours(case: Case, profile: str) -> EngineArgs:
    """The options as a cluster file would say them."""
    given = dict(case["options"])
    if "speculative_config" in given:
        tokens = given["speculative_config"]["num_speculative_tokens"]
        given["speculative_config"] = SpeculativeConfig(
            method="ngram", num_speculative_tokens=tokens, acceptance_rate=0.7
        )
    _, memory_gib, (major, _) = CARDS[case["card"]]
    layers = [Given("command line", None, given, lambda name: name)]
    memory_bytes = int(memory_gib * GIB)
    args = resolve_engine(layers, load_profile(profile), case["card"], memory_bytes)
    architecture = ARCHITECTURES[case["model"]]
    return with_model_limits(args, LONGEST, "g", [architecture], blackwell=major == 10)


@pytest.mark.parametrize("release", sorted(RELEASES))
def test_defaults_of_the_recorded_releases(release: str) -> None:
    cases = recorded(release)
    assert len(cases) == 2 * 16 * len(CARDS)
    for case in cases:
        args, found = ours(case, RELEASES[release]), case["found"]
        sizes = args.cuda_graph_sizes
        graphs = found.pop("graphs")
        # vLLM 0.24 makes them whole decodes when its workers start.
        if args.speculation is None or release != "0.24.0":
            assert [len(sizes), max(sizes, default=0), sum(sizes)] == graphs, case
        assert {name: getattr(args, name) for name in found} == found, case


@pytest.mark.skipif(
    "LLMSIM_ENGINE_PYTHON" not in os.environ,
    reason="LLMSIM_ENGINE_PYTHON names no interpreter with vLLM",
)
def test_an_installed_release_resolves_what_is_recorded() -> None:
    python = os.environ["LLMSIM_ENGINE_PYTHON"]
    asked = "from importlib.metadata import version; print(version('vllm').partition('+')[0])"
    release = subprocess.check_output([python, "-c", asked], text=True).strip()
    if release not in RELEASES:
        pytest.skip(f"vLLM {release} is not recorded")
    words = [python, str(HERE / "record_vllm_server.py")]
    run = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    assert [json.loads(line) for line in lines] == recorded(release)

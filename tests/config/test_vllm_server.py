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
from recorders import overlaid

from llmsim.config.engine.args import EngineArgs, Given, resolve_engine, with_model_limits
from llmsim.config.engine.profile import load_profile
from llmsim.config.engine.speculative import SpeculativeConfig

HERE = Path(__file__).resolve().parent
GIB = 1 << 30
RELEASES = tuple(f"0.{minor}.0" for minor in (24, 29, 30, 31, 32, 33))
"""Recorded releases; each file behind the first holds what differs from the release before."""
ARCHITECTURES = {"llama": "LlamaForCausalLM", "gpt_oss": "GptOssForCausalLM"}
LONGEST = 131_072
"""Tokens of the context of both models."""
Case = dict[str, Any]


def recorded(release: str) -> list[Case]:
    """The cases of a release."""
    until = RELEASES[: RELEASES.index(release) + 1]
    return overlaid(HERE / "recordings" / f"vllm-{one}.jsonl" for one in until)


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


def asked_of_workers(args: EngineArgs, case: Case, profile: str) -> tuple[int, ...]:
    """The sizes of graphs that the server asks for; workers may make them whole decodes."""
    drafts = args.speculation
    if drafts is None or not args.cuda_graph_sizes:
        return args.cuda_graph_sizes
    major = CARDS[case["card"]][2][0]
    return load_profile(profile).cuda_graphs.sizes_of(
        [ARCHITECTURES[case["model"]]],
        args.max_num_seqs,
        args.max_num_batched_tokens,
        drafts.verified,
        blackwell=major == 10,
    )


@pytest.mark.parametrize("release", RELEASES)
def test_defaults_of_the_recorded_releases(release: str) -> None:
    cases, profile = recorded(release), f"vllm-{release.removesuffix('.0')}"
    assert len(cases) == 2 * 16 * len(CARDS)
    for case in cases:
        args, found = ours(case, profile), case["found"]
        sizes = asked_of_workers(args, case, profile)
        graphs = found.pop("graphs")
        assert [len(sizes), max(sizes, default=0), sum(sizes)] == graphs, case
        assert {name: getattr(args, name) for name in found} == found, case


@pytest.mark.parametrize(
    ("profile", "whole"), [("vllm-0.28", True), ("vllm-0.31", True), ("vllm-0.32", False)]
)
def test_model_runner_v1_makes_all_sizes_whole_decodes(profile: str, whole: bool) -> None:
    """Drafts by n-grams run on it up to 0.31."""
    options = {"speculative_config": {"num_speculative_tokens": 2}}
    case = {"card": "H100", "model": "llama", "options": options}
    sizes = ours(case, profile).cuda_graph_sizes
    assert all(size % 3 == 0 for size in sizes) == whole


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

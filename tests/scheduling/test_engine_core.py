"""`--scheduler vllm` in the interpreter that LLMSIM_ENGINE_PYTHON names: vLLM's own engine core
makes the steps that `vllm_v1` makes.
"""

import json
import os
import subprocess
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import main
from llmsim.core import Workload
from llmsim.scheduling.conformance.engine_python import linked_environment
from llmsim.scheduling.conformance.vllm.installed import _ranges, _request

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = ROOT / "cluster_config"
HANGS_S = 900
LOAD = (
    "synthetic:n=80,rate=30,input=lognormal:150:max=600,output=lognormal:80:max=300,"
    "prefixes=6:tokens=160:share=0.7"
)
WAVES = "synthetic:n=20,rate=1.2,input=uniform:50-900,output=uniform:2-60,seed=3"
PAUSES = (
    "synthetic:n=60,rate=6,input=uniform:20-1500,output=uniform:1-40,"
    "prefixes=3:tokens=160:share=0.5"
)
PRESSED = ["--num-gpu-blocks-override", "300", "--max-model-len", "2048"]
PRESSED += ["--max-num-batched-tokens", "1024", "--max-num-seqs", "64"]
SMALL = ["--num-gpu-blocks-override", "160", "--max-model-len", "2048"]
SMALL += ["--max-num-batched-tokens", "512", "--max-num-seqs", "32"]
EAGLE = '{"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": [0.9, 0.6, 0.3]}'
NGRAM = EAGLE.replace("eagle", "ngram")
BY_BATCH = EAGLE.replace(
    '"eagle"', '"eagle", "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 1]]'
)
needs_engine = pytest.mark.skipif(
    "LLMSIM_ENGINE_PYTHON" not in os.environ,
    reason="LLMSIM_ENGINE_PYTHON names no interpreter with vLLM",
)


def of(cluster: str, *options: str, load: str = LOAD) -> list[str]:
    """A run of a bundled cluster."""
    path = str(CLUSTERS / f"{cluster}.json")
    return ["--cluster-config", path, "--dataset", load, "--cost-source", "roofline", *options]


ONE, STAGES, PAIR = "h100_llama31_8b", "h100_llama31_70b_tp4_pp2", "h100_llama31_8b_pd"
POOL, RANKS = "h100_cpu_prefix_pool", "rtxpro6000_qwen3_30b_a3b_dp2_ep2"
CASES = {
    "a tight pool": of(ONE, *PRESSED),
    "priorities, synchronous": of(
        ONE, *PRESSED, "--no-async-scheduling", "--scheduling-policy", "priority"
    ),
    "whole prompts": of(ONE, "--no-enable-chunked-prefill", "--max-model-len", "4096"),
    "no prefix cache": of(
        ONE, "--no-enable-prefix-caching", "--long-prefill-token-threshold", "128"
    ),
    "drafts of a head": of(ONE, *PRESSED, "--speculative-config", EAGLE),
    "drafts by batch size": of(ONE, *PRESSED, "--speculative-config", BY_BATCH),
    "drafts from the prompt, and clients that give up": of(
        ONE, *PRESSED, "--speculative-config", NGRAM, "--request-timeout", "3"
    ),
    "stages": of(STAGES, "--max-num-seqs", "32"),
    "stages, synchronous": of(STAGES, "--max-num-seqs", "32", "--no-async-scheduling"),
    "stages of a tight pool": of(STAGES, *PRESSED, "--request-timeout", "3"),
    "stages with drafts": of(STAGES, *PRESSED, "--speculative-config", EAGLE),
    "several instances": of("h100_multi_instance", "--max-num-seqs", "32"),
    "ranks that share experts": of(RANKS, *PRESSED, "--request-timeout", "2"),
    "ranks that prefill in turn": of(
        RANKS, "--max-num-seqs", "32", "--prefill-schedule-interval", "4"
    ),
    "ranks with drafts": of(RANKS, *PRESSED, "--speculative-config", EAGLE),
    "ranks without a prefix cache": of(RANKS, *PRESSED, "--no-enable-prefix-caching"),
    "ranks in synchronous steps": of(RANKS, *PRESSED, "--no-async-scheduling"),
    "ranks that idle and wake": of(RANKS, load=WAVES),
    "ranks that idle, and clients that give up": of(RANKS, "--request-timeout", "0.3", load=PAUSES),
    "ranks behind the load balancer": of(RANKS, "--request-routing-policy", "VLLM_DP"),
    "prefill and decode apart": of(PAIR, *PRESSED, "--request-timeout", "2"),
    "loads that fail": of(
        PAIR, "--kv-load-failure-rate", "0.2", "--kv-load-failure-policy", "recompute"
    ),
    "a pool that steps wait for": of(
        POOL, *SMALL, "--prefix-storage", "CPU", "--kv-tier-recall", "sync"
    ),
    "a pool that requests wait for": of(
        POOL, *SMALL, "--prefix-storage", "CPU", "--kv-tier-recall", "async"
    ),
    "vLLM's own offloading": of(POOL, *SMALL, "--kv-offloading-size", "1"),
    "context parallelism": of("h200_deepseek_v3_tp8_dcp8", "--max-num-seqs", "32"),
}


def changed(folder: Path, name: str, cluster: str, model: str = "", stages: int = 1) -> str:
    """A bundled cluster with another model or stages, and slow links to host memory."""
    described = json.loads((CLUSTERS / f"{cluster}.json").read_text(encoding="utf-8"))
    instance = described["nodes"][0]["instances"][0]
    instance |= {"num_npus": stages, "pp_size": stages}
    instance["npu_mem"]["mem_size"] = 400
    if model:
        instance["model_name"] = model
    described["link_bw"] = [450, 0.5, 50]
    path = folder / f"{name}.json"
    path.write_text(json.dumps(described), encoding="utf-8")
    return str(path)


def of_ranks(number: int) -> dict[str, Any]:
    """So many of the ranks in place of two."""
    described: dict[str, Any] = json.loads((CLUSTERS / f"{RANKS}.json").read_text(encoding="utf-8"))
    node = described["nodes"][0]
    node["instances"] = [node["instances"][0] | {"ep_size": number}] * number
    node["num_instances"] = number
    return described


def apart(prefill: int, decode: int) -> dict[str, Any]:
    """So many ranks prefill and so many decode; those of a side share the experts."""
    described = of_ranks(1)
    node = described["nodes"][0]
    (one,) = node["instances"]
    sides = {"prefill": prefill, "decode": decode}
    node["instances"] = [
        one | {"pd_type": role, "dp_group": role, "ep_size": number}
        for role, number in sides.items()
        for _ in range(number)
    ]
    node["num_instances"] = prefill + decode
    return described


def ranks_apart(folder: Path) -> dict[str, list[str]]:
    """Runs of ranks in lock-step that prefill, decode or both."""
    paths = {}
    for prefill, decode in ((2, 2), (4, 2), (1, 4), (4, 1)):
        path = folder / f"{prefill}_{decode}.json"
        path.write_text(json.dumps(apart(prefill, decode)), encoding="utf-8")
        paths[prefill, decode] = ["--cluster-config", str(path)]

    def options(*given: str, load: str = LOAD) -> list[str]:
        return of(RANKS, *given, load=load)[2:]

    balanced = ["--request-routing-policy", "VLLM_DP", "--decode-routing-policy", "VLLM_DP"]
    failing = ["--kv-load-failure-rate", "0.2", "--kv-load-failure-policy"]
    leaving, waits = ["--request-timeout", "1"], "--no-async-scheduling"
    return {
        "ranks apart": [*paths[2, 2], *options(*PRESSED)],
        "ranks apart, synchronous": [*paths[2, 2], *options(*PRESSED, waits)],
        "ranks apart, with pauses": [*paths[2, 2], *options(load=PAUSES)],
        "ranks apart, with waves": [*paths[4, 2], *options(load=WAVES)],
        "ranks apart, clients leave": [*paths[2, 2], *options(*PRESSED, *leaving)],
        "ranks apart, loads fail": [*paths[2, 2], *options(*failing, "recompute")],
        "ranks apart, requests fail": [*paths[2, 2], *options(*failing, "fail", load=PAUSES)],
        "ranks apart, balanced": [*paths[4, 2], *options(*balanced)],
        "ranks decode": [*paths[1, 4], *options(*PRESSED)],
        "ranks prefill, clients leave": [*paths[4, 1], *options(*PRESSED, *leaving)],
    }


def made_cases(folder: Path) -> dict[str, list[str]]:
    """Runs of clusters and traces that no file of the repository has."""
    trace = folder / "adapters.jsonl"
    lines = [
        {
            "input_toks": 60 + 17 * row % 400,
            "output_toks": 5 + 7 * row % 60,
            "arrival_time_ns": row * 20_000_000,
            "adapter": f"adapter-{row * row % 5}",
        }
        for row in range(50)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    four = folder / "four.json"
    four.write_text(json.dumps(of_ranks(4)), encoding="utf-8")
    windows = changed(folder, "windows", ONE, "google/gemma-3-27b-it")
    states = changed(folder, "states", ONE, "Qwen/Qwen3-Next-80B-A3B-Instruct", stages=2)
    gated = changed(folder, "gated", POOL, stages=2)
    blocks = ["--num-gpu-blocks-override", "2000", *SMALL[2:]]
    tiers = ["--prefix-storage", "CPU", "--kv-tier-recall", "sync", "--async-scheduling"]
    return ranks_apart(folder) | {
        "adapters": of(ONE, "--max-loras", "2", *SMALL, load=str(trace)),
        "four ranks": ["--cluster-config", str(four), *of(RANKS, *PRESSED)[2:]],
        "four ranks that idle and wake": [
            "--cluster-config",
            str(four),
            *of(RANKS, load=WAVES)[2:],
        ],
        "windows": ["--cluster-config", windows, *of(ONE, *blocks)[2:]],
        "states in stages": ["--cluster-config", states, *of(ONE, *blocks)[2:]],
        "steps that wait for a slow pool": [
            "--cluster-config",
            gated,
            *of(ONE, *SMALL, *tiers)[2:],
        ],
    }


MADE = ["adapters", "four ranks", "four ranks that idle and wake", "windows", "states in stages"]
APART = ["ranks apart", "ranks apart, synchronous", "ranks apart, with pauses"]
APART += ["ranks apart, with waves", "ranks apart, clients leave", "ranks apart, loads fail"]
APART += ["ranks apart, requests fail", "ranks apart, balanced", "ranks decode"]
APART += ["ranks prefill, clients leave"]
NAMES = [*CASES, *MADE, "steps that wait for a slow pool", *APART]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The runs of each case, ours and two of vLLM's, and by which profile."""
    folder = tmp_path_factory.mktemp("engine")
    cases = CASES | made_cases(folder)
    assert sorted(cases) == sorted(NAMES)
    script = Path(__file__).with_name("both_schedulers.py")
    ran = subprocess.run(
        [os.environ["LLMSIM_ENGINE_PYTHON"], str(script), sysconfig.get_paths()["purelib"]],
        input=json.dumps(cases),
        env=linked_environment(folder),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    return {line["name"]: line for line in lines}


@needs_engine
@pytest.mark.parametrize("name", NAMES)
def test_the_engine_core_makes_the_same_steps(
    name: str, compared: dict[str, dict[str, Any]]
) -> None:
    ours, theirs, again = compared[name]["runs"]
    assert theirs == ours
    assert again == theirs
    profile = compared[name]["profile"]
    if ours["code"] != 0 and profile != "vllm-0.33":
        pytest.skip(f"{profile} refuses it: {ours['error']}")
    assert theirs["invariants"] == ["ok"] and theirs["counts"]["completed"] > 0


def test_drafts_by_batch_size_are_ranges_again() -> None:
    assert _ranges([0, 3, 3, 3, 1, 0, 0]) == [[1, 3, 3], [4, 4, 1], [5, 6, 0]]
    assert _ranges([0]) == []


def test_tokens_behind_a_block_are_told_apart_in_whole_units(a_workload: Workload) -> None:
    """Keys of blocks with drafts of a head cover a token behind them."""
    first, second = (_request(a_workload, row, ahead=1).prompt() for row in range(2))
    assert first[:17] == second[:17] and not set(first[17:]) & set(second[17:])
    apart, other = (_request(a_workload, row, ahead=16).prompt() for row in range(2))
    assert apart[:16] == other[:16] and not set(apart[16:]) & set(other[16:])


@pytest.fixture
def a_workload() -> Workload:
    """Two requests of 40 tokens, of which the first 16 are the same."""
    import numpy as np

    return Workload(
        arrival_ps=np.array([0, 0]),
        input_tokens=np.array([40, 40], np.int32),
        output_tokens=np.array([4, 4], np.int32),
        model=np.zeros(2, np.int16),
        models=(),
        next_call=np.full(2, -1),
        tool_delay_ps=np.zeros(2, np.int64),
        key_offsets=np.array([0, 2, 4]),
        keys=np.array([5, 6, 5, 7], np.uint64),
        granularity=16,
        source="",
    )


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed and may run here")
def test_an_environment_that_vllm_does_not_run_in_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("live", "installed"):
        name = f"llmsim.scheduling.conformance.vllm.{module}.installed_version"
        monkeypatch.setattr(name, lambda: "0.33.0")
    assert main(["run", *of(ONE, "--scheduler", "vllm")]) == 2
    said = capsys.readouterr().err
    assert "vLLM 0.33.0 is installed, but its engine core does not run" in said
    assert "No module named 'vllm'" in said and said.count("\n") == 1


def test_drafts_in_stages_need_the_runner_that_verifies_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "llmsim.scheduling.conformance.vllm.installed.installed_version"
    monkeypatch.setattr(name, lambda: "0.33.0")
    drafts = of(STAGES, "--speculative-config", NGRAM, "--engine-profile", "vllm-0.33")
    assert main(["run", *drafts, "--scheduler", "vllm"]) == 2
    said = capsys.readouterr().err
    assert "verifies drafts in 2 pipeline stages only with async_scheduling" in said


LAYOUTS = {
    "link_bw": [450, 450, 50],
    "link_latency": [1000, 1000, 2000],
    "layouts": {
        "many": [
            {"count": 2, "model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100", "tp_size": 1}
        ],
        "wide": [
            {"count": 1, "model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100", "tp_size": 2}
        ],
    },
    "initial": "many",
    "switch": [{"to": "wide", "when": {"active_share_below": 0.3}}],
    "reconfiguration": {"weights": "links", "kv": "recompute", "process_s": 2},
}


@pytest.mark.parametrize("router", ["PREFIX", "WEIGHTED"])
def test_routers_that_follow_caches_are_refused(
    router: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = of("h100_multi_instance", "--request-routing-policy", router, "--scheduler", "vllm")
    assert main(["run", *words]) == 2
    assert "follows prefix caches" in capsys.readouterr().err


def test_layouts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "layouts.json"
    path.write_text(json.dumps(LAYOUTS), encoding="utf-8")
    words = ["run", "--cluster-config", str(path), "--dataset", LOAD, "--scheduler", "vllm"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "layouts together with the scheduler vllm" in said and "choose vllm_v1" in said


def test_an_endpoint_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = str(CLUSTERS / f"{ONE}.json")
    assert main(["serve", "--cluster-config", cluster, "--port", "0", "--scheduler", "vllm"]) == 2
    assert "come over HTTP; choose vllm_v1" in capsys.readouterr().err

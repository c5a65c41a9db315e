"""256 requests of 128 and 512 tokens with and without memory that computes, beside the paper
(section VII.C).
"""

import json
from typing import Any

import pytest

from evaluation.figures.clusters import A6000_POWER
from llmsim.cli import run_main
from tests.shared_data import shared

TRACE = "synthetic:n=256,rate=10,input=fixed:128,output=fixed:512,seed=10"
PAPER_SPEEDUP, PAPER_ENERGY_PERCENT = 1.43, -14.8


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Summaries: the GPU alone, with memory that computes, and the same without the memory's own
    draw.
    """
    profiles = shared("artifact/perf_models")
    folder = tmp_path_factory.mktemp("pim")
    instance = {
        "model_name": "meta-llama/Llama-3.1-8B",
        "hardware": "A6000",
        "num_npus": 1,
        "pd_type": None,
        "npu_mem": {"mem_size": 40, "mem_bw": 768, "mem_latency": 0},
    }
    memory = {"mem_size": 256, "mem_bw": 256, "pim_config": "HBM2_1GB_2000_pim"}
    node = {"cpu_mem": memory, "instances": [instance], "power": A6000_POWER}
    (folder / "c.json").write_text(
        json.dumps({"link_bw": 112, "link_latency": 0, "nodes": [node]}), encoding="utf-8"
    )
    given = [
        "--cluster-config",
        str(folder / "c.json"),
        "--dataset",
        TRACE,
        "--profile-dir",
        str(profiles),
    ]
    found = {}
    for name, more in {
        "alone": [],
        "memory": ["--enable-attn-offloading"],
        "without its draw": ["--enable-attn-offloading", "--disable-term", "pim_power"],
    }.items():
        assert (
            run_main([*given, "--max-num-seqs", "256", *more, "--run-dir", str(folder / name)]) == 0
        )
        found[name] = json.loads((folder / name / "summary.json").read_text())
    return found


def change_percent(runs: dict[str, Any], name: str) -> float:
    base, there = (runs[one]["energy"]["j_per_output_token"] for one in ("alone", name))
    return 100 * (float(there) / float(base) - 1)


def test_decodes_are_as_much_faster_as_in_the_paper(runs: dict[str, Any]) -> None:
    speedup = runs["alone"]["mean_tpot_ms"] / runs["memory"]["mean_tpot_ms"]
    assert speedup == pytest.approx(PAPER_SPEEDUP, rel=0.2)


def test_the_energy_differs_by_a_term_that_a_switch_removes(runs: dict[str, Any]) -> None:
    """Within a fifth of the paper's without the memory's own draw, which is all of the difference;
    else less saved.
    """
    without = change_percent(runs, "without its draw")
    assert without == pytest.approx(PAPER_ENERGY_PERCENT, rel=0.2)
    assert without < change_percent(runs, "memory") < 0
    with_draw, no_draw = (runs[name]["energy"] for name in ("memory", "without its draw"))
    assert with_draw["window_s"] == no_draw["window_s"]
    apart = {
        part: joule - no_draw["components_j"][part]
        for part, joule in with_draw["components_j"].items()
        if joule != no_draw["components_j"][part]
    }
    assert set(apart) == {"dram"} and apart["dram"] == pytest.approx(
        with_draw["total_j"] - no_draw["total_j"]
    )

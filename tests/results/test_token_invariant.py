"""Invariant 5: every token that a group scheduled was needed, computed again or dropped, and every
answer is whole.
"""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.core import Results, Status
from llmsim.results.invariants import check_invariants
from llmsim.simulation.run import simulate

ROOT = Path(__file__).resolve().parents[2]
PRESSED = (
    *(
        "--cluster-config",
        str(ROOT / "cluster_config" / "h100_llama31_8b.json"),
        "--cost-source",
        "roofline",
    ),
    *(
        "--dataset",
        "synthetic:n=60,rate=40,input=lognormal:150:max=600,output=lognormal:60:max=300,seed=4",
    ),
    *("--num-gpu-blocks-override", "90", "--max-model-len", "1024"),
)


def finished_run(*more: str) -> Results:
    prepared = prepare(checked_options([*PRESSED, *more]))
    return simulate(prepared.lowered, prepared.workload, prepared.simulation)


@pytest.fixture(scope="module")
def results() -> Results:
    return finished_run()


def verdict(results: Results) -> str:
    return check_invariants(results, [True])["5 tokens"]


def test_it_holds_where_requests_are_computed_again(results: Results) -> None:
    assert results.counters["recomputed_tokens"].sum() > 0
    assert verdict(results) == "ok"


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize(
    "counter",
    [
        "scheduled_tokens",
        "recomputed_tokens",
        "discarded_tokens",
        "started_with_tokens",
        "open_tokens",
    ],
)
def test_a_counter_that_is_one_off_is_found(results: Results, counter: str, by: int) -> None:
    counters = {name: column.copy() for name, column in results.counters.items()}
    counters[counter][0] += by
    assert "tokens" in verdict(dataclasses.replace(results, counters=counters))


def shortened(results: Results, row: int, tokens: int, *, hide: bool) -> Results:
    """Request `row` emitted `tokens` fewer; with `hide`, other sums are made to agree."""
    requests = copy.copy(results.requests)
    requests.emitted_tokens = requests.emitted_tokens.copy()
    requests.emitted_tokens[row] -= tokens
    counters = {name: column.copy() for name, column in results.counters.items()}
    if hide:
        counters["generation_tokens"][0] -= tokens
        counters["scheduled_tokens"][0] -= tokens
    return dataclasses.replace(results, requests=requests, counters=counters)


@pytest.mark.parametrize("hide", [False, True])
def test_a_finished_request_that_emitted_less_is_found(results: Results, hide: bool) -> None:
    row = int(np.argmax(results.requests.emitted_tokens))
    assert results.requests.status[row] == Status.FINISHED
    found = verdict(shortened(results, row, 1, hide=hide))
    assert found != "ok"
    assert not hide or f"request {row} emitted" in found


def test_tokens_that_were_never_scheduled_are_found(results: Results) -> None:
    """Of a request whose whole prompt is said to be longer than what ran."""
    workload = replace(results.workload, input_tokens=results.workload.input_tokens + 1)
    assert "scheduled" in verdict(dataclasses.replace(results, workload=workload))


def test_answers_cut_at_the_model_length_are_whole() -> None:
    dataset = ("--dataset", "synthetic:n=5,rate=40,input=fixed:1000,output=fixed:100,seed=4")
    cut = finished_run(*dataset)
    assert (cut.requests.emitted_tokens == 24).all() and verdict(cut) == "ok"
    assert verdict(shortened(cut, 0, 1, hide=True)) != "ok"


SCHEDULERS: tuple[tuple[str, ...], ...] = (
    *(("--scheduler", name) for name in ("vllm_v1", "sarathi", "sglang", "mlfq", "tensorrt_llm")),
    ("--scheduler", "orca", "--max-model-len", "1024", "--num-gpu-blocks-override", "300"),
    ("--scheduler", "static", "--max-model-len", "1024", "--num-gpu-blocks-override", "300"),
    ("--prioritize-prefill",), ("--skip-prefill",), ("--no-async-scheduling",),
    ("--enable-prefix-caching", "--prefix-storage", "CPU"),
    (
        *("--enable-prefix-caching", "--prefix-storage", "CPU", "--kv-tier-recall", "async"),
        *("--kv-tier-write", "write-back"),
    ),
)  # fmt: skip


@pytest.mark.parametrize("options", SCHEDULERS, ids=" ".join)
def test_it_holds_for_every_scheduler(options: tuple[str, ...]) -> None:
    shared = (
        "synthetic:n=80,rate=60,input=lognormal:150:max=600,output=lognormal:60:max=300,"
        "prefixes=4:tokens=160:share=0.7,seed=4"
    )
    chunks = ("--kv-chunk-size", "64") if "CPU" in options else ()
    results = finished_run(*options, *chunks, "--dataset", shared)
    assert set(results.invariants.values()) == {"ok"}, results.invariants


def test_it_holds_where_answers_end_with_a_stop_token(tmp_path: Path) -> None:
    """The step under way computes a token in vain."""
    cluster = json.loads(
        (ROOT / "cluster_config" / "h100_llama31_8b.json").read_text(encoding="utf-8")
    )
    cluster["engine"] = {**cluster.get("engine", {}), "ignore_eos": False, "async_scheduling": True}
    (tmp_path / "c.json").write_text(json.dumps(cluster), encoding="utf-8")
    results = finished_run("--cluster-config", str(tmp_path / "c.json"))
    assert results.counters["discarded_tokens"][0] > 0 and verdict(results) == "ok"


@pytest.mark.parametrize("horizon", ["0.05", "0.4", "1.3"])
def test_it_holds_wherever_a_run_is_cut(horizon: str) -> None:
    results = finished_run("--horizon", horizon)
    assert verdict(results) == "ok" and results.cut_short
    counters: dict[str, Any] = {name: column.copy() for name, column in results.counters.items()}
    counters["scheduled_tokens"][0] -= 1
    assert verdict(dataclasses.replace(results, counters=counters)) != "ok"

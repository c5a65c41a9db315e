"""The time that hosts of a decode instance take to post reads of KV."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmsim
from llmsim.api.result import Result
from llmsim.config.engine.profile import load_profile

LOG_LINES = ((72, 0.672), (1785, 6.7), (3045.5, 11.91))
"""Mean descriptors and milliseconds of posting for a transfer: vLLM's issues 41230 and 50913, and a
public log of 463 transfers.
"""
MS = 10**9
NONE = {"kv_read_ns": 0, "kv_descriptor_ns": 0}
LONG_READS = {"kv_read_ns": 7_000_000, "kv_descriptor_ns": 0}


def document(decode: dict[str, Any], prefill_tp: int = 1) -> dict[str, Any]:
    base = {
        "model_name": "meta-llama/Llama-3.1-8B",
        "hardware": "H100",
        "npu_mem": {"mem_size": 79.1, "mem_bw": 3350, "mem_latency": 0},
        "async_scheduling": False,
        "kv_cache_dtype": "auto",
    }
    ranks = decode.get("tp_size", 1) * decode.get("pp_size", 1)
    sides = [
        {**base, "pd_type": "prefill", "tp_size": prefill_tp, "num_npus": prefill_tp},
        {**base, "pd_type": "decode", "num_npus": ranks, **decode},
    ]
    return {"link_bw": 450, "link_latency": 1000, "nodes": [{"instances": sides}]}


def run(decode: dict[str, Any], trace: Any, prefill_tp: int = 1, **options: Any) -> Result:
    given = {"cost_source": "roofline", "kv_transfer": "whole", **options}
    return llmsim.run(document(decode, prefill_tp), trace, **given)


def alone(tokens: int) -> str:
    return f"synthetic:n=1,rate=1,input=fixed:{tokens},output=fixed:3,seed=1"


def landed_after_ps(result: Result) -> int:
    row = result.requests.iloc[0]
    return int(row["kv_landed_ps"] - row["kv_reserved_ps"])


@pytest.mark.parametrize(("descriptors", "took_ms"), LOG_LINES)
def test_the_profile_has_what_logs_say(descriptors: float, took_ms: float) -> None:
    profile = load_profile("vllm-0.24")
    ms = (profile.kv_read_ns + descriptors * profile.kv_descriptor_ns) / 1e6
    assert ms == pytest.approx(took_ms, rel=0.05)


def test_only_releases_that_post_before_the_launch_have_it() -> None:
    for name in ("vllm-0.11", "vllm-0.13", "vllm-0.19", "vllm-0.24", "vllm-0.28"):
        assert load_profile(name).kv_descriptor_ns > 0, name
    for name in ("vllm-0.29", "vllm-0.33", "sglang-0.5.23"):
        assert load_profile(name).kv_descriptor_ns == load_profile(name).kv_read_ns == 0, name


def test_a_prompt_is_read_when_all_of_its_pieces_are_posted() -> None:
    """1,000 tokens are 63 blocks of 32 layers, keys and values apart."""
    profile = load_profile("vllm-0.24")
    posting_ns = profile.kv_read_ns + 63 * 32 * 2 * profile.kv_descriptor_ns
    assert landed_after_ps(run({}, alone(1000))) == posting_ns * 1000


def test_bytes_that_move_for_longer_hide_it() -> None:
    slow = document({})
    slow["link_bw"] = 0.5
    quick = document(NONE)
    quick["link_bw"] = 0.5
    took = [
        landed_after_ps(llmsim.run(one, alone(1000), cost_source="roofline", kv_transfer="whole"))
        for one in (slow, quick)
    ]
    assert took[0] == took[1] > 100 * MS


@pytest.mark.parametrize(("prefill_tp", "tp", "reads"), [(1, 1, 1), (4, 2, 2), (2, 4, 1)])
def test_the_slowest_worker_counts_by_the_ranks_that_it_reads_from(
    prefill_tp: int, tp: int, reads: int
) -> None:
    result = run({**LONG_READS, "tp_size": tp}, alone(100), prefill_tp)
    assert landed_after_ps(result) == reads * 7 * MS


def test_a_latent_is_one_piece_and_stages_read_their_own_layers() -> None:
    model = {"model_name": "deepseek-ai/DeepSeek-V2-Lite"}
    base = document({"kv_read_ns": 0, "kv_descriptor_ns": 1_000_000})
    for side in base["nodes"][0]["instances"]:
        side.update(model)
    result = llmsim.run(base, alone(160), cost_source="roofline", kv_transfer="whole")
    assert landed_after_ps(result) == 10 * 27 * MS
    staged = run({"kv_read_ns": 0, "kv_descriptor_ns": 1_000_000, "pp_size": 2}, alone(160))
    assert landed_after_ps(staged) == 10 * 16 * 2 * MS


def trace_of_two(folder: Path) -> Path:
    """One request decodes while the KV of another one is read."""
    path = folder / "two.jsonl"
    rows = [
        {"input_toks": 64, "output_toks": 40, "arrival_time_ns": 0},
        {"input_toks": 64, "output_toks": 4, "arrival_time_ns": 150_000_000},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def around_the_reads(result: Result) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The decode group's steps before the second request's reads, and those formed along with them
    and later.
    """
    steps = result.steps[result.steps["group"] == 1]
    along = steps["schedule_ps"] >= result.requests.iloc[1]["kv_reserved_ps"]
    return steps[~along], steps[along]


@pytest.mark.parametrize("layout", [{}, {"pp_size": 2}])
@pytest.mark.parametrize("exact", [False, True])
def test_the_step_that_is_formed_along_with_reads_begins_later(
    layout: dict[str, int], exact: bool, tmp_path: Path
) -> None:
    trace = trace_of_two(tmp_path)
    reads, none = (
        run({**layout, **keys}, trace, exact=exact, collective_contention="off")
        for keys in (LONG_READS, NONE)
    )
    for result in (reads, none):
        assert set(result.summary["invariants"].values()) == {"ok"}
    (before, behind), (_, behind_none) = around_the_reads(reads), around_the_reads(none)
    usual = int((before["start_ps"] - before["schedule_ps"]).iloc[-1])
    assert int((behind["start_ps"] - behind["schedule_ps"]).iloc[0]) == usual + 7 * MS
    # The worker looks for the KV behind its posting, and without posting one step later.
    assert list(behind["sequences"])[:2] == [1, 2]
    assert list(behind_none["sequences"])[:3] == [1, 1, 2]


def test_the_term_can_be_removed(tmp_path: Path) -> None:
    trace = trace_of_two(tmp_path)
    without = run(LONG_READS, trace, disable_term=["kv_reads"])
    none = run(NONE, trace)
    columns = [name for name in none.requests if name.endswith("_ps")]
    assert without.requests[columns].equals(none.requests[columns])


def test_kv_that_is_pushed_needs_no_reads() -> None:
    options = {"kv_transfer_mode": "push"}
    took = [landed_after_ps(run(keys, alone(500), **options)) for keys in (LONG_READS, NONE)]
    assert took[0] == took[1]

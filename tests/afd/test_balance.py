"""How attention-FFN disaggregation is balanced, and what rows between both sides cost."""

from typing import Any

from afd.clusters import attention, cluster, ffn

import llmsim

MODEL = "Qwen/Qwen3-30B-A3B"
LOAD = "synthetic:n=16,rate=1000,input=fixed:64,output=fixed:20,seed=1"


def run(lanes: int, **links: Any) -> llmsim.Result:
    host = {"host_gap_ns": 0, "host_sequence_ns": 0, "launch_ns": 0}
    fields = cluster(
        attention(MODEL, afd_micro_batches=lanes, **host), ffn(MODEL, 1, 2, **host), **links
    )
    return llmsim.run(fields, LOAD, cost_source="roofline")


def test_one_lane_is_on_one_side_or_on_its_way() -> None:
    """While one side computes the only lane, or its rows are on their way, the other one waits."""
    result = run(1)
    [row] = result.summary["afd"]
    assert (row["attention_groups"], row["ffn_groups"]) == ([0], [1])
    # Each of the three shares is rounded to six digits.
    assert abs(row["attention_idle"] - (1 - row["ffn_idle"] + row["m2n"])) <= 2e-6
    assert 0 < row["m2n"] < 0.5
    times = result.requests
    assert (times["m2n_ps"] > 0).all()
    parts = [name for name in times.columns if name.endswith("_ps") and name in CAUSES]
    assert (times[parts].sum(axis=1) == times["e2el_ps"]).all()


CAUSES = (
    "api_ps", "queue_ps", "wait_ps", "prefill_ps", "decode_ps", "communication_ps", "m2n_ps",
    "host_ps", "kv_transfer_ps", "preemption_ps", "abandoned_ps",
)  # fmt: skip


def test_rows_take_the_time_of_their_links() -> None:
    """A tenth of the rate takes at most ten times as long, and lanes hide some of it."""
    fast, slow = run(1), run(1, link_bw=[450, 45, 50])
    figures = [one.summary["blame"]["m2n"]["mean_ms"] for one in (fast, slow)]
    assert figures[0] < figures[1] < 10 * figures[0]
    lanes = run(2, link_bw=[450, 45, 50])
    [alone], [hidden] = slow.summary["afd"], lanes.summary["afd"]
    assert hidden["m2n"] < alone["m2n"] and hidden["ffn_idle"] < alone["ffn_idle"]
    assert (
        "m2n"
        not in llmsim.run(
            cluster({"model_name": MODEL, "hardware": "H100"}), LOAD, cost_source="roofline"
        ).summary["blame"]
    )


def test_bytes_of_rows_by_hand() -> None:
    """Each of 48 layers sends 2,048 numbers of 2 bytes for each token, there and back."""
    result = run(1)
    tokens = int(result.groups["scheduled_tokens"].sum())
    [row] = result.summary["afd"]
    there_and_back = 2 * 48 * 2048 * 2 * tokens
    assert there_and_back <= row["m2n_bytes"]

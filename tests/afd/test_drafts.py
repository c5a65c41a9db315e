"""Drafts under attention-FFN disaggregation: the attention's devices propose, and batches with
verifications are cut into lanes.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from afd.clusters import attention, cluster, ffn, written

import llmsim
from llmsim.cli import main
from llmsim.config.errors import InputError, NotYetError

MOE, DENSE = "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B"
NAMES = ["arrival_ps", "first_token_ps", "finish_ps", "itl_ps"]
LOAD = "synthetic:n=40,rate=200,input=lognormal:200,output=lognormal:60,seed=3"
RATES = {"num_speculative_tokens": 3, "acceptance_rate": [0.8, 0.6, 0.5]}
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", **RATES},
    "eagle": {"method": "eagle", **RATES},
    "eagle3": {"method": "eagle3", **RATES},
    "every rank for itself": {"method": "eagle", "draft_tensor_parallel_size": 1, **RATES},
    "in parallel": {"method": "eagle", "parallel_drafting": True, **RATES},
    "draft model": {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B", **RATES},
}
HOST = {"engine": {"launch_ns": 0}}


@pytest.mark.usefixtures("no_ways")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("exact", [False, True])
def test_equal_to_one_set_of_devices(tmp_path: Path, method: str, exact: bool) -> None:
    """Ways that take no time, and one lane: today's steps with drafts, to the ps."""
    together = {"model_name": DENSE, "hardware": "H100", "tp_size": 2}
    apart = [attention(DENSE, 2, afd_micro_batches=1), ffn(DENSE, 2)]
    load = LOAD if not exact else "synthetic:n=4,rate=200,input=fixed:90,output=fixed:12,seed=3"
    first, second = (
        llmsim.run(
            written(tmp_path, cluster(*instances, **HOST)),
            load,
            cost_source="roofline",
            enforce_eager=True,  # each side pads to its own captured sizes
            speculative_config=METHODS[method],
            exact=exact,
        )
        for instances in ([together], apart)
    )
    assert first.requests[NAMES].equals(second.requests[NAMES])
    columns = [name for name in first.requests.columns if "draft" in name or "accepted" in name]
    assert columns and first.requests[columns].equals(second.requests[columns])
    assert first.requests[columns].sum().sum() > 0
    assert second.summary["invariants"]["5 tokens"] == "ok"


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("dispatch", ["dense", "routed"])
def test_folded_is_expanded(tmp_path: Path, lanes: int, dispatch: str) -> None:
    """Verifications are cut at lanes' borders."""
    keys = {"afd_micro_batches": lanes, "afd_dispatch": dispatch}
    sides = [attention(MOE, 1, 2, **keys), ffn(MOE, 1, 2)]
    load = "synthetic:n=6,rate=300,input=fixed:80,output=fixed:14,seed=2"
    drafts = METHODS["draft model"] | {"model": "Qwen/Qwen3-0.6B"}
    folded, exact = (
        llmsim.run(
            written(tmp_path, cluster(*sides)),
            load,
            speculative_config=drafts,
            exact=exact,
            check_every_step=True,
        )
        for exact in (False, True)
    )
    assert folded.requests[NAMES].equals(exact.requests[NAMES])
    assert set(folded.summary["invariants"].values()) == {"ok"}


def test_a_step_with_drafts_by_hand(tmp_path: Path) -> None:
    """The step ends when the attention's devices have proposed: with eagle, as long after the same
    step without a proposal as the passes take, which ngram has none of.
    """
    ends = {}
    for method in ("ngram", "eagle"):
        fields = cluster(attention(DENSE, 2, afd_micro_batches=2), ffn(DENSE, 2))
        result = llmsim.run(
            written(tmp_path, fields),
            [llmsim.Request(0.0, 64, 12)],
            speculative_config=METHODS[method] | {"acceptance_rate": 0.0},
            async_scheduling=False,
        )
        ends[method] = result
    graph = ends["eagle"].graph(0, 3)
    drafted = [one for _, one in graph.nodes(data=True) if one["name"].startswith("draft ")]
    assert drafted and {one["rank"] for one in drafted} == {0, 1}
    first_us = min(one["start_us"] for one in drafted)
    last_us = max(one["start_us"] + one["duration_us"] for one in drafted)
    steps = {
        name: one.steps[(one.steps["group"] == 0) & (one.steps["tokens"] > 0)].iloc[3]
        for name, one in ends.items()
    }
    took_us = {name: (one["end_ps"] - one["start_ps"]) / 1e6 for name, one in steps.items()}
    assert took_us["eagle"] - took_us["ngram"] == pytest.approx(last_us - first_us, rel=1e-9)


def test_every_steps_graph_lasts_as_long_as_the_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the host's work between two steps, which is no node."""
    import pyarrow.parquet as pq

    fields = cluster(attention(DENSE, 2, afd_micro_batches=2), ffn(DENSE, 2))
    said = ["run", "--cluster-config", str(written(tmp_path, fields)), "--dataset", LOAD]
    said += ["--speculative-config", json.dumps(METHODS["eagle"]), "--no-async-scheduling"]
    assert main([*said, "--graphs", str(tmp_path / "graphs")]) == 0
    rows = pq.read_table(tmp_path / "graphs" / "index.parquet").to_pylist()
    assert len(rows) > 50 and {row["group"] for row in rows} == {0}
    gap_ps = {row["end_ps"] - row["start_ps"] - row["graph_ps"] for row in rows}
    assert gap_ps == {600_000_000}


def test_the_ledger_of_the_attention_has_the_drafter(tmp_path: Path) -> None:
    blocks = []
    for drafts in (None, METHODS["draft model"]):
        fields = cluster(attention(DENSE, 1), ffn(DENSE, 1))
        more = {} if drafts is None else {"speculative_config": drafts}
        result = llmsim.run(
            written(tmp_path, fields), "synthetic:n=1,rate=1,input=64,output=4", **more
        )
        blocks.append([one.num_blocks for one in result._results.groups])
    assert blocks[1][0] < blocks[0][0]


def test_what_is_refused(tmp_path: Path) -> None:
    sides = [attention(MOE, 1, 2), ffn(MOE, 1, 2)]
    with pytest.raises(NotYetError, match="has experts, which would lie on the devices of the FFN"):
        llmsim.run(
            written(tmp_path, cluster(*sides)), LOAD, speculative_config={"method": "mtp", **RATES}
        )
    sides = [attention(DENSE), ffn(DENSE, speculative_config=METHODS["ngram"])]
    said = "is not that of the attention instances of the afd_group"
    with pytest.raises(InputError, match=said):
        llmsim.run(written(tmp_path, cluster(*sides)), LOAD)

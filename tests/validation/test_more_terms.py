"""Terms of hosts with several devices, of streaming kernels and of 4-bit experts, switched off."""

from typing import Any

import pytest

import llmsim

LOAD = "synthetic:n=6,rate=20,input=fixed:256,output=fixed:32"


def summary(model: str, device: str, tp: int = 1, **options: Any) -> dict[str, Any]:
    return llmsim.run(llmsim.Cluster.build(model, device, tp=tp), LOAD, **options).summary


def sources(found: dict[str, Any], operator: str) -> set[str]:
    return {one["source"] for one in found["sources"]["operators"] if one["operator"] == operator}


def test_without_host_ranks_several_devices_wait_as_long_as_one() -> None:
    """3.1 ms between two steps of a synchronous vLLM 0.11 on more than one device."""
    engine = {"engine_profile": "vllm-0.11", "async_scheduling": False, "cost_source": "roofline"}
    model, term = "Qwen/Qwen3-8B", {"disable_term": "host_ranks"}
    whole = summary(model, "H100", 2, **engine)
    without = summary(model, "H100", 2, **engine, **term)
    none = summary(model, "H100", 2, **engine, disable_term=["host_ranks", "host_gap"])
    gap, one_gap = (found["mean_tpot_ms"] - none["mean_tpot_ms"] for found in (whole, without))
    assert gap - one_gap == pytest.approx(3.1, abs=0.35)  # prompts of others lengthen some steps
    alone = summary(model, "H100", **engine)
    assert alone["mean_tpot_ms"] == summary(model, "H100", **engine, **term)["mean_tpot_ms"]


def test_a_gap_that_was_given_has_no_part_of_several_devices() -> None:
    fields = llmsim.Cluster.build("Qwen/Qwen3-8B", "H100", tp=2).fields()
    fields["engine"] = {"engine_profile": "vllm-0.11", "host_gap_ns": 2_000_000}
    runs = [llmsim.run(fields, LOAD, disable_term=terms) for terms in ([], ["host_ranks"])]
    assert runs[0].summary["mean_tpot_ms"] == runs[1].summary["mean_tpot_ms"]


def test_without_card_streaming_an_engine_takes_its_own_table() -> None:
    pytest.importorskip("aiconfigurator_core")
    engine = {"engine_profile": "sglang-0.5", "cost_source": "silicon"}
    (of_card,) = sources(summary("Qwen/Qwen3-8B", "H100", **engine), "layernorm")
    (own,) = sources(
        summary("Qwen/Qwen3-8B", "H100", **engine, disable_term="card_streaming"), "layernorm"
    )
    assert " vllm " in of_card and " sglang " in own


def test_without_weight_only_experts_the_data_sheet_prices_them() -> None:
    pytest.importorskip("aiconfigurator_core")
    model, device = "openai/gpt-oss-120b", "A100-80GB-SXM"
    stand_in = summary(model, device)["sources"]["by_source"]
    peaks = summary(model, device, disable_term="weight_only_experts")["sources"]["by_source"]
    assert any("int4_wo" in name for name in stand_in)
    assert not any("int4_wo" in name for name in peaks)


def on_ranks(ranks: int, **options: Any) -> dict[str, Any]:
    """A mixture of experts of which each rank has its share, whole."""
    fields = llmsim.Cluster.build("Qwen/Qwen3-30B-A3B", "H200", tp=ranks).fields()
    fields["nodes"][0]["instances"][0]["ep_size"] = ranks
    return llmsim.run(fields, LOAD, **options).summary


@pytest.mark.parametrize("source", ["silicon", "roofline"])
def test_without_fullest_rank_every_rank_has_the_expected_load(source: str) -> None:
    def tpot_ms(ranks: int, **options: Any) -> float:
        return on_ranks(ranks, cost_source=source, **options)["mean_tpot_ms"]

    whole, without = tpot_ms(2), tpot_ms(2, disable_term="fullest_rank")
    assert 1.005 * without < whole < 1.3 * without
    assert without == tpot_ms(2, expert_routing_policy="BALANCED")
    assert tpot_ms(1) == tpot_ms(1, expert_routing_policy="BALANCED"), "nobody waits for one rank"


@pytest.mark.parametrize("source", ["silicon", "roofline"])
def test_sources_name_the_fullest_rank(source: str) -> None:
    found = on_ranks(2, cost_source=source)
    assert all("of the fullest rank" in one for one in sources(found, "moe"))
    even = on_ranks(2, cost_source=source, expert_routing_policy="BALANCED")
    assert not any("of the fullest rank" in one for one in sources(even, "moe"))

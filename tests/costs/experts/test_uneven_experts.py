"""Where times of unevenly loaded experts come from: measured so, or drawn for every layer."""

import pytest
from costs.builders import needs_database, request
from msgspec.structs import replace

from llmsim.costs import EngineVersions, compile_costs
from llmsim.costs.experts.routing import parse_expert_routing

MODEL = "Qwen/Qwen3-30B-A3B"


@needs_database
@pytest.mark.parametrize(
    ("policy", "ranks", "sampled"),
    [("POWER_LAW", 1, False), ("POWER_LAW", 2, True), ("ZIPF:s=1", 1, True)],
)
def test_only_all_experts_under_a_power_law_were_measured_unevenly(
    policy: str, ranks: int, sampled: bool
) -> None:
    """The tables of the database hold a power law over experts that one rank has all of."""
    routing = parse_expert_routing(policy)
    asked = request(
        MODEL, "H100", tp=ranks, ep=ranks, max_tokens=64, source="silicon", expert_routing=routing
    )
    asked = replace(asked, expert_placement=replace(asked.expert_placement, ranks=ranks))
    experts = next(op for op in compile_costs(asked).ops if op.name == "moe")
    assert (experts.sampled is not None) is sampled
    assert ("loads drawn" in experts.source) is sampled


@needs_database
def test_redundant_experts_are_drawn_although_one_rank_has_all() -> None:
    routing = parse_expert_routing("POWER_LAW")
    asked = request(MODEL, "H100", max_tokens=64, source="silicon", expert_routing=routing)
    asked = replace(
        asked, expert_placement=replace(asked.expert_placement, redundant=8, balanced=True)
    )
    assert next(op for op in compile_costs(asked).ops if op.name == "moe").sampled is not None


@needs_database
@pytest.mark.parametrize(("alpha", "measured"), [("1.01", "1.01"), ("1.15", "1.2"), ("2", "1.2")])
def test_the_nearest_measured_power_law_is_taken(alpha: str, measured: str) -> None:
    routing = parse_expert_routing(f"POWER_LAW:alpha={alpha}")
    asked = request(MODEL, "H100", max_tokens=64, source="silicon", expert_routing=routing)
    experts = next(op for op in compile_costs(asked).ops if op.name == "moe")
    assert f"power_law_{measured} routing" in experts.source


@needs_database
def test_rows_behind_a_models_own_router_are_left_out_under_a_power_law_too() -> None:
    """SGLang 0.5.14 timed DeepSeek-V3 behind its own router, which keeps half of the experts."""
    routing = parse_expert_routing("POWER_LAW")
    asked = request(
        "deepseek-ai/DeepSeek-V3",
        "H200",
        tp=8,
        ep=1,
        max_tokens=64,
        source="silicon",
        expert_routing=routing,
        engine=EngineVersions(framework="sglang"),
    )
    experts = next(op for op in compile_costs(asked).ops if op.name == "moe")
    assert "hidden=6144" in experts.source

"""Shared experts in the kernel of the others, where SGLang runs them."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import llmsim
from llmsim.config import load_profile
from llmsim.costs import CostRequest, compile_costs
from llmsim.costs.experts.load_sampling import Placement, Price, sampled_table, token_axis
from llmsim.costs.experts.routing import parse_expert_routing
from llmsim.lowering.operators.shared_experts import as_engine_runs_it
from llmsim.model import Layout, Moe, load_hardware, load_model, operators, resolve_dtypes
from llmsim.model.memory.sizes import weight_bytes
from llmsim.power.traffic import weight_bytes as bytes_touched

DEEPSEEK = "deepseek-ai/DeepSeek-V3"
GLM = "zai-org/GLM-4.5"
LOAD = "synthetic:n=16,rate=50,input=fixed:300,output=fixed:20"


def in_kernel(
    name: str, card: str, *, layout: Layout | None = None, profile: str = "sglang-0.5"
) -> bool:
    model = load_model(name)
    found = as_engine_runs_it(
        model,
        layout or Layout(tp=8),
        resolve_dtypes(model),
        load_hardware(card),
        load_profile(profile),
    )
    return found.shared_with_experts


@pytest.mark.parametrize(
    ("name", "card", "together"),
    [
        (DEEPSEEK, "H200", True),
        (DEEPSEEK, "A100", True),
        (DEEPSEEK, "B200", False),  # FlashInfer's kernel of fp8 experts
        (DEEPSEEK, "MI300X", False),
        ("nvidia/DeepSeek-R1-0528-FP4-v2", "B200", False),
        ("moonshotai/Kimi-K2-Instruct", "H200", False),  # 384 experts
        ("deepseek-ai/DeepSeek-V3.2", "H200", False),
        (GLM, "H200", True),
        (GLM, "B300", False),
        (GLM, "RTX-PRO-6000", True),
        ("Qwen/Qwen3-30B-A3B", "H100", False),  # none is shared
    ],
)
def test_models_and_cards(name: str, card: str, together: bool) -> None:
    assert in_kernel(name, card) == together
    assert not in_kernel(name, card, profile="vllm-0.33")


def test_experts_on_ranks_of_their_own_leave_it_apart() -> None:
    assert not in_kernel(DEEPSEEK, "H200", layout=Layout(tp=8, ep=8))


def test_a_card_of_unknown_generation_leaves_it_apart() -> None:
    model, sheet = load_model(DEEPSEEK), load_hardware("H200")
    assert sheet is not None
    for card in (None, replace(sheet, compute_capability=None)):
        dtypes, profile = resolve_dtypes(model), load_profile("sglang-0.5")
        assert not as_engine_runs_it(model, Layout(tp=8), dtypes, card, profile).shared_with_experts


def experts_of(model: Any, layout: Layout) -> Moe:
    program = operators(model, layout, resolve_dtypes(model))
    return next(op for op in program if isinstance(op, Moe))


def test_the_kernel_has_the_work_of_both() -> None:
    """Weights and operations of the program are the same; the shared expert is always touched."""
    apart, layout = load_model(DEEPSEEK), Layout(tp=8)
    together = replace(apart, shared_with_experts=True)
    dtypes = resolve_dtypes(apart)
    assert weight_bytes(together, layout, dtypes) == weight_bytes(apart, layout, dtypes)
    programs = [operators(model, layout, dtypes) for model in (apart, together)]
    sums = [
        sum(op.repeat * op.flops_per_token for op in program if "act_fn" not in op.name)
        for program in programs
    ]
    assert sums[0] == sums[1]
    names = [{op.name for op in program} for program in programs]
    assert {name for name in names[0] - names[1]} == {
        "shared_expert_up_proj", "shared_expert_act_fn", "shared_expert_down_proj",
    }  # fmt: skip
    moe = experts_of(together, layout)
    assert (moe.experts_local, moe.always, moe.held) == (256, 1, 257)
    one = np.array([0.0, 1.0])
    assert moe.touched(one).tolist() == pytest.approx([0, 9])
    assert moe.tokens_per_pair == pytest.approx(1 / 9)
    read = bytes_touched(moe, np.array([0, 1]))
    assert read.tolist() == pytest.approx([0, moe.weight_bytes * 9 / 257])


def curve(model: Any, source: str) -> np.ndarray:
    layout, dtypes = Layout(tp=8), resolve_dtypes(model)
    found = CostRequest(
        model=model,
        layout=layout,
        dtypes=dtypes,
        hardware_name="H200",
        hardware=load_hardware("H200"),
        group_memory_bandwidth_bytes_per_s=0,
        operators=operators(model, layout, dtypes),
        max_tokens=8192,
        max_seqs=64,
        max_model_len=16384,
        source=source,  # type: ignore[arg-type]
    )
    return next(op for op in compile_costs(found).ops if op.name == "moe").ps


@pytest.mark.parametrize("source", ["silicon", "roofline"])
def test_times_grow_by_one_expert_or_by_one_of_nine(source: str) -> None:
    """Few tokens read the weights of one more expert, many compute nine products for eight."""
    apart = load_model(DEEPSEEK)
    own, both = curve(apart, source), curve(replace(apart, shared_with_experts=True), source)
    touched = 256 * (1 - (1 - 8 / 256) ** 8)
    assert both[8] / own[8] == pytest.approx((touched + 1) / touched, rel=0.005)
    assert 1.0 < both[64] / own[64] < 1.02
    assert 1.05 < both[8192] / own[8192] < 9 / 8 + 0.005


@pytest.mark.parametrize("policy", ["RAND", "ZIPF:s=1", "RR"])
def test_uneven_loads_have_it_as_well(policy: str) -> None:
    """Drawn loads have one more expert, and one more pair for each token."""
    routing = parse_expert_routing(policy)
    apart = Moe(
        name="moe", repeat=2, experts_total=256, experts_local=256, topk=8, moe_inter=1,
        weight_bytes=256,
    )  # fmt: skip
    together = replace(apart, always=1, weight_bytes=257)

    def table(op: Moe, price: Price) -> np.ndarray:
        return sampled_table(routing, op, 512, Placement(), price, 0)[0].ps

    def of_pairs(pairs: np.ndarray, touched: np.ndarray) -> np.ndarray:
        return pairs

    def of_touched(pairs: np.ndarray, touched: np.ndarray) -> np.ndarray:
        return touched

    more_pairs = (table(together, of_pairs) - table(apart, of_pairs)) / 1e6
    assert (more_pairs == token_axis(512)).all()
    more_touched = (table(together, of_touched) - table(apart, of_touched)) / 1e6
    assert (more_touched == 1).all()


def test_a_run_with_drawn_loads_has_it_as_well() -> None:
    """Drawn loads of one rank are even, so both runs take as long within the noise of draws."""
    cluster = llmsim.Cluster.build(DEEPSEEK, "H200", tp=8).fields()
    cluster["nodes"][0]["instances"][0]["ep_size"] = 1
    of = {
        policy: llmsim.run(
            cluster,
            LOAD,
            cost_source="silicon",
            engine_profile="sglang-0.5",
            expert_routing_policy=policy,
        ).summary["mean_tpot_ms"]
        for policy in ("BALANCED", "RAND")
    }
    assert of["RAND"] == pytest.approx(of["BALANCED"], rel=0.005)

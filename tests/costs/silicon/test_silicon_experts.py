"""Which of the database's rows price experts: by the format of their weights, and only rows that
the memory's bandwidth allows.
"""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from llmsim.costs import CostRequest, EngineVersions, compile_costs
from llmsim.costs.experts.grouped_work import MoeShape
from llmsim.costs.sources.silicon.collectives import custom_rows
from llmsim.costs.sources.silicon.experts.rows import padded_shape, wanted_shape
from llmsim.lowering.group import engine_versions
from llmsim.model import Moe, load_model, resolve_dtypes
from tests.costs.builders import database, needs_database, request

pytestmark = needs_database

DEEPSEEK, KIMI = "deepseek-ai/DeepSeek-V3", "nvidia/Kimi-K2.5-NVFP4"
TOKENS = np.array([64, 128, 256])
FASTEST = 1.1
"""Share of a data sheet's bandwidth that a measured read may have."""


def asked(name: str, hardware: str, *, tp: int = 1, **changes: Any) -> CostRequest:
    return request(name, hardware, tp=tp, dtypes=resolve_dtypes(load_model(name)), **changes)


def of_experts(found: CostRequest) -> tuple[str, np.ndarray]:
    """Source, and microseconds at `TOKENS`."""
    curve = next(op for op in compile_costs(found).ops if op.name == "moe")
    return curve.source, curve.ps[TOKENS] / 1e6


@pytest.mark.parametrize(
    ("name", "hardware", "table"),
    [
        (KIMI, "B200", "moe nvfp4"),
        (KIMI, "B300", "moe nvfp4"),
        ("nvidia/DeepSeek-R1-0528-FP4-v2", "B200", "moe nvfp4"),
        ("openai/gpt-oss-120b", "B200", "moe w4a16_mxfp4"),
        ("openai/gpt-oss-120b", "H100", "moe w4a16_mxfp4"),
        ("deepseek-ai/DeepSeek-V4-Flash", "B200", "moe w4a8_mxfp4_mxfp8"),
        ("deepseek-ai/DeepSeek-V4-Pro", "B300", "moe w4a8_mxfp4_mxfp8"),
        ("deepseek-ai/DeepSeek-V4-Flash", "H200", "moe w4a16_mxfp4"),
        ("moonshotai/Kimi-K3", "B200", "moe w4a16_mxfp4"),
        (DEEPSEEK, "H200", "moe fp8_block"),
    ],
)
def test_experts_of_four_bits_have_the_rows_of_their_format(
    name: str, hardware: str, table: str
) -> None:
    assert table in of_experts(asked(name, hardware, tp=8))[0]


def test_sglang_narrows_the_inputs_of_mxfp4_experts() -> None:
    sglang = EngineVersions(framework="sglang")
    found = of_experts(asked("openai/gpt-oss-120b", "B200", tp=8, engine=sglang))
    assert "sglang 0.5.14 moe w4a8_mxfp4_mxfp8" in found[0]


@pytest.mark.parametrize(
    ("profile", "hardware", "kernel"),
    [
        ("vllm-0.10", "H100", "w4a16_mxfp4 on Marlin"),
        ("vllm-0.11", "H200", "w4a16_mxfp4 on Marlin"),
        ("vllm-0.11.1", "H100", "w4a16_mxfp4"),
        ("vllm-0.13", "H100", "w4a16_mxfp4"),
        ("vllm-0.24", "H200", "w4a16_mxfp4"),
        ("vllm-0.11", "B200", "w4a16_mxfp4"),
        ("vllm-0.24", "A100", "int4_wo"),
        ("sglang-0.5", "H100", "w4a16_mxfp4"),
    ],
)
def test_earlier_engines_run_mxfp4_experts_on_marlin(
    profile: str, hardware: str, kernel: str
) -> None:
    """The package with Triton's kernel was no part of vLLM before 0.12, and A100s never have it."""
    found = of_experts(asked("openai/gpt-oss-120b", hardware, engine=engine_versions(profile)))
    assert f"{kernel}, " in found[0]


def test_marlins_own_rows_of_mxfp4_come_before_those_of_int4() -> None:
    """On an H100 Marlin takes less than Triton's kernel for four tokens and more for 2,048; an A100
    has no rows of MXFP4 at all.
    """

    def us(profile: str, tokens: int) -> float:
        engine = engine_versions(profile)
        found = compile_costs(asked("openai/gpt-oss-120b", "H100", engine=engine))
        return float(next(op for op in found.ops if op.name == "moe").ps[tokens]) / 1e6

    assert 0.6 < us("vllm-0.11", 4) / us("vllm-0.13", 4) < 0.9
    assert 1.2 < us("vllm-0.11", 2048) / us("vllm-0.13", 2048) < 4
    stand_in = asked("openai/gpt-oss-120b", "A100", engine=engine_versions("vllm-0.11"))
    assert " int4_wo, " in of_experts(stand_in)[0]


def test_marlin_multiplies_whole_tiles() -> None:
    """gpt-oss-120b has experts 2,880 wide on a hidden size of 2,880, or 1,440 on two ranks."""
    for tp, inter in ((1, 2944), (2, 2 * 1536)):
        found = asked("openai/gpt-oss-120b", "A100", tp=tp)
        op = next(op for op in found.operators if isinstance(op, Moe))
        assert (wanted_shape(op, found).hidden, wanted_shape(op, found).inter) == (2880, 2880)
        padded = padded_shape(op, found)
        assert (padded.hidden, padded.inter, padded.experts) == (3072, inter, 128)
    other = asked("Qwen/Qwen3-30B-A3B", "A100")
    op = next(op for op in other.operators if isinstance(op, Moe))
    assert padded_shape(op, other) == wanted_shape(op, other)


def test_nvfp4_stores_a_scale_for_sixteen_elements() -> None:
    kimi, oss = load_model(KIMI), load_model("openai/gpt-oss-120b")
    assert kimi.format_of("experts").narrow_inputs
    assert oss.format_of("experts").dtype == "fp4"
    assert not oss.format_of("experts").narrow_inputs
    assert load_model(DEEPSEEK).format_of("experts").narrow_inputs
    assert not load_model("Qwen/Qwen3-8B").format_of("mlp").narrow_inputs


@pytest.mark.parametrize("hardware", ["H100", "H200", "B200", "B300", "GB200"])
@pytest.mark.parametrize("engine", [EngineVersions("0.24"), EngineVersions(framework="sglang")])
@pytest.mark.parametrize(
    "name",
    [DEEPSEEK, "nvidia/DeepSeek-R1-0528-FP4-v2", KIMI, "Qwen/Qwen3-235B-A22B", "zai-org/GLM-4.5"],
)
def test_no_rows_read_weights_faster_than_the_memory(
    name: str, hardware: str, engine: EngineVersions
) -> None:
    """The rows of DeepSeek-V3's shape were measured behind a router that keeps half of the experts:
    at 32 tokens in turn they read 8 TB/s on an H200, if all were touched.
    """
    found = asked(name, hardware, tp=1, engine=engine)
    if found.hardware is None or (hardware[0] == "H" and "FP4" in name):
        pytest.skip("Hopper has no products of 4 bits")
    model, sheet = found.model, found.hardware
    op = next(op for op in found.operators if op.name == "moe")
    topk, experts = model.num_experts_per_tok, model.num_experts
    shape = MoeShape(model.expert_hidden, model.moe_intermediate_size, topk, experts, 1, 1)
    read = op.weight_bytes * shape.touched(TOKENS.astype(float)) / experts
    _, us = of_experts(found)
    assert (read / (us * 1e-6) < FASTEST * sheet.memory_bandwidth_bytes_per_s).all()


def test_rows_of_all_experts_are_kept() -> None:
    """vLLM 0.19 measured DeepSeek-V3's experts without its router; 0.24 did not."""
    own = of_experts(asked(DEEPSEEK, "H200", tp=8, engine=EngineVersions("0.19")))
    another = of_experts(asked(DEEPSEEK, "H200", tp=8, engine=EngineVersions("0.24")))
    assert "scaled from" not in own[0]
    assert "scaled from MoeShape(hidden=6144" in another[0]
    assert np.abs(another[1] / own[1] - 1).max() < 0.15


def test_ranks_with_a_share_of_the_experts_are_as_fast_as_those_with_a_share_of_each() -> None:
    """Of long prompts; the first four experts of the rows that are left out have every token."""
    tokens = 8192
    shared = asked(DEEPSEEK, "H200", tp=8, max_tokens=tokens)
    apart = asked(DEEPSEEK, "H200", tp=8, ep=8, max_tokens=tokens)
    times = [
        next(op for op in compile_costs(found).ops if op.name == "moe").ps[tokens]
        for found in (shared, apart)
    ]
    assert times[1] < 1.35 * times[0]


@pytest.mark.parametrize("hardware", ["A100", "H100", "H200"])
@pytest.mark.parametrize("name", ["zai-org/GLM-4.5-Air", "Qwen/Qwen3-30B-A3B"])
def test_ranks_multiply_no_pairs_of_the_experts_of_others(name: str, hardware: str) -> None:
    """Rows of SGLang 0.5.10 have the pairs of all ranks on each, and are left out."""
    tokens, engine = 8192, EngineVersions(framework="sglang", sglang="0.5.10")
    whole = asked(name, hardware, max_tokens=tokens, engine=engine)
    shared = asked(name, hardware, tp=4, ep=4, max_tokens=tokens, engine=engine)
    costs = [compile_costs(found).ops for found in (whole, shared)]
    one, four = (next(op for op in ops if op.name == "moe") for ops in costs)
    assert "tp=1, ep=1, " in four.source
    assert 0.2 < four.ps[tokens] / one.ps[tokens] < 0.4


def test_rows_that_split_the_pairs_are_kept() -> None:
    """Of SGLang's next measured release, and of vLLM's, which halve the pairs on two ranks."""
    for engine in (EngineVersions(framework="sglang", sglang="0.5.14"), EngineVersions("0.24")):
        found = asked("Qwen/Qwen3-30B-A3B", "H200", tp=4, ep=4, engine=engine)
        assert "scaled from" not in of_experts(found)[0]


def test_a_sglang_server_has_latent_attention_kernel_by_kernel() -> None:
    """SGLang measured the products of decodes that stand in for the projection of keys and values;
    vLLM measured its module whole.
    """
    dtypes = resolve_dtypes(load_model(DEEPSEEK))
    vllm, sglang = (
        compile_costs(request(DEEPSEEK, "H200", tp=8, dtypes=dtypes, engine=engine))
        for engine in (EngineVersions("0.24"), EngineVersions(framework="sglang"))
    )
    of_vllm = {op.name: op for op in vllm.ops}
    of_sglang = {op.name: op for op in sglang.ops}
    assert "latent_decodes" not in of_vllm
    products = of_sglang["latent_decodes"]
    assert "sglang" in products.source and "mla_products fp8" in products.source
    assert "mla_generation_kernel" in sglang.attention.source
    both = products.ps[8] + of_sglang["kv_b_proj"].ps[8]
    assert both == pytest.approx(16.28e6, rel=0.02), "two products of 16 heads, 8 tokens, FP8"


def test_a_sglang_server_reduces_with_its_own_kernel() -> None:
    of_card = database("B200")
    for framework in ("vllm", "sglang"):
        engine = EngineVersions(framework=framework)
        rows = custom_rows(replace(of_card, engine=engine), 8, eager=False)
        assert rows is not None and f" {framework} " in rows[0]

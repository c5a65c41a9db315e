"""Latent attention and block-quantised weights from the silicon database: of models and cards not
measured.
"""

import numpy as np
import pytest

from llmsim.core import Provenance
from llmsim.costs import CompiledCosts, compile_costs
from llmsim.costs.catalog import look
from llmsim.costs.compile import build
from llmsim.costs.explain import decode_us, prefill_us
from llmsim.costs.hardware_limits import peak_rates_of
from llmsim.costs.source import SplitAttention
from llmsim.costs.sources.silicon import source as silicon
from llmsim.costs.sources.silicon.attention.grid import _undisturbed
from llmsim.costs.sources.silicon.attention.mla import INSIDE
from llmsim.costs.sources.silicon.gemm import HOST_BOUND_US, load_gemm
from llmsim.model import Dtypes, Layout, load_model, operators, resolve_dtypes
from tests.costs.builders import SYSTEMS, database, needs_database, request, split_grid

pytestmark = needs_database

LATENT_NAMES = {*INSIDE, "rotary_emb", "kv_write", "latent_decodes"}


def latent_block_us(costs: CompiledCosts, n: int, cached: int) -> float:
    """Attention of one layer with its projections, for a decode batch."""
    assert isinstance(costs.attention, SplitAttention)
    return decode_us(costs.attention, n, cached) + sum(
        op.ps[n] / 1e6 for op in costs.ops if op.name in LATENT_NAMES
    )


def latent_prompt_us(costs: CompiledCosts, tokens: int) -> float:
    """The same for one prompt."""
    names = {*INSIDE, "rotary_emb", "kv_write", "latent_prefills"}
    return prefill_us(costs.attention, tokens, 0) + sum(
        op.ps[tokens] / 1e6 for op in costs.ops if op.name in names
    )


@pytest.mark.parametrize("hardware", ["H100", "H200", "B200"])
@pytest.mark.parametrize("tp", [1, 8])
def test_kernels_and_projections_come_near_the_measured_module(
    hardware: str, tp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSeek-V3, whose whole module was measured, priced as if it were another model with latent
    attention.
    """
    asked = request(
        "deepseek-ai/DeepSeek-V3", hardware, tp=tp, dtypes=resolve_dtypes(load_model("DeepSeek-V3"))
    )
    module = compile_costs(asked)
    monkeypatch.setattr(silicon, "find_modules", lambda *_: None)
    parts = build(asked, look(asked))
    assert "kernel" in parts.attention.source and "kernel" not in module.attention.source
    for n, cached in ((16, 4096), (64, 4096), (128, 8192)):
        ratio = latent_block_us(parts, n, cached) / latent_block_us(module, n, cached)
        assert 0.75 < ratio < 1.17, (n, cached, ratio)
    for prompt in (512, 2048):
        assert 0.9 < latent_prompt_us(parts, prompt) / latent_prompt_us(module, prompt) < 1.2


@pytest.mark.parametrize("hardware", SYSTEMS)
@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V2-Lite", "moonshotai/Kimi-K2-Instruct"])
def test_latent_attention_of_any_model_comes_from_the_tables(model: str, hardware: str) -> None:
    costs = compile_costs(request(model, hardware, tp=4, ep=4))
    assert database(hardware).system in costs.attention.source
    names = [op.name for op in costs.ops]
    written = "kv_write" in names
    assert written == ("kernel" in costs.attention.source)
    if written:
        assert not (split_grid(costs.attention).decode_provenance == Provenance.MEASURED).any()


def test_ranks_that_share_sequences_take_the_kernels() -> None:
    dealt = load_model("deepseek-ai/DeepSeek-V3")
    layout = Layout(8, decode_context=8)
    asked = request(
        "deepseek-ai/DeepSeek-V3",
        "H200",
        tp=8,
        layout=layout,
        operators=operators(dealt, layout, Dtypes()),
    )
    assert "mla_generation_kernel" in compile_costs(asked).attention.source


@pytest.mark.parametrize("hardware", ["H100", "H200", "B200", "GB200", "L40S", "RTXPRO6000"])
def test_block_quantised_weights_are_not_timed_by_the_host(hardware: str) -> None:
    """vLLM's own rows of fp8 in blocks take as long as launching them does, whatever the shape;
    graphs do not.
    """
    peak_rates = peak_rates_of(request(hardware=hardware))
    assert peak_rates is not None
    tables = database(hardware).tables("gemm")
    found = load_gemm(tables, ("fp8_block", "fp8"), 1.0, peak_rates.peak("fp8"), peak_rates)
    assert found is not None and np.nanmin(found.us) < HOST_BOUND_US
    alone = load_gemm(tables[:1], ("fp8_block",), 1.0, peak_rates.peak("fp8"), peak_rates)
    assert alone is not None and "launched kernel by kernel" in alone.label
    wide, narrow = (
        compile_costs(request(name, hardware, dtypes=resolve_dtypes(load_model(name))))
        for name in ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8")
    )
    at = [{op.name: op.ps[16] for op in one.ops} for one in (wide, narrow)]
    assert at[1]["gate_up_proj"] < at[0]["gate_up_proj"]  # half the weights


def test_rows_that_something_disturbed_are_not_believed() -> None:
    times = np.array([[20.0, 781.0, 22.0, 24.0, 40.0], [10.0, np.nan, 12.0, 11.0, 300.0]])
    kept = np.array([[20.0, 22.0, 22.0, 24.0, 40.0], [10.0, np.nan, 12.0, 11.0, 300.0]])
    assert np.array_equal(_undisturbed(times), kept, equal_nan=True)


@pytest.mark.parametrize("hardware", ["H100", "H200", "B200", "A100", "RTXPRO6000"])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_fewer_heads_never_take_longer(hardware: str, tp: int) -> None:
    whole, part = (
        compile_costs(request("deepseek-ai/DeepSeek-V2-Lite", hardware, tp=one)).attention
        for one in (1, tp)
    )
    for n, cached in ((1, 128), (4, 1024), (16, 4095), (64, 8191)):
        assert decode_us(part, n, cached) < 1.35 * decode_us(whole, n, cached), (n, cached)
    for prompt in (16, 128, 512, 2048):
        assert prefill_us(part, prompt, 0) < 1.35 * prefill_us(whole, prompt, 0), prompt

"""Prompts of latent attention that run on the cached latents: which ones do, and their times."""

import numpy as np
import pytest

from llmsim.config.engine.latent_prompts import LatentPrompts, LatentServer, latent_prompts
from llmsim.config.engine.profile import load_profile
from llmsim.costs import compile_costs
from llmsim.costs.source import LatentGrid
from llmsim.model import Attention
from tests.costs.builders import needs_database, request, split_grid

DEEPSEEK = "deepseek-ai/DeepSeek-V3"
V3 = ("DeepseekV3ForCausalLM",)
V2 = ("DeepseekV2ForCausalLM",)
SHORT = LatentPrompts(new_tokens=512)
ANY = 1 << 40


@pytest.mark.parametrize(
    ("profile", "server", "limits"),
    [
        ("vllm-0.33", LatentServer(9.0, V3), (512, 0, 0)),
        ("vllm-0.24", LatentServer(9.0, V2), (512, 0, 0)),
        ("vllm-0.28", LatentServer(9.0, V2), (512, 0, 0)),
        ("vllm-0.31", LatentServer(9.0, V2), (512, 0, 0)),
        ("vllm-0.13", LatentServer(9.0, V3), (512, 0, 0)),
        ("vllm-0.11.1", LatentServer(9.0, V3), (512, 0, 0)),
        ("vllm-0.11", LatentServer(9.0, V3), (0, 0, 0)),  # FlashMLA
        ("vllm-0.10", LatentServer(9.0, V3), (0, 0, 0)),
        ("vllm-0.33", LatentServer(9.0, V3, wide_cache=False), (0, 0, 0)),
        ("vllm-0.33", LatentServer(10.0, V3), (0, 0, 0)),
        ("vllm-0.33", LatentServer(8.0, V3), (0, 0, 0)),
        ("vllm-0.33", LatentServer(None, V3), (0, 0, 0)),
        ("sglang-0.5", LatentServer(9.0, V3), (0, 8192, 0)),
        ("sglang-0.5.23", LatentServer(9.0, V3, wide_cache=False), (0, 8192, 0)),
        ("sglang-0.5.23", LatentServer(9.0, V3, prefill_graph_sizes=(4, 8192)), (0, 8192, 8192)),
        ("sglang-0.5.23", LatentServer(10.0, V3, prefill_graph_sizes=(4, 64)), (0, 0, 0)),
        ("sglang-0.5.23", LatentServer(10.3, V2, prefill_graph_sizes=(4, 64)), (0, 8192, 64)),
        ("sglang-0.5.23", LatentServer(8.9, V2), (0, ANY, 0)),
        ("sglang-0.5.23", LatentServer(12.0, V2), (0, ANY, 0)),
        ("sglang-0.5.23", LatentServer(None, V2), (0, 0, 0)),
    ],
)
def test_the_limits_of_an_engine_on_a_card(
    profile: str, server: LatentServer, limits: tuple[int, int, int]
) -> None:
    found = latent_prompts(load_profile(profile).latent_prompts, server)
    assert found.limits == limits and found.ever == any(limits)


def grid_on_latents(source: str, rule: LatentPrompts = SHORT, card: str = "H200") -> LatentGrid:
    asked = request(DEEPSEEK, card, tp=8, source=source, latent_prompts=rule)
    found = split_grid(compile_costs(asked).attention).on_latents
    assert found is not None
    return found


@needs_database
@pytest.mark.parametrize("source", ["silicon", "roofline"])
def test_long_prompts_take_longer_on_the_latents(source: str) -> None:
    asked = request(DEEPSEEK, "H200", tp=8, source=source, latent_prompts=SHORT)
    cost = compile_costs(asked).attention
    grid = split_grid(cost)
    found = grid.on_latents
    assert found is not None and found.rule == SHORT and found.ps.shape == grid.prefill_ps.shape
    row = int(np.searchsorted(grid.q_axis, 2048))
    expanded = split_grid(
        compile_costs(
            request(DEEPSEEK, "H200", tp=8, source=source, context_expansion=False)
        ).attention
    )
    flops = next(op for op in asked.operators if isinstance(op, Attention))
    ratio = flops.decode_flops_per_context_token / flops.flops_per_context_token
    times = found.ps[row, -1] / expanded.prefill_ps[row, -1]
    assert 0.65 * ratio < times < 1.35 * ratio
    assert (np.diff(found.ps, axis=1) >= 0).all()
    assert ("on the latents" in cost.source) == (source == "silicon")


@needs_database
def test_labels_say_whose_times_prompts_take() -> None:
    cost = compile_costs(request(DEEPSEEK, "H200", tp=8, latent_prompts=SHORT)).attention
    expansion, latents = cost.source.split("; cached tokens expanded: ")[1].split(
        "; prompts on the latents: "
    )
    assert "gemm" in expansion and "vllm" in expansion
    assert "sglang" in latents and "mla_context_kernel" in latents


@needs_database
def test_a_card_without_rows_of_that_kernel_takes_its_data_sheet() -> None:
    rule = LatentPrompts(cached_tokens=8192)
    asked = request(DEEPSEEK, "B200", tp=8, latent_prompts=rule)
    cost = compile_costs(asked).attention
    assert "prompts on the latents: data sheet of" in cost.source
    found, sheet = split_grid(cost).on_latents, grid_on_latents("roofline", rule, "B200")
    assert found is not None and found.ps.tolist() == sheet.ps.tolist()


@needs_database
def test_models_that_cache_keys_know_no_latents() -> None:
    assert split_grid(compile_costs(request(latent_prompts=SHORT)).attention).on_latents is None

"""The number of KV blocks of models with layers of several kinds, against the installed vLLM's own
arithmetic.
"""

from typing import Any

import pytest

from llmsim.model import Dtypes, Layout, ModelConfig, load_model
from llmsim.model.memory.hybrid_groups import kv_tables
from llmsim.model.memory.sizes import state_bytes_per_layer
from llmsim.model.parallel.transforms import split_layers
from llmsim.scheduling.conformance.vllm import live as vllm_live

MODELS = (
    "google/gemma-2-9b",
    "google/gemma-3-1b-it",
    "google/gemma-3-27b-it",
    "google/gemma-4-26B-A4B-it",
    "google/gemma-4-31B-it",
    "XiaomiMiMo/MiMo-V2-Flash",
    "openai/gpt-oss-20b",
    "openai/gpt-oss-120b",
    "mistralai/Mistral-7B-v0.1",
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3.5-27B",
)
AVAILABLE = 20 * (1 << 30) + 12345
LONGEST = 4096


def layers_of_vllm(
    model: ModelConfig, layout: Layout, dtypes: Dtypes, block_size: int
) -> list[dict[str, Any]]:
    """What each stage's worker would tell vLLM of its layers."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    dtype = torch.uint8 if dtypes.kv == "fp8" else torch.bfloat16
    shapes = {
        layer: group.shape.on_rank(layout.tp)
        for group in model.softmax_groups
        for layer in group.layers
    }
    sizes = {
        layer: {
            "block_size": block_size,
            "num_kv_heads": shape.kv_heads,
            "head_size": shape.key_dim,
            "head_size_v": shape.value_dim,
            "dtype": dtype,
        }
        for layer, shape in shapes.items()
    }
    page = max(FullAttentionSpec(**size).page_size_bytes for size in sizes.values())
    stages: list[dict[str, Any]] = []
    first = 0
    for count in layout.stage_layers or (model.num_layers,):
        told: dict[str, Any] = {}
        for layer in range(first, first + count):
            kind = model.layer_kinds[layer] if model.layer_kinds else "full"
            if kind == "linear":
                assert model.linear is not None
                state = state_bytes_per_layer(model.linear, layout.tp, dtypes)
                one = {"shapes": ((state,),), "dtypes": (torch.uint8,), "page_size_padded": page}
                told[f"layer.{layer}"] = MambaSpec(block_size=LONGEST, **one)
            elif kind == "sliding":
                told[f"layer.{layer}"] = SlidingWindowSpec(
                    **sizes[layer], sliding_window=model.window
                )
            else:
                told[f"layer.{layer}"] = FullAttentionSpec(**sizes[layer])
        stages.append(told)
        first += count
    return stages


@pytest.mark.skipif(
    vllm_live.installed_version() is None, reason="vLLM is not installed (extra llmsim[vllm])"
)
@pytest.mark.parametrize("name", MODELS)
def test_the_number_of_blocks_is_vllms(name: str) -> None:
    """By TP degree, pipeline stages, type of the cache and block size; and the kinds
    of its tables.
    """
    config, _ = vllm_live.resolve(
        {
            "config": {
                "max_num_seqs": 8,
                "max_num_batched_tokens": 2048,
                "max_model_len": LONGEST,
                "block_size": 16,
                "enable_prefix_caching": False,
                "enable_chunked_prefill": True,
                "async_scheduling": False,
                "num_gpu_blocks": 99,
            }
        }
    )
    config.cache_config.num_gpu_blocks_override = None
    model = load_model(name)
    for tp in (1, 2, 4):
        for stages in (1, 2, 3):
            for kv in ("bf16", "fp8"):
                for asked in (16, 32, 64):
                    layers = tuple(split_layers(model.num_layers, stages)) if stages > 1 else ()
                    layout, dtypes = Layout(tp, stage_layers=layers), Dtypes(kv=kv)
                    ours = [
                        kv_tables(model, at(layout, stage), dtypes, asked)
                        for stage in range(stages)
                    ]
                    size = ours[0].block_size
                    told = layers_of_vllm(model, layout, dtypes, size)
                    theirs = kv_cache_configs(config, told, [AVAILABLE] * stages)
                    assert (
                        min(AVAILABLE // tables.block_bytes for tables in ours)
                        == theirs[0].num_blocks
                    )
                    groups = theirs[0].kv_cache_groups
                    tables = [
                        (window_of(group.kv_cache_spec), group.kv_cache_spec.block_size)
                        for group in groups
                    ]
                    tables.sort(key=lambda table: table[0] < 0)
                    assert list(ours[0].windows) == [window for window, _ in tables]
                    assert list(ours[0].block_sizes) == [
                        block if window >= 0 else size for window, block in tables
                    ]


def kv_cache_configs(config: Any, told: list[dict[str, Any]], available: list[int]) -> Any:
    """vLLM's own, in the layout of keys and values that its attention prefers on GPUs."""
    try:
        from vllm.v1.core import kv_cache_planning as planning  # 0.33
    except ImportError:
        from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

        return get_kv_cache_configs(config, told, available)
    config.cache_config.kv_cache_layout = "LBNHC"
    groups = planning.get_global_kv_cache_groups(config, told)
    return planning.get_kv_cache_configs(config, told, available, groups)


def at(layout: Layout, stage: int) -> Layout:
    from msgspec.structs import replace

    return replace(layout, stage=stage)


def window_of(spec: Any) -> int:
    if type(spec).__name__ == "MambaSpec":
        return -1
    return getattr(spec, "sliding_window", None) or 0

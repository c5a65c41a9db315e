"""Prints the KV cache that an installed vLLM plans for models: one line of JSON for each.

usage: python kv_specs_worker.py PLATFORM.py CONFIG.json [CONFIG.json ...], in vLLM's environment

Each model's classes are built on the meta device, without weights and without a GPU; every layer
with a cache then tells its `KVCacheSpec`, and vLLM puts them into groups. PLATFORM.py is
`vllm_platform.py` of llmsim's conformance, which stands in for an H100. Weights are not quantized:
the cache does not depend on them.
"""

import importlib.util
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

GIB = 1 << 30
AVAILABLE = 40 * GIB
LONGEST = 4096


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        print(__doc__.strip())  # type: ignore[union-attr]
        raise SystemExit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    platform, *configs = sys.argv[1:]
    prepare(Path(platform))
    for path in configs:
        try:
            found = planned(json.loads(Path(path).read_text(encoding="utf-8")))
        except Exception as error:
            found = {"refused": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        print(json.dumps(found), flush=True)


def prepare(path: Path) -> None:
    """The platform of an H100 that has attention, without its kernels."""
    spec = importlib.util.spec_from_file_location("stand_in", path)
    assert spec is not None and spec.loader is not None, "a file of Python"
    stand_in = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stand_in)
    stand_in.prepare()
    import torch
    from vllm import platforms
    from vllm.platforms.interface import Platform
    from vllm.v1.attention.backends import fa_utils, flash_attn

    device = type(platforms.current_platform)
    device.device_name = "cpu"
    torch.cuda.Stream = torch.cuda.Event = Hollow
    device.get_attn_backend_cls = classmethod(backend_of)
    device.update_block_size_for_backend = classmethod(
        Platform.update_block_size_for_backend.__func__
    )
    for name in ("flash_attn_varlen_func", "get_scheduler_metadata", "reshape_and_cache_flash"):
        if not hasattr(fa_utils, name):  # kernels, which nobody calls
            setattr(fa_utils, name, None)
    for module in (fa_utils, flash_attn):
        for name in ("flash_attn_supports_sinks", "flash_attn_supports_mla"):
            setattr(module, name, lambda *_: True)
        module.get_flash_attn_version = lambda *_, **__: 3
    from vllm.model_executor.layers.attention import mla_attention
    from vllm.model_executor.layers.fused_moe import config as moe_config

    moe_config.current_platform = CudaAlike()
    mla_attention.get_mla_prefill_backend = lambda _: Hollow


class Hollow:
    """Stands for a kernel's object that nobody calls."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


class CudaAlike:
    """The platform, which takes every mixture of experts."""

    def __getattr__(self, name: str) -> Any:
        from vllm import platforms

        return getattr(platforms.current_platform, name)

    def is_cuda_alike(self) -> bool:
        """As on a GPU."""
        return True


def backend_of(_: Any, selected_backend: Any, attn_selector_config: Any, **__: Any) -> str:
    """What vLLM prefers on Hopper."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum as Backends

    if attn_selector_config.use_mla:
        sparse = attn_selector_config.use_sparse
        names = ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE") if sparse else ("FLASH_ATTN_MLA",)
        chosen = next(Backends[name] for name in names if name in Backends.__members__)
    else:
        chosen = selected_backend or Backends.FLASH_ATTN
    return str(chosen.get_path())


def text_model(fields: dict[str, Any]) -> dict[str, Any]:
    """The decoder's configuration, with the class that vLLM has for it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from vllm.model_executor.models import ModelRegistry

    outer = {name: value for name, value in fields.items() if name != "text_config"}
    inner = _decoder(fields)
    supported = ModelRegistry.get_supported_archs()
    names = [
        *inner.get("architectures", []),
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(inner.get("model_type", ""), ""),
        *outer.get("architectures", []),
    ]
    chosen = next((name for name in names if name in supported), None)
    if chosen is None:
        raise ValueError(f"vLLM has no class for the model type {inner.get('model_type')}")
    dropped = ("_source", "quantization_config", "vision_config", "auto_map")
    kept = {name: value for name, value in inner.items() if name not in dropped}
    return {**kept, "architectures": [chosen]}


def _decoder(fields: dict[str, Any]) -> dict[str, Any]:
    """The decoder's own fields, with those that its class wants and checkpoints leave out."""
    dtypes = {name: fields[name] for name in ("torch_dtype", "dtype") if name in fields}
    inner: dict[str, Any] = {**dtypes, **fields.get("text_config", fields)}
    if inner.get("model_type") == "falcon_h1":  # the width of its state follows from heads
        width = inner["mamba_n_heads"] * inner["mamba_d_head"]
        inner |= {"mamba_d_ssm": width, "mamba_expand": width // inner["hidden_size"]}
    if inner.get("model_type") == "lfm2":  # as in the published checkpoints
        inner.setdefault("conv_dim", inner["hidden_size"])
    return inner


def planned(fields: dict[str, Any]) -> dict[str, Any]:
    """The groups of layers with a cache, and how many blocks AVAILABLE holds."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(text_model(fields)), encoding="utf-8")
        config = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            max_model_len=LONGEST,
            enforce_eager=True,
            enable_prefix_caching=False,
        ).create_engine_config()
        with set_current_vllm_config(config):
            specs = specs_of(config)  # Llama 4 looks into the folder again
    return {
        "class": config.model_config.architecture,
        "block_size": config.cache_config.block_size,
        "layers": layer_rows(specs),
        **groups_of(config, specs),
    }


def specs_of(config: Any) -> dict[str, Any]:
    """What each layer tells of its cache; none of layers that share another's."""
    import torch
    from vllm.config import get_layers_from_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.worker.workspace import init_workspace_manager

    if not torch.distributed.is_initialized():
        store = f"file://{tempfile.mkdtemp()}/store"
        parallel_state.init_distributed_environment(1, 0, store, 0, "gloo")
        init_workspace_manager(torch.device("cpu"))
    parallel_state.destroy_model_parallel()
    parallel_state.ensure_model_parallel_initialized(1, 1)  # with experts, if the model has some
    with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
        initialize_model(config)
    current_platform.update_block_size_for_backend(config)
    layers = get_layers_from_vllm_config(config, AttentionLayerBase)
    specs = {
        name: layer.get_kv_cache_spec(config)
        for name, layer in layers.items()
        if not getattr(layer, "kv_sharing_target_layer_name", None)
    }
    return {name: spec for name, spec in specs.items() if spec is not None}


def window_of(spec: Any) -> int:
    """Tokens that a layer sees, minus those of its chunks; 0: everything, or a state."""
    chunk = getattr(spec, "attention_chunk_size", None)
    return -chunk if chunk else getattr(spec, "sliding_window", None) or 0


def described(spec: Any) -> dict[str, Any]:
    """A layer's type, window, tokens and bytes of a block."""
    return {
        "type": type(spec).__name__,
        "window": window_of(spec),
        "block_size": spec.block_size,
        "page_bytes": spec.page_size_bytes,
    }


def layer_rows(specs: dict[str, Any]) -> list[dict[str, Any]]:
    """Of layers that tell the same, one row with their number."""
    alike = Counter(json.dumps(described(spec)) for spec in specs.values())
    return [{**json.loads(key), "layers": count} for key, count in alike.items()]


def groups_of(config: Any, specs: dict[str, Any]) -> dict[str, Any]:
    """As the engine makes them of its workers' layers."""
    try:
        from vllm.v1.core import kv_cache_planning as planning  # 0.33
    except ImportError:
        from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

        (made,) = get_kv_cache_configs(config, [specs], [AVAILABLE])
    else:
        config.cache_config.kv_cache_layout = "LBNHC"
        groups = planning.get_global_kv_cache_groups(config, [specs])
        (made,) = planning.get_kv_cache_configs(config, [specs], [AVAILABLE], groups)
    groups = [
        {**described(group.kv_cache_spec), "layers": len(group.layer_names)}
        for group in made.kv_cache_groups
    ]
    return {"groups": groups, "blocks": made.num_blocks}


if __name__ == "__main__":
    main()

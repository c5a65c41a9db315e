"""Makes SGLang's scheduler start on a machine without a GPU, where nothing is computed."""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KERNELS = ("sgl_kernel", "torchvision")
"""Packages with compiled kernels, which SGLang imports and its scheduler never calls."""
TOKEN_IDS = 2**31 - 1
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "head_dim": 8,
    "vocab_size": TOKEN_IDS,
    "torch_dtype": "bfloat16",
}
"""Of a model whose KV takes next to no memory; the vocabulary has an id for every token."""


WINDOWS = {"num_hidden_layers": 2, "is_hybrid_swa": True, "hybrid_layer_pattern": [1, 0]}
"""What SGLang asks of a model's configuration for a pool of windows (`get_hybrid_layer_ids`)."""
STATES = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "linear_conv_kernel_dim": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 1,
    "num_experts": 0,
}
"""Of a model of which every other layer keeps a state."""


class _Anything(type):
    """Every attribute of such a class is its own name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(types.ModuleType):
    """A module that has whatever is imported from it."""

    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {"__init__": _accept, "__call__": _accept})


def _accept(*_: Any, **__: Any) -> None:
    return None


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins of packages with kernels, and of all modules in them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in KERNELS:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def prepare() -> None:
    """Imports SGLang's scheduler with stand-ins of its kernels, and with the CPU as its device."""
    os.environ |= {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "llmsim.scheduling.conformance.sglang.model",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    sys.meta_path.insert(0, StandInFinder())
    from transformers.utils import import_utils

    import_utils.is_torchvision_available = lambda: False
    from sglang.srt.distributed import bootstrap

    bootstrap._bind_threads_if_cpu = lambda *_, **__: None
    import sglang.srt.managers.scheduler  # noqa: F401  # once, for all processes that follow


def write_model(
    folder: Path, max_model_len: int, window: int, state_chunk: int, vocabulary: int = TOKEN_IDS
) -> str:
    """A folder that SGLang takes for a model of that context length; with a window, for one of
    which every other layer sees so many tokens before the one that attends. With a chunk every
    other layer keeps a state, which kernels hand out so many tokens apart.
    """
    model = MODEL | {"max_position_embeddings": max_model_len, "vocab_size": vocabulary}
    if state_chunk > 0:
        model |= STATES | {"mamba_chunk_size": state_chunk}
    if window > 0:
        model |= WINDOWS | {"sliding_window": window}
    text = json.dumps(model)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return str(folder)

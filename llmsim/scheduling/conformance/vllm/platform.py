"""Lets an installed vLLM resolve its configuration as on a GPU, on a machine that has none.

Only configuration and scheduler code of vLLM runs: no kernel, no model, no worker.
"""

import json
import os
from pathlib import Path
from typing import Any

GIB = 1 << 30
DEVICE_NAME = "NVIDIA H100 80GB HBM3"
DEVICE_BYTES = int(79.1 * GIB)
"""What the driver of an 80 GB H100 reports."""

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
"""A dense decoder; the scheduler sees nothing of it but its longest context."""


MIXTURE = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
"""What makes it a mixture of experts, whose data-parallel ranks vLLM runs in lock-step."""


def write_model(folder: Path, longest: int = 0, vocabulary: int = 0, experts: int = 0) -> str:
    """A config.json that vLLM accepts as a model of at least so many tokens; returns the folder's
    path. `vocabulary`: its number of token ids; 0: Llama's. `experts`: of each layer; 0: dense.
    """
    mixture = MIXTURE | {"num_local_experts": experts, "num_experts_per_tok": 1} if experts else {}
    model = {
        **MODEL,
        **mixture,
        "max_position_embeddings": max(int(str(MODEL["max_position_embeddings"])), longest),
        "vocab_size": vocabulary or MODEL["vocab_size"],
    }
    (folder / "config.json").write_text(json.dumps(model), encoding="utf-8")
    return str(folder)


def prepare() -> None:
    """Makes vLLM believe in one H100. Call before anything else of vLLM is imported; safe to call
    again.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is the results'
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import vllm.platforms as platforms

    if type(platforms.current_platform).__name__ != "SimulatedGpu":
        platforms._current_platform = simulated_gpu()()


def prepare_runner(v2: bool) -> None:
    """Chooses the model runner. V2 schedules differently only with pipeline stages, and refuses
    draft models.
    """
    import vllm.config.vllm as config
    from vllm import envs

    envs.disable_envs_cache()  # an engine core that was made before has put it on
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(v2))
    if v2:
        config.HAS_TRITON = True  # its kernels are never run


def simulated_gpu() -> Any:
    """The class of the device, of which vLLM's own module is the base."""
    import torch
    from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

    class SimulatedGpu(Platform):  # type: ignore[misc]
        """Answers the questions that vLLM's configuration asks of a device."""

        _enum = PlatformEnum.OOT
        device_name = "simulated"
        device_type = "cpu"
        dispatch_key = "CPU"
        dist_backend = "gloo"
        supported_quantization: list[str] = []  # noqa: RUF012 - vLLM's own declaration

        @property
        def supported_dtypes(self) -> list[Any]:
            return [torch.bfloat16, torch.float16, torch.float32]

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return DEVICE_NAME

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return DEVICE_BYTES

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(9, 0)

        @classmethod
        def device_count(cls) -> int:
            return 8

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return False

        @classmethod
        def support_hybrid_kv_cache(cls) -> bool:
            return True

        @classmethod
        def support_static_graph_mode(cls) -> bool:
            return True

        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            if vllm_config.parallel_config.worker_cls == "auto":
                vllm_config.parallel_config.worker_cls = "none"

        @classmethod
        def update_block_size_for_backend(cls, vllm_config: Any) -> None:
            """Keeps the block size that was asked for."""

    return SimulatedGpu

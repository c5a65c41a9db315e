"""Records what vLLM's own server derives from its options and its card. The interpreter of an
environment with vLLM runs it: `python tests/config/record_vllm_server.py [BEFORE ...] > FILE`.

Each line of the output is one case (`cases`) with what the server resolves (`Vllm.resolved`).
Recordings of releases from before, ascending, leave only the cases that differ from the last.
"""

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recorders import Case, overlaid, record, written

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
CARDS = {
    "H100": ("NVIDIA H100 80GB HBM3", 79.1, (9, 0)),
    "H200": ("NVIDIA H200", 139.8, (9, 0)),
    "H20": ("NVIDIA H20", 95.0, (9, 0)),
    "A100": ("NVIDIA A100-SXM4-80GB", 79.1, (8, 0)),
    "L40S": ("NVIDIA L40S", 44.4, (8, 9)),
    "RTX4090": ("NVIDIA GeForce RTX 4090", 23.5, (8, 9)),
    "RTXPRO6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 94.9, (12, 0)),
    "GB10": ("NVIDIA GB10", 119.6, (12, 1)),
    "B200": ("NVIDIA B200", 178.3, (10, 0)),
    "B300": ("NVIDIA B300", 268.0, (10, 3)),
}
"""What the driver says: the name, the memory in GiB, and the compute capability."""
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "intermediate_size": 2880,
}
NGRAM = {"method": "ngram", "prompt_lookup_max": 4}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"max_num_seqs": 1},
    {"max_num_seqs": 50},
    {"max_num_seqs": 700},
    {"max_num_seqs": 2048},
    {"max_num_batched_tokens": 512},
    {"max_num_batched_tokens": 65536},
    {"max_num_seqs": 200, "max_num_batched_tokens": 220},
    {"enforce_eager": True},
    {"enable_prefix_caching": False},
    {"enable_chunked_prefill": False},
    {"max_model_len": 4096, "enable_chunked_prefill": False},
    {"async_scheduling": False},
    {"speculative_config": NGRAM | {"num_speculative_tokens": 3}},
    {"max_num_seqs": 50, "speculative_config": NGRAM | {"num_speculative_tokens": 3}},
    {"max_num_seqs": 9, "speculative_config": NGRAM | {"num_speculative_tokens": 2}},
)


class Vllm:
    """Resolves options as `vllm serve` does when it starts, with a card that is not there."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(ROOT))
        from llmsim.scheduling.conformance.vllm import platform

        platform.prepare()
        import vllm.config.vllm
        from vllm.platforms import current_platform

        vllm.config.vllm.HAS_TRITON = True
        self._device: Any = type(current_platform)
        self._models = {
            name: written(folder / name, platform.MODEL | config)
            for name, config in (("llama", {}), ("gpt_oss", GPT_OSS))
        }

    def resolved(self, case: Case) -> Case:
        """What the server takes, in vLLM's words."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms.interface import DeviceCapability
        from vllm.usage.usage_lib import UsageContext

        name, memory_gib, capability = CARDS[case["card"]]
        for method, answer in (
            ("get_device_name", name),
            ("get_device_total_memory", int(memory_gib * GIB)),
            ("get_device_capability", DeviceCapability(*capability)),
        ):
            setattr(self._device, method, classmethod(lambda *_, answer=answer, **__: answer))
        args = AsyncEngineArgs(
            model=self._models[case["model"]],
            skip_tokenizer_init=True,
            load_format="dummy",
            **copy.deepcopy(case["options"]),
        )
        config = args.create_engine_config(UsageContext.OPENAI_API_SERVER)
        scheduler, graphs = config.scheduler_config, config.compilation_config
        sizes = graphs.cudagraph_capture_sizes or []
        return {
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_num_seqs": scheduler.max_num_seqs,
            "async_scheduling": scheduler.async_scheduling,
            "enable_chunked_prefill": scheduler.enable_chunked_prefill,
            "enable_prefix_caching": config.cache_config.enable_prefix_caching,
            "block_size": config.cache_config.block_size,
            "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
            "cudagraph_mode": graphs.cudagraph_mode.name,
            "graphs": [len(sizes), max(sizes, default=0), sum(sizes)],
        }


def cases() -> Iterator[Case]:
    """All of them."""
    for card in CARDS:
        for model in ("llama", "gpt_oss"):
            for options in OPTIONS:
                yield {"card": card, "model": model, "options": options}


if __name__ == "__main__":
    before = overlaid(Path(path) for path in sys.argv[1:])
    record(lambda folder: Vllm(folder).resolved, cases(), before)

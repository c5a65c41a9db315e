"""Records what SGLang's own server derives from its options. The interpreter of an environment with
SGLang runs it: `python tests/config/record_sglang_server.py > FILE`.

Each line of the output is one case (`cases`) with what the server resolves (`Sglang.resolved`).
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recorders import Case, record, written

ROOT = Path(__file__).resolve().parents[2]
RANKS = {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}
DRAFTS = {
    "speculative_algorithm": "STANDALONE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"tp_size": 2},
    {"tp_size": 4},
    {"tp_size": 8},
    {"pp_size": 2},
    {"tp_size": 4, "pp_size": 2},
    {"max_running_requests": 48},
    {"max_running_requests": 50},
    {"max_running_requests": 200, "tp_size": 4},
    {"chunked_prefill_size": 2048},
    {"chunked_prefill_size": 1024},
    {"chunked_prefill_size": 128},
    {"disable_cuda_graph": True},
    {"disaggregation_mode": "prefill"},
    {"disaggregation_mode": "prefill", "max_running_requests": 64},
    {"disaggregation_mode": "decode"},
    {"disaggregation_mode": "decode", "max_running_requests": 4096},
    {"disaggregation_mode": "decode", "tp_size": 8},
    RANKS,
    {"tp_size": 4, "dp_size": 2, "enable_dp_attention": True},
    {**RANKS, "disaggregation_mode": "decode"},
    {**RANKS, "disaggregation_mode": "prefill"},
    {**RANKS, "max_running_requests": 256},
    {**RANKS, "chunked_prefill_size": 16384},
    {**RANKS, "disable_cuda_graph": True},
    {**RANKS, "max_running_requests": 8192, "disaggregation_mode": "decode"},
    DRAFTS,
    {**DRAFTS, "tp_size": 8},
    {**DRAFTS, "max_running_requests": 300},
    {**DRAFTS, "disaggregation_mode": "decode", "max_running_requests": 2048},
    {**DRAFTS, "disaggregation_mode": "prefill"},
    {**DRAFTS, "disable_cuda_graph": True},
    {"speculative_algorithm": "NGRAM"},
)
MEMORIES_GIB = {"dense": (16, 24, 40, 80, 141, 180), "latent": (24, 80, 180)}
"""Of the cards on which each model is tried."""
DENSE = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 32768,
}
LATENT = DENSE | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}
HOPPER = {
    "is_cuda": True,
    "is_sm90": True,
    "is_hopper_with_cuda_12_3": True,
    "device_sm": 90,
    "device_capability": (9, 0),
    "has_flashinfer": True,
    "is_sm100": False,
    "is_sm120": False,
    "is_blackwell": False,
}
"""What SGLang believes of its card."""


class Sglang:
    """Resolves options as SGLang's server does when it starts, with a card that is not there."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(ROOT))
        from llmsim.scheduling.conformance.sglang import platform

        platform.prepare()
        import sglang.srt.utils
        from sglang.srt.arg_groups import memory_hook
        from sglang.srt.runtime_context import override_platform

        self._memory = memory_hook
        self._models = {
            name: written(folder / name, platform.MODEL | config)
            for name, config in (("dense", DENSE), ("latent", LATENT))
        }
        override_platform(**HOPPER).install()
        # Modules that ask the card when they are imported come first, without one.
        for name in self._models:
            self.resolved({"memory_gib": 80, "model": name, "options": {}})
        sglang.srt.utils.is_cuda = lambda: True

    def resolved(self, case: Case) -> Case:
        """What the server takes, in SGLang's words."""
        from sglang.srt.arg_groups.overrides import resolved_view
        from sglang.srt.server_args import ServerArgs

        options, memory_mib = case["options"], case["memory_gib"] * 1024
        self._memory.get_device_memory_capacity = lambda _=None: memory_mib
        drafter = self._models["dense"] if "speculative_num_steps" in options else None
        args = ServerArgs(
            model_path=self._models[case["model"]],
            device="cuda",
            speculative_draft_model_path=drafter,
            **options,
        )
        args.resolve_once()
        found = resolved_view(args)
        graphs = found.cuda_graph_config
        return {
            "mem_fraction_static": found.mem_fraction_static,
            "chunked_prefill_size": found.chunked_prefill_size,
            "max_running_requests": found.max_running_requests,
            "decodes": _extent(graphs.decode),
            "prompts": _extent(graphs.prefill),
        }


def _extent(graphs: Any) -> list[int]:
    """The largest size and how many there are; nothing where there are none."""
    if str(graphs.backend) == "disabled" or not graphs.bs:
        return []
    return [max(graphs.bs), len(graphs.bs)]


def cases() -> Iterator[Case]:
    """All of them."""
    for model, memories in MEMORIES_GIB.items():
        for memory_gib in memories:
            for options in OPTIONS:
                yield {"memory_gib": memory_gib, "model": model, "options": options}


if __name__ == "__main__":
    record(lambda folder: Sglang(folder).resolved, cases())

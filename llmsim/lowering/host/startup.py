"""What an engine refuses when it starts, although it could serve the requests of a run."""

from llmsim.config.engine.args import EngineArgs
from llmsim.config.engine.scheduler_kinds import VLLM
from llmsim.core import Note
from llmsim.lowering.types import LoweredGroup
from llmsim.model import Layout, MemoryLedger, ModelConfig

KERNEL_TOKENS = 16
"""Tokens of which vLLM's attention backends take multiples as KV blocks: FlashAttention and Triton
refuse others (`get_kv_cache_shape`, later `get_supported_kernel_block_sizes`).
"""


def starts_with(
    ledger: MemoryLedger, model: ModelConfig, layout: Layout, engine: EngineArgs
) -> int | None:
    """The longest max_model_len with which the engine starts; None where nothing is known.

    vLLM wants one request of that length to fit its KV cache. The figure is known where every layer
    keeps all tokens.
    """
    keeps_all = ledger.tables is None and model.window == 0 and model.linear is None
    decided = engine.num_gpu_blocks_override is None
    if not (keeps_all and decided and engine.engine_profile.startswith("vllm")):
        return None
    return ledger.num_blocks * engine.block_size * layout.context_ranks


def refused_lengths(lowered: LoweredGroup) -> list[str]:
    """A note where the engine would not start with its max_model_len."""
    if lowered.scheduler is None or lowered.offload is not None:
        return []
    most = starts_with(lowered.ledger, lowered.model, lowered.layout, lowered.engine)
    longest = lowered.info.max_model_len
    if most is None or most >= longest:
        return []
    return [
        Note(
            f"vLLM would not start {lowered.model.name} on {lowered.info.num_devices} x "
            f"{lowered.info.hardware}: its KV cache holds {most:,} tokens, max_model_len is "
            f"{longest:,}; give max_model_len {most} or less"
        )
    ]


def refused_blocks(lowered: LoweredGroup) -> list[str]:
    """A note where the engine would not start with its block_size."""
    engine = lowered.engine
    served_by_vllm = engine.scheduler == VLLM and engine.engine_profile.startswith("vllm")
    if not served_by_vllm or engine.block_size % KERNEL_TOKENS == 0:
        return []
    return [
        Note(
            f"vLLM would not start with block_size {engine.block_size} "
            f"({engine.origin['block_size']}): FlashAttention and Triton take multiples of "
            f"{KERNEL_TOKENS} tokens; the run has blocks of {engine.block_size} all the same"
        )
    ]

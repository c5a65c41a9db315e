"""Cases of `llmsim conformance` that are small enough to be followed by hand."""

from collections.abc import Sequence
from typing import Any


def connector_case(
    connector: dict[str, Any], segments: Sequence[int], **more: Any
) -> dict[str, Any]:
    """Prompts of 40 tokens, equal where their segments are, beside a KV connector; blocks have 4
    tokens.
    """
    config = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 96,
        "num_gpu_blocks": 50,
        "max_model_len": 64,
        "block_size": 4,
        "connector": connector,
        **more,
    }
    resolved = {
        "max_num_scheduled_tokens": 96,
        "max_concurrent_batches": 1,
        "reserve_full_isl": True,
        "watermark": 0.0,
        "num_spec_tokens": 0,
        "num_lookahead_tokens": 0,
    }
    requests = [
        {"id": f"r{i}", "arrival": i / 1e6, "segments": [[segment, 40]], "output_len": 3}
        for i, segment in enumerate(segments)
    ]
    return {"config": config, "resolved": resolved, "requests": requests}

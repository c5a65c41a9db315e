"""What SGLang's scheduler gives its worker, and what the worker answers.

Needs SGLang's Python packages.
"""

from collections.abc import Sequence
from typing import Any


def batch_items(batch: Any, width: int) -> list[tuple[str, int, int]]:
    """What each request computes, and behind how many tokens; a decode computes `width`."""
    if batch.forward_mode.is_extend():
        lengths = zip(batch.reqs, batch.extend_lens, batch.prefix_lens, strict=True)
        return [(request.rid, tokens, before) for request, tokens, before in lengths]
    known = batch.seq_lens_cpu.tolist()
    of_decode = 0 if width > 1 else 1  # that the length counts already
    return [
        (one.rid, width, length - of_decode) for one, length in zip(batch.reqs, known, strict=True)
    ]


def batch_result(tokens: Sequence[int]) -> Any:
    """The result of a batch without drafts."""
    import torch
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.managers.utils import GenerationBatchResult

    return GenerationBatchResult(
        logits_output=LogitsProcessorOutput(next_token_logits=None),
        next_token_ids=torch.tensor(tokens, dtype=torch.int64),
        can_run_cuda_graph=False,
    )

"""A stand-in of SGLang's drafter, which proposes nothing: which drafts hold is given.

Needs SGLang's Python packages.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.sglang.platform import MODEL

OPTIONS = ("num_steps", "eagle_topk", "num_draft_tokens")
"""SGLang's options behind `speculative_`, which a configuration holds beside the algorithm."""


def arguments(config: Case, model: str) -> dict[str, Any]:
    """SGLang's command line for the drafts of a configuration; nothing where it has none."""
    algorithm = config.get("speculative_algorithm")
    if algorithm is None:
        return {}
    named = {f"--speculative-{name.replace('_', '-')}": f"speculative_{name}" for name in OPTIONS}
    return {
        "--speculative-algorithm": algorithm,
        "--speculative-draft-model-path": model,
        **{argument: config[name] for argument, name in named.items()},
    }


def use_stand_in() -> Any:
    """From now on SGLang's schedulers start with the stand-in, and overlap its steps on a CPU,
    too; what a drafter relays is gathered without a kernel. Returns the stand-in's class.
    """
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.managers import overlap_utils
    from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    class Drafter(BaseSpecWorker):  # type: ignore[misc, unused-ignore]
        """Shares the target's memory, and has no model."""

        def __init__(self, *, target_worker: Any, **_: Any) -> None:
            super().__init__()
            self._target_worker, self._draft_worker = target_worker, None

    SpeculativeAlgorithm.create_worker = lambda *_: Drafter
    speculative_hook._disable_overlap_schedule_for_cpu = lambda *_: None
    overlap_utils.gather_spec_extras = lambda rows, *buffers: tuple(
        None if buffer is None else buffer[rows] for buffer in buffers
    )
    return Drafter


def settled(batch: Any, tokens: Sequence[int], publish: Callable[[Any], None] | None) -> Any:
    """The result of a batch with prompts: one token of each request."""
    from sglang.srt.managers.utils import GenerationBatchResult

    if publish is not None:
        publish(batch.seq_lens)
    last = _tensor(tokens)
    return GenerationBatchResult(
        logits_output=_no_logits(),
        next_token_ids=last,
        next_draft_input=_draft_input(last, batch),
        new_seq_lens=batch.seq_lens,
        can_run_cuda_graph=False,
    )


def verified(
    batch: Any, runs: Sequence[Sequence[int]], width: int, publish: Callable[[Any], None] | None
) -> Any:
    """The result of a batch of verifications of `width` tokens, of which these were accepted."""
    from sglang.srt.managers.utils import GenerationBatchResult

    lengths = _tensor([len(run) for run in runs])
    known = batch.seq_lens + lengths
    if publish is not None:
        publish(known)
    padded = [token for run in runs for token in [*run, *([0] * (width - len(run)))]]
    return GenerationBatchResult(
        logits_output=_no_logits(),
        next_token_ids=_tensor(padded),
        accept_lens=lengths,
        speculative_num_draft_tokens=width,
        new_seq_lens=known,
        next_draft_input=_draft_input(_tensor([run[-1] for run in runs]), batch),
        can_run_cuda_graph=False,
    )


def _draft_input(last: Any, batch: Any) -> Any:
    """What the next draft begins with; where steps overlap, it is relayed. It goes along with the
    KV that a prefill server sends.
    """
    import torch
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
    from sglang.srt.runtime_context import get_disagg, get_spec
    from sglang.srt.speculative.eagle_info import EagleDraftInput

    hands_over = get_disagg().disaggregation_mode != "null"
    relayed = batch.enable_overlap and not hands_over
    shape = (len(last), get_spec().speculative_eagle_topk)
    return EagleDraftInput(
        bonus_tokens=last,
        topk_p=None if relayed else torch.zeros(shape),
        topk_index=None if relayed else torch.zeros(shape, dtype=torch.int64),
        hidden_states=torch.zeros((len(last), MODEL["hidden_size"])) if hands_over else None,
        capture_hidden_mode=CaptureHiddenMode.NULL,
    )


def _no_logits() -> Any:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput

    return LogitsProcessorOutput(next_token_logits=None)


def _tensor(values: Sequence[int]) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int64)

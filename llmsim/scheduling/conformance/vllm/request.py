"""Requests as the installed vLLM sees them."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace


class LiveRequest(Struct, frozen=True):
    """A request as vLLM sees it. `prompt` makes its token ids, `output` the k-th token of its
    answer.
    """

    name: str
    arrival_s: float
    input_tokens: int
    output_tokens: int
    priority: int
    prompt: Callable[[], list[int]]
    output: Callable[[int], int]
    lora: int = 0
    """The adapter's number; 0: none."""
    images: Sequence[tuple[int, int, int]] = ()
    """First token, tokens and content of what an encoder computes."""
    stops: bool = False
    """The answer ends with its last token, as with the end of a text, and not because no more was
    asked for.
    """


def prompt_alone(request: LiveRequest, *, all_but_last: bool) -> LiveRequest:
    """What a proxy asks the side of prompts for: one token, and of models with states a prompt
    without its last token.
    """
    tokens = request.input_tokens - (all_but_last and request.input_tokens > 1)
    return replace(
        request,
        output_tokens=1,
        stops=False,
        input_tokens=tokens,
        prompt=lambda: request.prompt()[:tokens],
    )


def engine_request(one: LiveRequest, max_model_len: int, block_hasher: Any) -> Any:
    """The request in vLLM's own form."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id=one.name,
        prompt_token_ids=one.prompt(),
        sampling_params=SamplingParams(ignore_eos=True, **_end(one, max_model_len)),
        pooling_params=None,
        arrival_time=one.arrival_s,
        priority=one.priority,
        block_hasher=block_hasher,
        lora_request=_adapter(one.lora),
        mm_features=_features(one.images),
    )


def _end(one: LiveRequest, max_model_len: int) -> dict[str, Any]:
    if not one.stops:
        return {"max_tokens": one.output_tokens}
    last = one.output(one.output_tokens - 1)
    return {"max_tokens": max_model_len, "stop_token_ids": [last]}


def _features(found: Sequence[tuple[int, int, int]]) -> list[Any]:
    """Images as vLLM's multimodal features."""
    if not found:
        return []
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    return [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=f"image-{content}",
            mm_position=PlaceholderRange(offset=offset, length=tokens),
        )
        for offset, tokens, content in found
    ]


def _adapter(number: int) -> Any:
    if number == 0:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"adapter-{number}", number, "nowhere")

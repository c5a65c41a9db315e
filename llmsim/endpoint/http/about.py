"""The calls that are answered with facts about the server."""

from llmsim import __version__
from llmsim.endpoint.http.calls import Call
from llmsim.endpoint.protocol import (
    ApiError,
    DetokenizeRequest,
    LoraRequest,
    TokenizeRequest,
    chat_text,
)
from llmsim.workload.limits import MAX_ADAPTER_LETTERS

MOST_LETTERS = MAX_ADAPTER_LETTERS // 2
"""Of an adapter's name; traces tell adapters of one name apart by further letters."""


async def models(call: Call) -> None:
    """GET /v1/models."""
    endpoint = call.endpoint
    cards = [
        {
            "id": name,
            "object": "model",
            "created": served.created,
            "owned_by": "llmsim",
            "root": served.name,
            "parent": served.name if name in endpoint.loras else None,
            "max_model_len": served.max_model_len,
        }
        for name, served in [(one.name, one) for one in endpoint.models] + [*endpoint.loras.items()]
    ]
    await call.json({"object": "list", "data": cards})


async def load_lora(call: Call) -> None:
    """POST /v1/load_lora_adapter: an adapter of the first model is served under its name."""
    request = await call.body(LoraRequest)
    endpoint = call.endpoint
    name = request.lora_name
    if not name or not request.lora_path:
        raise ApiError(400, "both lora_name and lora_path must be given")
    if len(name) > MOST_LETTERS:
        raise ApiError(400, f"lora_name has more than {MOST_LETTERS} letters")
    if any(name in served.names for served in endpoint.models):
        raise ApiError(400, f"the LoRA adapter {name!r} has the name of a served model")
    if name in endpoint.loras and not request.load_inplace:
        raise ApiError(
            400,
            f"the LoRA adapter {name!r} has already been loaded; load_inplace true replaces it",
        )
    endpoint.load_adapter(name, request.lora_path)
    text = f"Success: LoRA adapter '{request.lora_name}' added successfully."
    await call.answer(text.encode(), kind="text/plain; charset=utf-8")


async def unload_lora(call: Call) -> None:
    """POST /v1/unload_lora_adapter."""
    request = await call.body(LoraRequest)
    if call.endpoint.loras.pop(request.lora_name, None) is None:
        raise ApiError(404, f"the LoRA adapter {request.lora_name!r} cannot be found")
    text = f"Success: LoRA adapter '{request.lora_name}' removed successfully."
    await call.answer(text.encode(), kind="text/plain; charset=utf-8")


async def tokenize(call: Call) -> None:
    """POST /tokenize."""
    request = await call.body(TokenizeRequest)
    endpoint = call.endpoint
    if isinstance(request.prompt, str):
        ids = endpoint.tokenizer.encode(request.prompt)
    elif isinstance(request.messages, list):
        ids = [i for text in chat_text(request.messages) for i in endpoint.tokenizer.encode(text)]
    else:
        raise ApiError(400, "prompt or messages must be given")
    longest = endpoint.models[0].max_model_len
    await call.json({"count": len(ids), "max_model_len": longest, "tokens": ids})


async def detokenize(call: Call) -> None:
    """POST /detokenize."""
    request = await call.body(DetokenizeRequest)
    await call.json({"prompt": call.endpoint.tokenizer.decode(request.tokens)})


async def health(call: Call) -> None:
    """GET /health."""
    await call.answer(b"", 503 if call.endpoint.closing else 200)


async def version(call: Call) -> None:
    """GET /version."""
    await call.json({"version": f"llmsim {__version__}"})


async def metrics(call: Call) -> None:
    """GET /metrics."""
    text = call.endpoint.metrics.text()
    await call.answer(text, kind="text/plain; version=0.0.4; charset=utf-8")

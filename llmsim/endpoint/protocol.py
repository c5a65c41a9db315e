"""What clients send in the form of OpenAI's API, checked; and errors in its form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

MAX_SAMPLES = 128


class ApiError(Exception):
    """An answer other than 200, with OpenAI's error object."""

    def __init__(
        self, status: int, message: str, param: str | None = None, kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self._kind = status, message, param, kind

    @property
    def body(self) -> bytes:
        """The error object as JSON."""
        kinds = {401: "Unauthorized", 404: "NotFoundError", 413: "RequestEntityTooLarge"}
        busy = "ServiceUnavailableError" if self.status == 503 else "BadRequestError"
        error = {
            "message": self.message,
            "type": self._kind or kinds.get(self.status, busy),
            "param": self.param,
            "code": self.status,
        }
        return msgspec.json.encode({"error": error})


class StreamOptions(Struct):
    """Whether usage comes with a stream: at its end, or with every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


_AtLeast0 = Annotated[float, Meta(ge=0)]
_Share = Annotated[float, Meta(gt=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class _Sampling(Struct, kw_only=True):
    """Fields of sampling, which change no time; values that vLLM refuses are refused here, too."""

    temperature: _AtLeast0 | None = None
    top_p: _Share | None = None
    top_k: int | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    seed: int | None = None


class _Common(_Sampling, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    priority: int | None = None


class CompletionRequest(_Common, kw_only=True):
    """The body of /v1/completions; other fields that change no time are not looked at."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None


class ChatRequest(_Common, kw_only=True):
    """The body of /v1/chat/completions; other fields that change no time are not looked at."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    tools: list[dict[str, Any]] | None = None


class TokenizeRequest(Struct):
    """The body of /tokenize: a text, or messages."""

    prompt: str | UnsetType = UNSET
    messages: list[dict[str, Any]] | UnsetType = UNSET


class DetokenizeRequest(Struct):
    """The body of /detokenize."""

    tokens: list[int]


class LoraRequest(Struct):
    """The body of /v1/load_lora_adapter and /v1/unload_lora_adapter."""

    lora_name: str
    lora_path: str = ""
    load_inplace: bool = False


@dataclass(frozen=True)
class Asked:
    """One prompt of a request, and how it is to be answered."""

    prompt: list[int]
    text: str
    """What `echo` gives back."""
    max_tokens: int


Body = TypeVar("Body")


def parse(body: bytes, kind: type[Body]) -> Body:
    """Reads a body; raises ApiError that names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"the body cannot be read: {error}") from None


def samples(given: int | None) -> int:
    """How many answers each prompt gets; raises ApiError."""
    count = 1 if given is None else given
    if not 1 <= count <= MAX_SAMPLES:
        raise ApiError(400, f"n is {count}; it must be 1 to {MAX_SAMPLES}", "n")
    return count


def answer_tokens(given: int | None, default: int, prompt: int, longest: int) -> int:
    """Tokens of an answer; raises ApiError where they and the prompt exceed the model's context."""
    tokens = min(default, longest - prompt) if given is None else given
    if prompt < 1:
        raise ApiError(400, "the prompt is empty; it must have at least one token", "prompt")
    if given is not None and given < 1:
        raise ApiError(400, f"max_tokens is {given}; it must be at least 1", "max_tokens")
    if tokens < 1 or prompt + tokens > longest:
        raise ApiError(
            400,
            f"this model's maximum context length is {longest} tokens; the prompt has {prompt} and "
            f"the answer {given or 1}",
            "max_tokens",
        )
    return tokens


def chat_text(messages: Sequence[dict[str, Any]]) -> list[str]:
    """The texts that a chat consists of, a role and a content for each message; raises ApiError."""
    if not messages:
        raise ApiError(400, "messages is empty; a chat has at least one message", "messages")
    texts = []
    for number, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str):
            raise ApiError(400, f"messages[{number}].role is missing", "messages")
        texts.append(f"<|{role}|>")
        texts.append(_content(message.get("content"), f"messages[{number}].content"))
    texts.append("<|assistant|>")
    return texts


def _content(content: object, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        kinds = [part.get("type") for part in content if part.get("type") != "text"]
        if kinds:
            raise ApiError(400, f"{place} has a part of type {kinds[0]!r}; only text is simulated")
        return "".join(str(part.get("text", "")) for part in content)
    raise ApiError(400, f"{place} is neither a text nor a list of parts", "messages")

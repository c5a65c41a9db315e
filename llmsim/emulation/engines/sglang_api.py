"""How clients talk to SGLang's server: its own endpoint, and OpenAI's."""

from typing import Any

import msgspec

from llmsim.emulation.engines.engine import RefusedError
from llmsim.emulation.in_engine.channel import row_of
from llmsim.emulation.in_engine.sglang.transfers import room_of
from llmsim.scheduling.conformance.vllm.request import LiveRequest

_PREFILL = "localhost"
"""Where a decode server would ask for the prefill server; it does not."""

_ABORT = "abort"
"""Why an answer ends that SGLang's scheduler does not give."""


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: dict[str, Any] | None = None


class _Event(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: _Meta = _Meta()
    error: dict[str, Any] | None = None


_events = msgspec.json.Decoder(_Event)


class Generate:
    """SGLang's own endpoint, with token ids in place of text."""

    path = "/generate"

    def __init__(
        self, max_model_len: int, *, ranks_requests: bool = False, hands_over: bool = False
    ) -> None:
        """`max_model_len`: tokens of a prompt with its answer, at most; `ranks_requests`: the
        server reads priorities. `hands_over`: a prefill and a decode server get each request.
        """
        self._max_model_len, self._ranks_requests = max_model_len, ranks_requests
        self._hands_over = hands_over

    def body(
        self, one: LiveRequest, model: str, *, prompt_alone: bool, rank: int | None = None
    ) -> dict[str, Any]:
        """The JSON of a request, under our name."""
        end: dict[str, Any] = {"max_new_tokens": one.output_tokens, "ignore_eos": True}
        if one.stops:
            room = max(self._max_model_len - one.input_tokens, 1)
            last = one.output(one.output_tokens - 1)
            end = {"max_new_tokens": room, "stop_token_ids": [last]}
        sampling = {"temperature": 0, **end}
        asked = {"rid": one.name, "input_ids": one.prompt(), "sampling_params": sampling}
        # SGLang puts a request without a priority behind all others.
        ranked = {"priority": one.priority} if self._ranks_requests else {}
        routed = {} if rank is None else {"routed_dp_rank": rank}
        paired = _paired(one.name) if self._hands_over else {}
        return asked | {"stream": True} | ranked | routed | paired

    def tokens(self, event: bytes) -> int:
        """How many tokens an event brings; RefusedError where SGLang refuses the request."""
        heard = _events.decode(event)
        reason = heard.meta_info.finish_reason or {}
        if heard.error is not None:
            raise RefusedError(str(heard.error.get("message", heard.error)))
        if reason.get("type") == _ABORT:
            raise RefusedError(str(reason.get("message", reason)))
        return len(heard.output_ids)


def _paired(name: str) -> dict[str, Any]:
    """By what a prefill and a decode server know that they have the same request."""
    return {"bootstrap_host": _PREFILL, "bootstrap_room": room_of(row_of(name))}


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_chunks = msgspec.json.Decoder(_Chunk)


class SglangApi:
    """A request is named in its body. Completions tell their token ids where they are asked to,
    which chats refuse in a stream: there, each word is a token (`llmsim.emulation.words`).
    """

    def body(
        self, asked: dict[str, Any], path: str, name: str, *, paired: bool = False
    ) -> dict[str, Any]:
        """The JSON of a request that a client has sent to `path`."""
        tells_ids = asked.get("stream") and path.split("?")[0] == "/v1/completions"
        more: dict[str, Any] = {"return_token_ids": True} if tells_ids else {}
        return asked | {"rid": name} | more | (_paired(name) if paired else {})

    def tokens(self, event: bytes) -> int:
        """How many tokens an event brings."""
        return sum(_tokens_of(one) for one in _chunks.decode(event).choices)


def _tokens_of(choice: _Choice) -> int:
    if choice.delta is not None:
        return len((choice.delta.content or "").split())
    return len(choice.token_ids or ())

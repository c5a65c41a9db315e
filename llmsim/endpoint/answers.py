"""The bodies of answers: whole, and as chunks of a stream, in the form of OpenAI's API."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from llmsim.core import PS_PER_S
from llmsim.endpoint.engine.async_engine import Stream
from llmsim.endpoint.text import Answers

LOGPROB = -1.0
"""Every token's; answers are not drawn from a model."""


@dataclass(frozen=True)
class Choice:
    """One of the answers to a request."""

    index: int
    stream: Stream
    places: Sequence[int]
    """Words of the answer (`Answers.words`)."""
    prompt_tokens: int
    echoed: str = ""


@dataclass(frozen=True)
class Shape:
    """How answers of one request look."""

    id: str
    created: int
    model: str
    chat: bool
    answers: Answers
    logprobs: bool
    stamped: bool
    """Chunks carry the simulated time."""
    samples: int = 1
    """Answers to each prompt."""
    choices: list[Choice] = field(default_factory=list)
    """Those of the first prompt first."""

    def whole(self) -> bytes:
        """The body of an answer that does not stream."""
        body = self._head("chat.completion" if self.chat else "text_completion")
        body["choices"] = [self._whole_choice(choice) for choice in self.choices]
        body["usage"] = self.usage()
        if self.stamped:
            body["virtual_time"] = max(one.stream.last_ps for one in self.choices) / PS_PER_S
        return msgspec.json.encode(body)

    def usage(self) -> dict[str, int]:
        """Tokens of prompts and answers so far; a prompt counts once for all its answers."""
        prompt = sum(choice.prompt_tokens for choice in self.choices[:: self.samples])
        answer = sum(choice.stream.tokens for choice in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        }

    def first_chunks(self, choice: Choice) -> bytes:
        """What comes before the first token of a choice."""
        if self.chat:
            body = self._head(self._chunk_object)
            delta = {"role": "assistant", "content": ""}
            one = {
                "index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None,
            }  # fmt: skip
            return b"data: " + msgspec.json.encode({**body, "choices": [one]}) + b"\n\n"
        if choice.echoed:
            return self._event(choice, choice.echoed, b"null", b"null", None)
        return b""

    def chunk(self, choice: Choice, before: int, tokens: int, time_ps: int) -> bytes:
        """The tokens of a choice from `before` to `tokens`, there at that time."""
        places = choice.places[before:tokens]
        logprobs = b"null"
        if self.logprobs:
            logprobs = msgspec.json.encode(self._logprobs(places))
        finish = b'"length"' if tokens >= choice.stream.output_tokens else b"null"
        stamp = time_ps if self.stamped else None
        return self._event(choice, self.answers.text(places), logprobs, finish, stamp)

    def usage_chunk(self) -> bytes:
        """The last chunk, if it was asked for."""
        body = {**self._head(self._chunk_object), "choices": [], "usage": self.usage()}
        return b"data: " + msgspec.json.encode(body) + b"\n\n"

    @property
    def _chunk_object(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    @cached_property
    def _opening(self) -> bytes:
        """All chunks begin so, up to the number of their choice."""
        head = msgspec.json.encode(self._head(self._chunk_object))
        return b"data: " + head[:-1] + b',"choices":[{"index":'

    def _event(
        self, choice: Choice, text: str, logprobs: bytes, finish: bytes, stamp_ps: int | None
    ) -> bytes:
        """A chunk, put together from bytes: a server spends most of its time here."""
        quoted = msgspec.json.encode(text)
        return b"".join(
            (
                self._opening,
                b"%d" % choice.index,
                b',"delta":{"content":%b}' % quoted if self.chat else b',"text":%b' % quoted,
                b',"logprobs":',
                logprobs,
                b',"finish_reason":',
                finish,
                b"}]",
                b"" if stamp_ps is None else b',"virtual_time":%r' % (stamp_ps / PS_PER_S),
                b"}\n\n",
            )
        )

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        places = choice.places[: choice.stream.tokens]
        text = self.answers.text(places)
        logprobs = self._logprobs(places) if self.logprobs else None
        one: dict[str, Any] = {"index": choice.index}
        if self.chat:
            one["message"] = {"role": "assistant", "content": text}
        else:
            one["text"] = choice.echoed + text
        return {**one, "logprobs": logprobs, "finish_reason": "length", "stop_reason": None}

    def _logprobs(self, places: Sequence[int]) -> dict[str, Any]:
        words = [self.answers.words[place] for place in places]
        if self.chat:
            return {
                "content": [
                    {
                        "token": word,
                        "logprob": LOGPROB,
                        "bytes": list(word.encode()),
                        "top_logprobs": [],
                    }
                    for word in words
                ]
            }
        offsets, at = [], 0
        for word in words:
            offsets.append(at)
            at += len(word)
        return {
            "text_offset": offsets,
            "token_logprobs": [LOGPROB] * len(words),
            "tokens": words,
            "top_logprobs": [{word: LOGPROB} for word in words],
        }

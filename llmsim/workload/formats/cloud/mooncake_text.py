"""Rows of Mooncake's extended format that hold what was said instead of its length: their tokens,
estimated or counted.

aiperf's `text_input` is a whole prompt, `messages` a conversation so far, or with `message_mode`
"delta" what is new in its session: its answers are then part of the prompts behind them. `payload`
is the body of a request.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from llmsim.config.files.reading import finite, shown
from llmsim.workload.formats.chat.sharegpt import BYTES_PER_TOKEN, counter
from llmsim.workload.formats.source import Source
from llmsim.workload.formats.table import Table
from llmsim.workload.limits import MAX_TOKENS

TEXTS = "prompts are given as text, and their token counts"
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Where a request's body says how long its answer may be."""


class Prompts:
    """Counts prompts; remembers those of sessions that are told in steps."""

    def __init__(self, source: Source) -> None:
        self._count: Callable[[str], int] | None = None
        self.how = ""
        """How tokens were counted; empty while nothing was."""
        self._source = source
        self._told: dict[str, int] = {}

    def tokens(self, text: str) -> int:
        """Of a text, at least 1."""
        if not self.how:
            self._count, self.how = counter(self._source)
        if self._count is not None:
            return self._count(text)
        return max(1, -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN))

    def of_messages(
        self, messages: Sequence[Any], tools: Any, session: str | None, answer: int, *, delta: bool
    ) -> int:
        """Tokens of a prompt; with `delta` it begins with what its session has said and heard, and
        adds `answer`.
        """
        said = self.tokens("".join(map(_text, messages)) + _encoded(tools))
        if not delta or session is None:
            return said
        prompt = self._told.get(session, 0) + said
        self._told[session] = prompt + answer
        return prompt

    def of_payload(self, body: dict[str, Any]) -> int | None:
        """Tokens of the prompt in a request's body; None where it has neither a text nor token
        ids.
        """
        prompt = body.get("prompt", body.get("input"))
        for messages in (body.get("messages"), prompt):
            if isinstance(messages, list) and messages and isinstance(messages[0], dict):
                instructions = body.get("instructions")
                if instructions:
                    messages = [{"content": instructions}, *messages]
                return self.of_messages(messages, body.get("tools"), None, 0, delta=False)
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, list) and prompt and set(map(type, prompt)) <= {int, float}:
            return len(prompt)
        return self.tokens(prompt) if isinstance(prompt, str) else None


def answer_limit(
    table: Table, number: int, body: Mapping[str, Any], names: Sequence[str], path: str
) -> int | None:
    """Tokens that a request's body allows its answer; None where it says nothing. An error puts
    `path` before the name.
    """
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if type(value) is int and 0 <= value <= MAX_TOKENS:
            return value
        tokens = finite(value)
        if tokens is None or not tokens.is_integer() or not 0 <= tokens <= MAX_TOKENS:
            raise table.refusal(
                number,
                (
                    f'"{path}{name}" is {shown(value)}, but must be an integer from 0 to '
                    f"{MAX_TOKENS}"
                ),
            )
        return int(tokens)
    return None


def _text(message: Any) -> str:
    """What one message says: its text, or the texts of its parts, and the calls of tools."""
    if not isinstance(message, dict):
        return ""
    content = message.get("content")
    calls = message.get("tool_calls")
    if type(content) is str and not calls:  # most messages of long files
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [
        part if isinstance(part, str) else part.get("text")
        for part in parts
        if isinstance(part, str | dict)
    ]
    return "".join(text for text in texts if isinstance(text, str)) + _encoded(calls)


def _encoded(value: Any) -> str:
    if not value:
        return ""
    try:
        return msgspec.json.encode(value).decode()
    except (
        UnicodeEncodeError
    ):  # half of a surrogate pair, which counts as the bytes that it would take
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

"""Requests to OpenAI's API, whose prompts are texts or token ids: batch files (`body`), bodies
alone, and the dataset `custom` of vllm bench (`prompt`, `output_tokens`).

An answer has `output_tokens`, or as many as the request allows. Requests begin at 0 unless the
lines have times beside the bodies. The output file of a batch has counts (own.json_columns).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from llmsim.core import Int64
from llmsim.workload.formats.batches import Batch, each
from llmsim.workload.formats.chat.sharegpt import note_counts
from llmsim.workload.formats.cloud.mooncake_text import LIMITS, TEXTS, Prompts, answer_limit
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.own.clock import Clock, Moment, arrival_ns
from llmsim.workload.formats.own.json_columns import text_or_none
from llmsim.workload.formats.own.names import ARRIVALS, known_column, note_no_arrivals
from llmsim.workload.formats.rows import json_batches
from llmsim.workload.formats.source import Rows, Source, Texts
from llmsim.workload.formats.table import Table

OTHERS = ("conversations", "conversation", "messages")
"""Keys by which a line is a conversation, unless the user names the format."""
ANSWERS = ("output_tokens", *LIMITS)


class Row(msgspec.Struct, gc=False):
    custom_id: str | int | None = None
    request_id: str | int | None = None
    method: str | None = None
    url: str | None = None
    body: dict[str, Any] | None = None
    prompt: Any = None
    input: Any = None
    messages: list[dict[str, Any]] | None = None
    tools: Any = None
    instructions: Any = None
    output_tokens: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    max_output_tokens: Any = None
    model: str | None = None


SAID = ("prompt", "input", "messages", "tools", "instructions", *ANSWERS, "model")


def detect(head: Head) -> bool:
    if head.kind not in ("lines", "object"):
        return False
    if head.first is None:
        return head.has("custom_id", "method", "url", "body")
    body = head.first.get("body")
    if any(name in head.first for name in OTHERS):
        return False
    if isinstance(body, dict):
        return any(name in body for name in ("messages", "prompt", "input"))
    return isinstance(head.first.get("prompt"), str | list)


def read(source: Source, head: Head) -> Table:
    reader = _Reader(source, head)
    for batch in json_batches(reader.table, reader.kind):
        reader.take(batch)
        if reader.table.full:
            break
    return reader.closed()


class _Reader:
    """Takes requests, and remembers how their lengths became known."""

    def __init__(self, source: Source, head: Head) -> None:
        self.table = Table(source)
        keys = [name for name, value in (head.first or {}).items() if not isinstance(value, dict)]
        arrival = known_column(keys, ARRIVALS) or ""
        note_no_arrivals(self.table, arrival)
        self.kind: type[Row] = Row
        self._at: Callable[[Row], Moment | None] | None = None
        if arrival:
            fields = [("at", Moment | None, None)]
            self.kind = msgspec.defstruct(  # type: ignore[assignment]
                "TimedRow", fields, bases=(Row,), rename={"at": arrival}, gc=False
            )
            self._at = lambda row: row.at  # type: ignore[attr-defined]
        self._arrival, self._clock = arrival, Clock(self.table, arrival)
        self._prompts = Prompts(source)
        self._limited = False

    def take(self, batch: Batch[Row] | tuple[int, Row]) -> None:
        """The requests of a batch, or one of them, as far as `limit` goes."""
        numbered = list(each(batch))
        if self.table.wants(len(numbered)):
            self._take(numbered)
            return
        for one in numbered:
            self._take([one])
            if self.table.full:
                break

    def _take(self, numbered: Sequence[tuple[int, Row]]) -> None:
        numbers = [number for number, _ in numbered]
        rows = [row for _, row in numbered]
        bodies = [_body(row) for row in rows]
        lengths = [self._lengths(*each_row) for each_row in zip(numbers, rows, bodies, strict=True)]
        self.table.take(
            Rows(
                lambda: numbers,
                self._arrivals(numbers, rows),
                [asked for asked, _ in lengths],
                [answered for _, answered in lengths],
                models=Texts.of([_model(body) for body in bodies]),
                request_ids=[
                    text_or_none(row.request_id if row.custom_id is None else row.custom_id)
                    for row in rows
                ],
            )
        )

    def _lengths(self, number: int, row: Row, body: dict[str, Any]) -> tuple[int, int]:
        """Tokens of the prompt and of the answer."""
        path = "" if row.body is None else "body."
        asked = self._prompts.of_payload(body)
        if asked is None:
            raise self.table.refusal(
                number,
                (
                    f"no prompt: a request has {path}prompt, a text or token ids, or "
                    f"{path}messages with text"
                ),
            )
        answered = answer_limit(self.table, number, body, ANSWERS, path)
        if answered is None:
            name = "output_tokens" if row.body is None else "body.max_tokens"
            instead = (
                "max_tokens may say it, too"
                if row.body is None
                else "the output file of the batch has it as usage.completion_tokens"
            )
            raise self.table.refusal(
                number, f'"{name}" is missing, the length of the answer; {instead}'
            )
        self._limited |= body.get("output_tokens") is None
        return asked, answered

    def _arrivals(self, numbers: Sequence[int], rows: Sequence[Row]) -> Int64:
        """When rows arrive, in ns; refuses one without a time where the first has one."""
        if self._at is None:
            return np.zeros(len(rows), dtype=np.int64)
        at = [*map(self._at, rows)]
        at_ns = None if None in at else self._clock.all_ns(at)  # type: ignore[arg-type]
        if at_ns is None:
            found = [
                arrival_ns(self.table, self._clock, self._arrival, *each_row)
                for each_row in zip(numbers, at, strict=True)
            ]
            at_ns = np.array(found, dtype=np.int64)
        return at_ns

    def closed(self) -> Table:
        """The table, with notes on where its lengths come from."""
        if self._prompts.how:
            note_counts(self.table, TEXTS, self._prompts.how)
        if self._limited:
            self.table.say(
                "answers are as long as max_tokens allows; a server's may have been shorter"
            )
        return self.table


def _body(row: Row) -> dict[str, Any]:
    """The body of a request, which may be the line itself."""
    if row.body is not None:
        return row.body
    return {name: getattr(row, name) for name in SAID}


def _model(body: Mapping[str, Any]) -> str | None:
    name = body.get("model")
    return name if isinstance(name, str) else None

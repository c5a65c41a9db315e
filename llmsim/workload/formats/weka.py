"""Weka / AgentX conversations: JSON objects (one file each, one per line, or a list) with `requests`, times in s.

A conversation, and each sub-agent inside it, is a stream of calls. A call that the recording shows beginning after
the one before it had ended (`t` + `api_time`) follows it at that distance; one that overlaps begins a line of its
own. Conversations carry no date: all of them begin at 0 unless `rate` spreads them. `hash_ids` name full blocks of
`block_size` tokens, within the conversation unless `hash_id_scope` is "global". A sub-agent's times count from its
start in the published specification and from the conversation's start in published files: a file with any sub-agent
time before that sub-agent's start is taken as the former, for all of it.
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from llmsim.workload.formats.batches import Batch
from llmsim.workload.formats.documents import json_documents
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import note_unused
from llmsim.workload.formats.source import Rows, Source
from llmsim.workload.formats.table import Table

BLOCK_TOKENS = 64
OVERLAP_NS = 1_000_000
"""Recorded times are rounded: a call may seem to begin this much before the last one's end."""
_time = attrgetter("t")
Seconds = Annotated[float, Meta(ge=0, le=4e9)]


class Request(msgspec.Struct, gc=False, rename={"input": "in", "output": "out"}):
    t: Seconds = 0.0
    type: str = "n"
    model: str | None = None
    input: Annotated[int, Meta(ge=0)] = 0
    output: Annotated[int, Meta(ge=0)] = 0
    hash_ids: list[int] | None = None
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    requests: list["Request"] | None = None


class Conversation(msgspec.Struct, gc=False):
    requests: list[Request]
    id: str | int | None = None
    block_size: Annotated[int, Meta(ge=1, le=1 << 20)] = BLOCK_TOKENS
    hash_id_scope: str = "local"
    models: list[str] | None = None
    tool_tokens: Any = None
    system_tokens: Any = None


def detect(head: Head) -> bool:
    if head.kind == "csv" or not head.has("requests"):
        return False
    return head.has("block_size") or head.has("hash_id_scope") or head.has("hash_ids", "in", "out")


def read(source: Source, head: Head) -> Table:
    reader = _Reader(source)
    for batch in json_documents(source.path, Conversation):
        if isinstance(batch, Batch):
            reader.take_all(batch)
        else:
            reader.take(*batch)
        if reader.full:
            break
    return reader.finished()


Call = tuple[int, int, int, int, int, bool, str, list[int] | None, str | None]
"""Place of its conversation in a batch, time in ns, input and output tokens, ns after the call before (-1: at its own
time), whether aside, session, ids, model."""


def _take(table: Table, calls: list[Call], empty: list[int], line_of: Callable[[int], int]) -> None:
    """Puts calls into the table; `empty` are the places of those without tokens, `line_of` is the line of a place."""
    if empty:
        table.dropped(line_of(empty[0]), len(empty))
    if not calls:
        return
    places, at_ns, inputs, outputs, after_ns, aside, sessions, ids, models = zip(*calls, strict=True)
    table.take(
        Rows(
            lambda: [line_of(place) for place in places], np.array(at_ns, dtype=np.int64), inputs, outputs,
            after_ns=after_ns, aside=aside, sessions=sessions, ids=ids, models=models,
        )
    )  # fmt: skip


class _Reader:
    """Takes conversations; keeps what can only be decided at the end of the file."""

    def __init__(self, source: Source) -> None:
        self.table = Table(source, block_tokens=source.options.block or BLOCK_TOKENS)
        self._source = source
        self._taken = self._overlapping = 0
        self._nested: tuple[list[int], list[int]] = ([], [])
        self._relative = False
        self._scope = ""
        self._first_id = self._next_id = 0
        self._calls: list[Call] = []
        self._empty: list[int] = []

    @property
    def full(self) -> bool:
        """Whether the conversations that `limit` asks for are there."""
        options = self._source.options
        return 0 < options.limit <= self._taken and not options.changes_workload

    def take(self, line: int, column: int, value: Any) -> None:
        """One conversation, as Python's json reads it."""
        try:
            conversation = msgspec.convert(value, Conversation)
        except msgspec.ValidationError as error:
            place = str(error).replace("`", '"').replace(" - at ", " at ").replace('"$.', '"').replace("Exp", "exp", 1)
            raise self.table.refusal(line, f"not a conversation: {place}", column) from None
        if not self._taken:
            note_unused(self.table, line, value, Conversation.__struct_encode_fields__)
        self._conversation(0, conversation, lambda: (line, column))
        self._hand_over(lambda _: line)

    def take_all(self, batch: Batch[Conversation]) -> None:
        """The conversations of a batch, as far as they are wanted."""
        if not self._taken:
            note_unused(self.table, *batch.first_object(), Conversation.__struct_encode_fields__)
        for index, conversation in enumerate(batch.records):
            self._conversation(index, conversation, partial(batch.place, index))
            if self.full:
                break
        self._hand_over(lambda index: batch.place(index)[0])

    def _hand_over(self, line_of: Callable[[int], int]) -> None:
        _take(self.table, self._calls, self._empty, line_of)
        self._calls, self._empty = [], []

    def _conversation(self, index: int, conversation: Conversation, place: Callable[[], tuple[int, int]]) -> None:
        """Takes the calls of the conversation at `index` of its batch; `place` says where it stands in the file."""
        size = self._source.options.block or conversation.block_size
        scope = conversation.hash_id_scope
        if not self._taken:
            self.table.block_tokens, self._scope = size, scope
        if size != self.table.block_tokens or scope != self._scope:
            line, column = place()
            if size != self.table.block_tokens:
                problem = f'"block_size" is {size}, but {self.table.block_tokens} before: one file, one size'
            else:
                problem = '"hash_id_scope" differs from the conversations before: one file, one scope'
            raise self.table.refusal(line, problem, column)
        name = f"conversation-{self._taken}" if conversation.id is None else str(conversation.id)
        self._stream(index, name, conversation.requests, None)
        if scope != "global":
            self._first_id = self._next_id
        self._taken += 1

    def _stream(self, index: int, name: str, calls: list[Request], spawned_ns: int | None) -> None:
        """Takes one stream of calls, and those inside it, in order of time."""
        ready_ns, agents = None, 0
        drops = self._source.options.failures == "drop"
        for call in sorted(calls, key=_time) if len(calls) > 1 else calls:
            at_ns = round(call.t * 1e9)
            if spawned_ns is not None and at_ns < spawned_ns:
                self._relative = True
            if call.type == "subagent" or call.requests:
                agents += 1
                self._stream(index, f"{name}/{agents}", call.requests or [], at_ns)
                continue
            follows = ready_ns is not None and at_ns + OVERLAP_NS >= ready_ns
            after_ns = max(at_ns - ready_ns, 0) if follows and ready_ns is not None else -1
            if follows and call.think_time is not None and call.api_time is None:
                after_ns = round(call.think_time * 1e9)
            aside = ready_ns is not None and not follows
            ids = self._ids(call)
            if call.input < 1 or call.output < 1:
                self._empty.append(index)
                if drops:
                    continue
            if after_ns < 0 and spawned_ns is not None:
                self._nested[0].append(len(self.table) + len(self._calls))
                self._nested[1].append(spawned_ns)
            tokens = (call.input or 1, call.output or 1)
            self._calls.append((index, at_ns, *tokens, after_ns, aside, name, ids, call.model))
            self._overlapping += aside
            if not aside:
                ready_ns = at_ns + round((call.api_time or 0) * 1e9)

    def _ids(self, call: Request) -> list[int] | None:
        """The ids of a call, moved past those of the conversations before where they mean nothing across them."""
        ids, first = call.hash_ids, self._first_id
        if not ids:
            return ids
        self._next_id = max(self._next_id, first + max(ids) + 1)
        return [value + first for value in ids] if first else ids

    def finished(self) -> Table:
        table, path = self.table, self._source.path
        if self._relative:
            table.move(*self._nested)
        if self._nested[0]:
            basis = "from their own start" if self._relative else "from the conversation's start"
            table.notes.append(f"{path}: times of sub-agents are taken to count {basis}")
        if self._overlapping:
            table.notes.append(
                f"{path}: {self._overlapping} calls overlap the call before them and come at their recorded time"
            )
        if self._taken > 1 and self._source.options.rate is None:
            table.notes.append(
                f"{path}: its {self._taken} conversations have no dates and all begin at 0; rate= spreads them"
            )
        return table

"""Weka / AgentX conversations: JSON objects (one file each, one per line, or a list) with `requests`, times in s.

A conversation, and each sub-agent inside it, is a stream of calls. A call that the recording shows beginning after
the one before it had ended (`t` + `api_time`) follows it at that distance; one that overlaps begins a line of its
own. Conversations carry no date: all of them begin at 0 unless `rate` spreads them. `hash_ids` name full blocks of
`block_size` tokens, within the conversation unless `hash_id_scope` is "global". A sub-agent's times count from its
start in the published specification and from the conversation's start in published files: a file with any sub-agent
time before that sub-agent's start is taken as the former, for all of it.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import json_values, note_unused
from llmsim.workload.formats.table import Source, Table

NAME, TITLE = "weka", "Weka / AgentX"
BLOCK_TOKENS = 64
OVERLAP_NS = 1_000_000
"""Recorded times are rounded: a call may seem to begin this much before the last one's end."""
Seconds = Annotated[float, Meta(ge=0, le=4e9)]


class Request(msgspec.Struct, rename={"input": "in", "output": "out"}):
    t: Seconds = 0.0
    type: str = "n"
    model: str | None = None
    input: Annotated[int, Meta(ge=0)] = 0
    output: Annotated[int, Meta(ge=0)] = 0
    hash_ids: list[int] | None = None
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    requests: list["Request"] = msgspec.field(default_factory=list)


class Conversation(msgspec.Struct):
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
    reader = _Reader(source, head)
    for line, column, value in json_values(source.path):
        reader.take(line, column, value)
        if (
            reader.table is not None
            and 0 < source.options.limit <= reader.taken
            and not source.options.changes_workload
        ):
            break
    return reader.finished()


class _Reader:
    """Takes conversations; keeps what can only be decided at the end of the file."""

    def __init__(self, source: Source, head: Head) -> None:
        self.table = Table(source, block_tokens=source.options.block or BLOCK_TOKENS)
        self.taken = self._overlapping = 0
        self._source, self._sized = source, False
        self._nested: tuple[list[int], list[int]] = ([], [])
        self._relative = False
        self._scope = ""
        self._first_id = self._next_id = 0

    def take(self, line: int, column: int, value: Any) -> None:
        try:
            conversation = msgspec.convert(value, Conversation)
        except msgspec.ValidationError as error:
            place = str(error).replace("`", '"').replace(" - at ", " at ").replace('"$.', '"').replace("Exp", "exp", 1)
            raise self.table.refusal(line, f"not a conversation: {place}", column) from None
        size = self._source.options.block or conversation.block_size
        if not self._sized:
            self.table.block_tokens, self._sized = size, True
            note_unused(self.table, line, value, Conversation.__struct_encode_fields__)
        if size != self.table.block_tokens:
            raise self.table.refusal(
                line, f'"block_size" is {size}, but {self.table.block_tokens} before: one file, one size', column
            )
        name = f"conversation-{self.taken}" if conversation.id is None else str(conversation.id)
        if conversation.hash_id_scope != self._scope and self.taken:
            raise self.table.refusal(
                line, '"hash_id_scope" differs from the conversations before: one file, one scope', column
            )
        self._scope = conversation.hash_id_scope
        self._stream(line, name, conversation.requests, None)
        if self._scope != "global":
            self._first_id = self._next_id
        self.taken += 1

    def _stream(self, line: int, name: str, calls: list[Request], spawned_ns: int | None) -> None:
        """Adds one stream of calls, and those inside it, in order of time."""
        ready_ns = None
        agents = 0
        for call in sorted(calls, key=lambda call: call.t):
            at_ns = round(call.t * 1e9)
            if spawned_ns is not None and at_ns < spawned_ns:
                self._relative = True
            if call.type == "subagent" or call.requests:
                agents += 1
                self._stream(line, f"{name}/{agents}", call.requests, at_ns)
                continue
            follows = ready_ns is not None and at_ns + OVERLAP_NS >= ready_ns
            after_ns = max(at_ns - ready_ns, 0) if follows and ready_ns is not None else -1
            if follows and call.think_time is not None and call.api_time is None:
                after_ns = round(call.think_time * 1e9)
            aside = ready_ns is not None and not follows
            added = self.table.add(
                line,
                at_ns,
                call.input,
                call.output,
                after_ns=after_ns,
                session=name,
                ids=self._ids(call),
                model=call.model,
                aside=aside,
            )
            if not added:
                continue
            self._overlapping += aside
            if after_ns < 0 and spawned_ns is not None:
                self._nested[0].append(len(self.table) - 1)
                self._nested[1].append(spawned_ns)
            if not aside:
                ready_ns = at_ns + round((call.api_time or 0) * 1e9)

    def _ids(self, call: Request) -> list[int] | None:
        """The ids of a call, moved past those of the conversations before where they mean nothing across them."""
        if call.hash_ids is None:
            return None
        self._next_id = max(self._next_id, self._first_id + max(call.hash_ids, default=-1) + 1)
        return [value + self._first_id for value in call.hash_ids]

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
        if self.taken > 1 and self._source.options.rate is None:
            table.notes.append(
                f"{path}: its {self.taken} conversations have no dates and all begin at 0; rate= spreads them"
            )
        return table

"""Weka / AgentX conversations: JSON objects (one file each, one per line, or a list) with
`requests`, times in s.

A conversation, and each sub-agent inside it, is a stream of calls. A call that the recording shows
beginning after the one before it had ended (`t` + `api_time`) follows it at that distance; one that
overlaps begins a line of its own. Conversations carry no date: all of them begin at 0 unless `rate`
spreads them. `hash_ids` name full blocks of `block_size` tokens, within the conversation unless
`hash_id_scope` is "global". A sub-agent's times count from its start in the published specification
and from the conversation's start in published files: a file with any sub-agent time before that
sub-agent's start is taken as the former, for all of it.
"""

from collections.abc import Callable
from itertools import accumulate, chain, compress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from llmsim.core import Int64
from llmsim.plurals import plural
from llmsim.workload.formats.batches import Batch
from llmsim.workload.formats.chat.weka_streams import (
    BLOCK_TOKENS,
    Conversation,
    Streams,
    streams_of,
    tokens_of,
)
from llmsim.workload.formats.documents import HALF, json_documents
from llmsim.workload.formats.head import Head
from llmsim.workload.formats.rows import note_unused
from llmsim.workload.formats.source import Rows, Source, Texts
from llmsim.workload.formats.table import Table

_NO_IDS: list[int] = []
_WIDEST = (1 << 64) - 1


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


class _Reader:
    """Takes conversations; keeps what can only be decided at the end of the file."""

    def __init__(self, source: Source) -> None:
        self.table = Table(source, block_tokens=source.options.block or BLOCK_TOKENS)
        self._source = source
        self._taken = self._overlapping = 0
        self._nested: tuple[list[int], list[int]] = ([], [])
        self._relative = False
        self._scope = ""
        self._first_id = 0

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
            position = (
                str(error)
                .replace("`", '"')
                .replace(" - at ", " at ")
                .replace('"$.', '"')
                .replace("Exp", "exp", 1)
            )
            raise self.table.refusal(line, f"not a conversation: {position}", column) from None
        except UnicodeEncodeError:
            raise self.table.refusal(line, f"not a conversation: {HALF}", column) from None
        if not self._taken:
            note_unused(self.table, line, value, Conversation.__struct_encode_fields__)
        self._take([conversation], lambda _: (line, column))

    def take_all(self, batch: Batch[Conversation]) -> None:
        """The conversations of a batch, as far as they are wanted."""
        if not self._taken:
            note_unused(self.table, *batch.first_keys(), Conversation.__struct_encode_fields__)
        self._take(batch.records, batch.position)

    def _take(
        self, conversations: list[Conversation], position: Callable[[int], tuple[int, int]]
    ) -> None:
        """Takes the calls of conversations; `position` gives each one's line and column."""
        options = self._source.options
        if options.limit and not options.changes_workload:
            conversations = conversations[: options.limit - self._taken]
        self._check(conversations, position)
        streams = streams_of(conversations, self._taken)
        self._taken += len(conversations)
        self._relative = self._relative or streams.relative
        calls = streams.calls
        ids = self._ids(
            [call.hash_ids or _NO_IDS for call in calls], streams.conversation, len(conversations)
        )
        inputs, outputs = (tokens_of(calls, each) for each in ("input", "output"))
        empty = (inputs < 1) | (outputs < 1)
        if empty.any():
            conversation = int(streams.conversation[int(empty.argmax())])
            self.table.dropped(position(conversation)[0], int(np.count_nonzero(empty)))
        kept = ~empty if options.failures == "drop" else np.ones(len(calls), dtype=np.bool_)
        self._add(
            streams,
            kept,
            (np.maximum(inputs, 1)[kept], np.maximum(outputs, 1)[kept]),
            ids,
            position,
        )

    def _check(
        self, conversations: list[Conversation], position: Callable[[int], tuple[int, int]]
    ) -> None:
        """Refuses conversations whose ids mean something else than those before."""
        block = self._source.options.block
        if not self._taken and conversations:
            self.table.block_tokens = block or conversations[0].block_size
            self._scope = conversations[0].hash_id_scope
        for index, conversation in enumerate(conversations):
            if not block and conversation.block_size != self.table.block_tokens:
                before = self.table.block_tokens
                problem = (
                    f'"block_size" is {conversation.block_size}, but {before} before: one file, '
                    "one size"
                )
            elif conversation.hash_id_scope != self._scope:
                problem = (
                    '"hash_id_scope" differs from the conversations before: one file, one scope'
                )
            else:
                continue
            line, column = position(index)
            raise self.table.refusal(line, problem, column)

    def _add(
        self,
        streams: Streams,
        kept: NDArray[np.bool_],
        tokens: tuple[Int64, Int64],
        ids: tuple[Int64, NDArray[np.integer]],
        position: Callable[[int], tuple[int, int]],
    ) -> None:
        """Puts the calls that are kept into the table, with their ids."""
        first, counts = len(self.table), ids[0]
        after_ns, aside = streams.follow(kept)
        stream, conversation = streams.stream[kept], streams.conversation[kept]
        spawned_ns = np.array(streams.spawned_ns, dtype=np.int64)[stream]
        nested = np.flatnonzero((after_ns < 0) & (spawned_ns >= 0))
        self._nested[0].extend((first + nested).tolist())
        self._nested[1].extend(spawned_ns[nested].tolist())
        self._overlapping += int(np.count_nonzero(aside))
        models = [call.model for call in streams.calls]
        self.table.take(
            Rows(
                lambda: [position(index)[0] for index in conversation.tolist()],
                streams.at_ns[kept],
                *tokens,
                after_ns=after_ns,
                aside=aside,
                sessions=Texts(stream, streams.names),
                models=Texts.of(list(compress(models, kept.tolist()))),
            )
        )
        self.table.name(first, counts[kept], ids[1][np.repeat(kept, counts)])

    def _ids(
        self, lists: list[list[int]], conversation: Int64, conversations: int
    ) -> tuple[Int64, NDArray[np.integer]]:
        """How many ids each call has, and all of them, moved past those of the conversations before
        where they mean nothing across them.
        """
        counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        total = int(counts.sum())
        ids: NDArray[np.integer]
        try:
            ids = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=total)
            each = np.bincount(conversation, weights=counts, minlength=conversations).astype(
                np.int64
            )
            named = np.flatnonzero(each)
            highest = np.full(conversations, -1, dtype=np.int64)
            if total:
                highest[named] = np.maximum.reduceat(ids, (np.cumsum(each) - each)[named])
            tops = highest.tolist()
        except OverflowError:
            ids = np.fromiter(
                (value & _WIDEST for each in lists for value in each), dtype=np.uint64, count=total
            )
            tops = [-1] * conversations
            for index, values in zip(conversation.tolist(), lists, strict=True):
                tops[index] = max(tops[index], *values) if values else tops[index]
        if self._scope == "global":
            return counts, ids
        moved = list(accumulate((max(top + 1, 0) for top in tops), initial=self._first_id))
        self._first_id = moved.pop()
        shifts = np.array([value & _WIDEST for value in moved], dtype=np.uint64)[conversation]
        return counts, ids.astype(np.uint64) + np.repeat(shifts, counts)

    def finished(self) -> Table:
        table, path = self.table, self._source.path
        if self._relative:
            table.move(*self._nested)
        if self._nested[0]:
            basis = "from their own start" if self._relative else "from the conversation's start"
            table.notes.append(f"{path}: times of sub-agents are taken to count {basis}")
        if self._overlapping:
            calls = plural(
                self._overlapping,
                "call overlaps the call before it and comes at its recorded time",
                "calls overlap the call before them and come at their recorded time",
            )
            table.notes.append(f"{path}: {self._overlapping} {calls}")
        if self._taken > 1 and self._source.options.rate is None:
            table.say(
                f"its {self._taken} conversations have no dates and all begin at 0; rate= "
                "spreads them"
            )
        return table

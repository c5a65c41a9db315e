"""Collects requests one by one and freezes them into the columns of a Workload."""

import sys
from array import array
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmsim.core import PS_PER_NS, EncoderInput, Int32, Int64, UInt64, Workload
from llmsim.plurals import counted
from llmsim.workload.content import ContentHasher, adapter_numbers, content_hasher, reordered
from llmsim.workload.limits import MAX_TOKENS

Value = TypeVar("Value")


class WorkloadBuilder:
    """Rows in the order of a file; `build` sorts whole lines by arrival and may be called once.

    A session's calls are consecutive rows, the first with the arrival and the others with -1, so
    that sorting moves them together.
    """

    def __init__(self, granularity: int) -> None:
        self.granularity = granularity
        self._arrival_ns = array("q")
        self._line = 0
        self._head_lines = array("q")  # of rows with an arrival
        self._input = array("i")
        self._output = array("i")
        self._model = array("h")
        self._tool_ns: dict[int, int] = {}
        self._session_ids: dict[int, str] = {}
        self._request_ids: dict[int, str] = {}
        self._session_lines, self._request_lines = array("q"), array("q")  # of those rows
        self._priorities: dict[int, int] = {}
        self._slo_classes: dict[int, str] = {}
        self._adapters: dict[int, str] = {}
        self._encoder_inputs: dict[int, tuple[EncoderInput, ...]] = {}
        self._content_numbers: dict[str, int] = {}
        self._timeouts_ns: dict[int, int] = {}
        self._token_limits: dict[int, int] = {}
        self._hidden: dict[int, int] = {}
        self._extends: dict[int, int] = {}
        self._draft_depth: dict[int, int] = {}
        self._acceptance_rate: dict[int, tuple[float, ...]] = {}
        self._accepted_drafts: dict[int, tuple[int, ...]] = {}
        self._hasher: ContentHasher | None = None
        self._has_calls = False

    def __len__(self) -> int:
        return len(self._arrival_ns)

    def begin_line(self, number: int) -> None:
        """Rows that follow are of this line of the file."""
        self._line = number

    def add(self, arrival_ns: int, input_tokens: int, output_tokens: int, model: int) -> None:
        """Appends a request; `arrival_ns` is -1 for a session's second and later calls."""
        self._arrival_ns.append(arrival_ns)
        self._input.append(input_tokens)
        self._output.append(output_tokens)
        self._model.append(model)
        if arrival_ns < 0:
            self._has_calls = True
        else:
            self._head_lines.append(self._line)
        if self._hasher is not None:
            self._hasher.skip()

    def add_with_content(
        self, row: tuple[int, int, int, int], input_ids: list[int], output_ids: list[int] | None
    ) -> None:
        """Appends a request (the four arguments of `add`) whose tokens are known; they are hashed
        and dropped.

        A granularity of 0 means that nobody will ask for the content.
        """
        if self.granularity == 0:
            self.add(*row)
            return
        if self._hasher is None:
            self._hasher = content_hasher(self.granularity)
            for _ in range(len(self)):
                self._hasher.skip()
        hasher, self._hasher = self._hasher, None
        self.add(*row)
        self._hasher = hasher
        hasher.add(input_ids, output_ids)

    def name_last(
        self, session_id: str | None, request_id: str | None, line: int, tool_ns: int = 0
    ) -> None:
        """Says more about the row just added, of that line; `tool_ns` passes between its last token
        and the next call.
        """
        row = len(self) - 1
        if session_id is not None:
            self._session_ids[row] = session_id
            self._session_lines.append(line)
        if request_id is not None:
            self._request_ids[row] = request_id
            self._request_lines.append(line)
        if tool_ns:
            self._tool_ns[row] = tool_ns

    def prioritise_last(self, priority: int) -> None:
        """Gives the row just added a priority; a lower number is more urgent, and 0 is what the
        others have.
        """
        self._priorities[len(self) - 1] = priority

    def classify_last(self, slo_class: str) -> None:
        """Puts the row just added into a class of requests with latency targets of its own."""
        self._slo_classes[len(self) - 1] = sys.intern(slo_class)

    def adapt_last(self, adapter: str) -> None:
        """Says which LoRA adapter computes the row just added; "" is the model itself."""
        if adapter:
            self._adapters[len(self) - 1] = sys.intern(adapter)

    def encode_last(self, inputs: Sequence[EncoderInput]) -> None:
        """Says which parts of the row just added an encoder computes, in the order of offsets."""
        if inputs:
            self._encoder_inputs[len(self) - 1] = tuple(inputs)

    def with_images(self, input_ids: list[int], inputs: Sequence[EncoderInput]) -> list[int]:
        """Token ids of a prompt that are equal where its encoder inputs are, too: placeholders of
        all images are the same token.
        """
        ids = list(input_ids)
        for offset, tokens, name in inputs:
            key = name or f"\0{len(self)} {offset}"
            number = self._content_numbers.setdefault(key, len(self._content_numbers) + 1)
            ids[offset : offset + tokens] = range(
                -number * MAX_TOKENS - tokens, -number * MAX_TOKENS
            )
        return ids

    def limit_last(self, timeout_ns: int | None, tokens: int | None) -> None:
        """The client of the row just added gives up so long after its arrival, or with so many
        tokens.
        """
        row = len(self) - 1
        if timeout_ns is not None:
            self._timeouts_ns[row] = timeout_ns
        if tokens is not None:
            self._token_limits[row] = tokens

    def reason_last(self, *, hidden: bool, extends: bool) -> None:
        """Says of the row just added whether its answer is hidden from the client, and whether its
        prompt begins with the prompt and the answer of the row before.
        """
        row = len(self) - 1
        self._hidden[row] = int(hidden)
        if extends:
            self._extends[row] = 1

    def speculate_last(self, name: str, value: Any) -> None:
        """Says of the row just added what becomes of its drafts, by the name of the trace's key."""
        row = len(self) - 1
        if name == "num_speculative_tokens":
            self._draft_depth[row] = value
        elif name == "accepted_drafts":
            self._accepted_drafts[row] = tuple(value)
        else:
            self._acceptance_rate[row] = tuple(value) if isinstance(value, list) else (value,)

    def assumptions(self, source: str) -> list[str]:
        """Sentences about what was assumed of prompts that are given by their lengths."""
        if not self._extends:
            return []
        calls = counted(
            len(self._extends),
            "later call extends its session",
            "later calls extend their sessions",
        )
        return [
            f"{source}: {calls}, so each prompt is taken to begin with the prompt and the answer "
            "of the call before, token for token"
        ]

    def repeated_names(self) -> list[str]:
        """Sentences about request ids and names of sessions that several lines carry: outputs
        confuse them.
        """
        rows = list(self._session_ids)
        heads = [i for i, row in enumerate(rows) if self._arrival_ns[row] >= 0]
        sessions = [self._session_ids[rows[i]] for i in heads]
        lines = [self._session_lines[i] for i in heads]
        requests = list(self._request_ids.values())
        return [
            *_repeated("request_id", requests, self._request_lines),
            *_repeated("session_id", sessions, lines),
        ]

    def build(self, *, models: tuple[str, ...], source: str, notes: tuple[str, ...]) -> Workload:
        """The workload, sorted stably by arrival; says so in a note, and numbers the requests by
        their number in the file, where that changed the order.
        """
        n = len(self)
        arrival_ns = np.array(self._arrival_ns, dtype=np.int64)
        offsets, keys = self._content(n)
        given_order = np.arange(n, dtype=np.int64)
        by_arrival = _sorted_rows(arrival_ns, self._has_calls)
        rows = given_order if by_arrival is None else by_arrival
        if by_arrival is not None:
            offsets, keys = reordered(offsets, keys, by_arrival)
            heads = arrival_ns[arrival_ns >= 0]
            notes = (*notes, _sorted_note(source, heads, self._head_lines))
        arrival_ns = arrival_ns[rows]
        tool_ps = np.zeros(n, dtype=np.int64)
        if self._tool_ns:
            waiting = np.fromiter(self._tool_ns, dtype=np.int64)
            tool_ps[waiting] = np.fromiter(self._tool_ns.values(), dtype=np.int64) * PS_PER_NS
        names = rows.tolist()
        numbered = bool(self._request_ids) or by_arrival is not None
        return Workload(
            arrival_ps=np.where(arrival_ns < 0, -1, arrival_ns * PS_PER_NS),
            input_tokens=np.array(self._input, dtype=np.int32)[rows],
            output_tokens=np.array(self._output, dtype=np.int32)[rows],
            model=np.array(self._model, dtype=np.int16)[rows],
            models=models,
            next_call=next_calls(arrival_ns),
            tool_delay_ps=tool_ps[rows],
            key_offsets=offsets,
            keys=keys,
            granularity=self.granularity,
            source=source,
            session_id=_of_rows(self._session_ids, names, ""),
            request_id=[self._request_ids.get(row, str(row)) for row in names]
            if numbered
            else None,
            priority=self._optional(self._priorities, 0, np.int32, rows),
            timeout_ps=self._optional(
                {row: limit * PS_PER_NS for row, limit in self._timeouts_ns.items()},
                -1,
                np.int64,
                rows,
            ),
            cancel_after_tokens=self._optional(self._token_limits, 0, np.int32, rows),
            hidden=self._optional(self._hidden, 0, np.bool_, rows),
            extends=self._optional(self._extends, 0, np.bool_, rows),
            draft_depth=self._optional(self._draft_depth, -1, np.int32, rows),
            acceptance_rate=_of_rows(self._acceptance_rate, names, ()),
            accepted_drafts=_of_rows(self._accepted_drafts, names, ()),
            slo_class=_of_rows(self._slo_classes, names, ""),
            adapter=_of_rows(self._adapters, names, ""),
            encoder_inputs=_of_rows(self._encoder_inputs, names, ()),
            notes=notes,
        )

    def _optional(self, given: dict[int, int], fallback: int, dtype: type, rows: Int64) -> Any:
        """A column of what only some rows have, sorted as `rows`; None where none has."""
        if not given:
            return None
        column: Any = np.full(len(self), fallback, dtype=dtype)
        column[np.fromiter(given, dtype=np.int64)] = np.fromiter(given.values(), dtype=dtype)
        return column[rows]

    def _content(self, n: int) -> tuple[Int64, UInt64]:
        offsets, keys = np.zeros(n + 1, dtype=np.int64), np.zeros(0, dtype=np.uint64)
        if self._hasher is not None:
            offsets = np.asarray(self._hasher.offsets(), dtype=np.int64)
            keys = np.asarray(self._hasher.keys(), dtype=np.uint64)
        if self._extends and self.granularity:
            extends = np.zeros(n, dtype=np.bool_)
            extends[np.fromiter(self._extends, dtype=np.int64)] = True
            tokens = np.array(self._input, dtype=np.int64) + np.array(self._output, dtype=np.int64)
            blocks = tokens // self.granularity
            offsets, keys = with_extensions(offsets, keys, extends, blocks)
        adapters = _of_rows(self._adapters, list(range(n)), "")
        return offsets, keys if adapters is None else with_adapters(offsets, keys, adapters)


def _of_rows(given: dict[int, Value], rows: list[int], fallback: Value) -> list[Value] | None:
    """The value of each row, `fallback` where it has none; None where no row has any."""
    return [given.get(row, fallback) for row in rows] if given else None


def _repeated(what: str, names: Sequence[str], lines: Sequence[int]) -> list[str]:
    """A sentence about names that several lines carry; none where each has its own."""
    first_row: dict[str, int] = {}
    again = [row for row, name in enumerate(names) if first_row.setdefault(name, row) != row]
    if not again:
        return []
    name = names[again[0]]
    first, second = lines[first_row[name]], lines[again[0]]
    repeat = "1 line repeats" if len(again) == 1 else f"{len(again)} lines repeat"
    return [
        f'{repeat} a {what} of another, the first of them "{name}" (lines {first} and {second})'
    ]


def _sorted_note(source: str, arrival_ns: Int64, lines: Sequence[int]) -> str:
    """Names the first line that goes back in time, and the one before it."""
    earlier = np.flatnonzero(arrival_ns[1:] < arrival_ns[:-1]) + 1
    at = int(earlier[0])
    first_of = f", the first of {len(earlier)} such lines" if len(earlier) > 1 else ""
    return (
        f"{source}: line {lines[at]} arrives at {arrival_ns[at]} ns, before line {lines[at - 1]} "
        f"({arrival_ns[at - 1]} ns){first_of}; lines were sorted by arrival time, and requests "
        "keep the numbers that they have in the file"
    )


def with_extensions(
    offsets: Int64, keys: UInt64, extends: NDArray[np.bool_], blocks: Int64
) -> tuple[Int64, UInt64]:
    """Content keys (offsets, keys) where the prompt of a row that `extends` begins with all of the
    row before.

    A run of such rows is one stream: its blocks have the keys of the run's first row as far as that
    one has keys, and keys of the run's own after that. `blocks` are the full blocks of each row,
    prompt and answer. Rows outside of such runs keep their keys.
    """
    counts = np.diff(offsets)
    head = np.maximum.accumulate(np.where(extends, -1, np.arange(len(extends))))
    longest = np.zeros(len(extends), dtype=np.int64)
    np.maximum.at(longest, head, np.where(extends, blocks, 0))
    in_run = longest[head] > 0
    own = np.where(extends | ~in_run, 0, np.maximum(np.maximum(longest, blocks) - counts, 0))
    first_own = int(keys.max(initial=np.uint64(0))) + 1 + np.cumsum(own) - own - counts
    new_counts = np.where(in_run, blocks, counts)
    new_offsets = np.zeros(len(extends) + 1, dtype=np.int64)
    np.cumsum(new_counts, out=new_offsets[1:])
    row = np.repeat(np.arange(len(extends)), new_counts)
    block = np.arange(new_offsets[-1]) - new_offsets[row]
    source = np.where(in_run, head, np.arange(len(extends)))[row]
    made = (first_own[source] + block).astype(np.uint64)
    known = block < counts[source]
    made[known] = keys[offsets[source[known]] + block[known]]
    return new_offsets, made


def with_adapters(offsets: Int64, keys: UInt64, adapters: Sequence[str]) -> UInt64:
    """Content keys (offsets, keys) that are equal within one LoRA adapter alone: what it computes
    is of no use to another one, nor to the model itself.
    """
    number = np.repeat(adapter_numbers(adapters), np.diff(offsets)).astype(np.uint64)
    adapted = number > 0
    free = keys.max(initial=np.uint64(0)) + np.uint64(1)
    pairs = number[adapted] * free + keys[adapted]
    made = keys.copy()
    made[adapted] = free + np.unique(pairs, return_inverse=True)[1].astype(np.uint64)
    return made


def next_calls(arrival: Int64) -> Int32:
    """Row of each request's successor in its session, or -1; a negative arrival continues the row
    before it.
    """
    following = np.full(len(arrival), -1, dtype=np.int32)
    later = np.flatnonzero(arrival < 0)
    following[later - 1] = later
    return following


def _sorted_rows(arrival_ns: Int64, has_calls: bool) -> Int64 | None:
    """Rows in stable order of their line's arrival, or None where they are in order already."""
    heads = arrival_ns[arrival_ns >= 0] if has_calls else arrival_ns
    if np.all(heads[:-1] <= heads[1:]):
        return None
    order = np.argsort(heads, kind="stable")
    if not has_calls:
        return order.astype(np.int64)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return np.argsort(rank[np.cumsum(arrival_ns >= 0) - 1], kind="stable").astype(np.int64)

"""Collects the requests of a trace in any format, and freezes them into a Workload of the file's own block size."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_NS, Int32, Int64, Workload
from llmsim.workload.columns import next_calls
from llmsim.workload.content import reordered
from llmsim.workload.formats.contents import Contents
from llmsim.workload.limits import MAX_TIME_NS, MAX_TOKENS
from llmsim.workload.models import ModelNames
from llmsim.workload.options import TraceOptions


@dataclass
class Source:
    """What a format reads from and reports to."""

    path: str
    options: TraceOptions
    models: ModelNames
    granularity: int
    """Tokens per key for content that has no block size of its own; 0: content is not wanted."""
    max_keys: int = 0
    """Where such content would take more keys than this, its blocks are doubled until it does not; 0: never."""


class Table:
    """Rows in any order; `add` checks what every format shares, `workload` sorts lines by arrival and may be called
    once.

    A row without `after_ns` begins a line at `at_ns`, in the file's own clock; a row with it continues the session's
    last row, that many ns after that row's last token.
    """

    def __init__(self, source: Source, *, block_tokens: int = 0) -> None:
        """`block_tokens` is the size of the blocks that `ids` name, or 0 where only `repeats` is used."""
        self.source = source
        self.notes: list[str] = []
        self.unit = "line"
        self.block_tokens = block_tokens or source.granularity
        self._at, self._input, self._output, self._model = array("q"), array("i"), array("i"), array("h")
        self._lines, self._linked = 0, False
        self._after, self._line, self._session = array("q"), array("q"), array("q")
        self._session_names: dict[str, int] = {}
        self._line_of_session: dict[int, int] = {}
        self._begun: dict[str | None, int] = {}
        self._request_ids: dict[int, str] = {}
        self._contents = Contents()
        self._priority: dict[int, int] = {}
        self._dropped = self._dropped_at = 0
        self._unserved: dict[str, None] = {}
        self._model_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._at)

    @property
    def has_handles(self) -> bool:
        """Whether the keys of `workload` are the file's block ids, and not yet those of an engine's blocks."""
        return self._contents.has_handles

    @property
    def full(self) -> bool:
        """Whether the lines that `limit` asks for are there, so that a format of single requests may stop reading."""
        options = self.source.options
        return 0 < options.limit <= self._lines and not options.changes_workload

    def add(
        self,
        number: int,
        at_ns: int,
        input_tokens: int,
        output_tokens: int,
        *,
        after_ns: int = -1,
        session: str | None = None,
        ids: Sequence[int | str] | None = None,
        model: str | None = None,
        aside: bool = False,
    ) -> bool:
        """Appends a request of line `number`; False where it was dropped, having no prompt or no answer. Nothing ever
        continues a line begun `aside`."""
        if input_tokens < 1 or output_tokens < 1:
            if input_tokens < 0 or output_tokens < 0:
                raise self.refusal(number, f"{min(input_tokens, output_tokens)} tokens, but there must be 0 or more")
            self._dropped += 1
            self._dropped_at = self._dropped_at or number
            if self.source.options.failures == "drop":
                if session is not None and after_ns < 0:
                    self._begun.setdefault(session, at_ns)
                return False
            input_tokens, output_tokens = max(input_tokens, 1), max(output_tokens, 1)
        if input_tokens > MAX_TOKENS or output_tokens > MAX_TOKENS:
            raise self.refusal(
                number, f"{max(input_tokens, output_tokens)} tokens, but at most {MAX_TOKENS} are possible"
            )
        if after_ns >= 0 and session in self._begun and session not in self._session_names:
            at_ns, after_ns = self._begun[session], -1  # the calls before it were dropped
        self._at.append(at_ns if after_ns < 0 else 0)
        if self._linked or after_ns >= 0 or session is not None:
            self._link(number, after_ns, session, aside)
        else:
            self._lines += 1
        self._input.append(input_tokens)
        self._output.append(output_tokens)
        self._model.append(self._model_index(model, number))
        if ids is not None and self.source.granularity:
            self._contents.name(len(self) - 1, ids)
        return True

    def _link(self, number: int, after_ns: int, session: str | None, aside: bool) -> None:
        """Says which session and line the row belongs to whose arrival was just appended. Nothing is kept of that while
        all rows are lines of their own."""
        if not self._linked:
            self._linked = True
            before = len(self) - 1
            self._after, self._session = array("q", [-1]) * before, array("q", [-1]) * before
            self._line = array("q", range(before))
        key = -1 if session is None else self._session_names.setdefault(session, len(self._session_names))
        if after_ns >= 0:
            line = self._line_of_session.get(key, -1)
            if line < 0:
                raise self.refusal(number, "the first request of a session needs an arrival time, not a delay")
        else:
            line = self._lines
            self._lines += 1
            if key >= 0 and not aside:
                self._line_of_session[key] = line
        self._after.append(min(after_ns, MAX_TIME_NS))
        self._line.append(line)
        self._session.append(key)

    def detail(
        self, *, request_id: str | None = None, priority: int | None = None, repeats: tuple[int, int] | None = None
    ) -> None:
        """Says more about the row just added. `repeats` (row, tokens): its prompt begins with that many tokens of an
        earlier row's prompt and answer."""
        row = len(self) - 1
        if request_id is not None:
            self._request_ids[row] = request_id
        if priority is not None:
            self._priority[row] = priority
        if repeats is not None and self.source.granularity:
            self._contents.repeat(row, *repeats)

    def move(self, rows: Sequence[int], by_ns: Sequence[int]) -> None:
        """Shifts the arrivals of rows that begin lines."""
        for row, shift in zip(rows, by_ns, strict=True):
            self._at[row] += shift

    def refusal(self, number: int, problem: str, column: int = 1) -> InputError:
        """The error for what is wrong with line `number`, which names the place."""
        return InputError(f"{self.source.path}:{number}:{column}: {problem}")

    def _model_index(self, name: str | None, number: int) -> int:
        models = self.source.models
        if name is None and not models.required:
            return -1
        found = self._model_of.get(name) if name is not None else None
        if found is None:
            where = f"{self.source.path}:{number}"
            if name is None:
                return models.unnamed(where)
            try:
                found = models.index(name, where)
            except InputError:
                # Production traces name models of their own: where one model serves all, their names do not matter.
                if models.required:
                    raise
                self._unserved[name] = None
                found = -1
            self._model_of[name] = found
        return found

    def workload(self) -> Workload:
        """All rows; arrivals count from the first, in ns. Raises InputError where there are none, or they span more
        than a run can last."""
        n = len(self)
        if n == 0:
            more = f": all {self._dropped} requests are without prompt or answer tokens" if self._dropped else ""
            raise InputError(f"{self.source.path}: the trace is empty{more}")
        inputs, outputs = np.frombuffer(self._input, np.int32), np.frombuffer(self._output, np.int32)
        stream = inputs.astype(np.int64) + outputs
        if self._contents.repeats:
            self._coarsen(stream)
        offsets, keys = self._contents.columns(stream, self.block_tokens)
        if self._linked:
            after, line = np.frombuffer(self._after, np.int64), np.frombuffer(self._line, np.int64)
        else:
            after, line = np.full(n, -1, dtype=np.int64), np.arange(n)
        arrival_ns = np.where(after < 0, np.frombuffer(self._at, np.int64), -1)
        heads = np.flatnonzero(after < 0)
        first_ns = int(arrival_ns[heads].min())
        if int(arrival_ns[heads].max()) - first_ns > MAX_TIME_NS:
            raise InputError(f"{self.source.path}: its arrivals span more than the 53 days that a run can last")
        arrival_ns[heads] -= first_ns
        by_arrival = np.argsort(arrival_ns[heads], kind="stable")
        if len(heads) == n and np.array_equal(by_arrival, np.arange(n)):
            rows = by_arrival
        else:
            rank = np.empty(len(heads), dtype=np.int64)
            rank[by_arrival] = np.arange(len(heads))
            rows = np.argsort(rank[line], kind="stable").astype(np.int64)
            offsets, keys = reordered(offsets, keys, rows)
        arrival_ns = arrival_ns[rows]
        following = next_calls(arrival_ns)
        tool_ns = np.zeros(n, dtype=np.int64)
        tool_ns[following >= 0] = after[rows][following[following >= 0]]
        listed = rows.tolist() if self._request_ids or self._session_names else []
        names = [*self._session_names, ""]
        return Workload(
            arrival_ps=np.where(arrival_ns < 0, -1, arrival_ns * PS_PER_NS),
            input_tokens=inputs[rows],
            output_tokens=outputs[rows],
            model=np.frombuffer(self._model, np.int16)[rows],
            models=tuple(self.source.models.names),
            next_call=following,
            tool_delay_ps=tool_ns * PS_PER_NS,
            key_offsets=offsets,
            keys=keys,
            granularity=self.block_tokens,
            source=self.source.path,
            session_id=[names[self._session[row]] for row in listed] if self._session_names else None,
            request_id=[self._request_ids.get(row, str(row)) for row in listed] if self._request_ids else None,
            notes=tuple([*self.notes, *self._closing_notes()]),
            priority=self._priorities(rows),
        )

    def _coarsen(self, stream_tokens: Int64) -> None:
        while 0 < self.source.max_keys < int((stream_tokens // max(self.block_tokens, 1)).sum()):
            self.block_tokens *= 2

    def _priorities(self, rows: Int64) -> Int32 | None:
        if not self._priority:
            return None
        values = np.zeros(len(rows), dtype=np.int32)
        values[np.fromiter(self._priority, dtype=np.int64)] = np.fromiter(self._priority.values(), dtype=np.int32)
        return values[rows]

    def _closing_notes(self) -> list[str]:
        path, notes = self.source.path, []
        if self._dropped:
            kept = self.source.options.failures == "keep"
            verb = "are kept with one token each" if kept else "are left out"
            notes.append(
                f"{path}: {self._dropped} requests without prompt or answer tokens {verb}; the first is {self.unit} "
                f"{self._dropped_at}"
            )
        if self._unserved:
            names = ", ".join(f'"{name}"' for name in [*self._unserved][:4]) + (
                ", ..." if len(self._unserved) > 4 else ""
            )
            notes.append(f"{path}: models that this cluster does not serve go to the one it does: {names}")
        return notes

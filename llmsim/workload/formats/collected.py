"""What has been read of a trace, and how it becomes a Workload of the file's own block size."""

from array import array

import numpy as np

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_NS, Int32, Int64, Note, Workload
from llmsim.plurals import counted, plural
from llmsim.workload.columns import next_calls
from llmsim.workload.content import reordered
from llmsim.workload.formats.contents import Contents
from llmsim.workload.formats.source import Source
from llmsim.workload.limits import MAX_TIME_NS


class Collected:
    """Rows in any order; `workload` sorts lines by arrival and may be called once."""

    def __init__(self, source: Source, *, block_tokens: int = 0, labels: bool = False) -> None:
        """`block_tokens` is the size of the blocks that `ids` name, or 0 where only `repeats` is
        used; `labels`: every row is a line of its own, and a session is its label and no more.
        """
        self.source = source
        self.notes: list[str] = []
        self.unit = "line"
        self.block_tokens = block_tokens or source.granularity
        self._at, self._input, self._output, self._model = (
            array("q"),
            array("i"),
            array("i"),
            array("h"),
        )
        self._lines, self._linked = 0, False
        self._after, self._line, self._session = array("q"), array("q"), array("q")
        self._session_names: dict[str, int] = {}
        self._line_of_session = array("q")
        self._begun: dict[str | None, int] = {}
        self._labelled, self._labels = labels, list[str | None]()
        self._request_ids: list[str | None] = []
        self._contents = Contents()
        self._priority: dict[int, int] = {}
        self._dropped = self._dropped_at = 0
        self._unserved: dict[str, None] = {}
        self._model_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._at)

    @property
    def has_handles(self) -> bool:
        """Whether the keys of `workload` are the file's block ids, and not yet those of an engine's
        blocks.
        """
        return self._contents.has_handles

    @property
    def full(self) -> bool:
        """Whether the lines that `limit` asks for are there, so that a format of single requests
        may stop reading.
        """
        options = self.source.options
        return 0 < options.limit <= self._lines and not options.changes_workload

    def say(self, sentence: str) -> None:
        """Notes what changes the meaning of a run's figures, so that every run shows it."""
        self.notes.append(Note(f"{self.source.path}: {sentence}"))

    def dropped(self, number: int, count: int = 1) -> None:
        """Counts requests without tokens, the first of them in line `number`."""
        self._dropped += count
        self._dropped_at = self._dropped_at or number

    def refusal(
        self,
        number: int,
        problem: str,
        column: int = 1,
        *,
        field: str | None = None,
        value: object = None,
    ) -> InputError:
        """The error for what is wrong with line `number`, which names the position."""
        path = self.source.path
        sentence = f"{path}:{number}:{column}: {problem}"
        return InputError(sentence, file=path, field=field, value=value)

    def workload(self) -> Workload:
        """All rows; arrivals count from the first, in ns. Raises InputError where there are none,
        or they span more than a run can last.
        """
        n = len(self)
        if n == 0:
            all_of_them = f"all {self._dropped} requests are"
            who = plural(self._dropped, "its only request is", all_of_them)
            more = f": {who} without prompt or answer tokens" if self._dropped else ""
            path = self.source.path
            raise InputError(f"{path}: the trace is empty{more}", file=path)
        arrival_ns, after, rows, in_order = self._sorted(n)
        sessions = self._sessions(rows)  # first, for the memory
        self._at, self._line, self._session = array("q"), array("q"), array("q")
        following = next_calls(arrival_ns)
        tool_ns = np.zeros(n, dtype=np.int64)
        tool_ns[following >= 0] = after[rows][following[following >= 0]]
        del after
        self._after = array("q")
        inputs, outputs = (
            np.frombuffer(self._input, np.int32),
            np.frombuffer(self._output, np.int32),
        )
        stream = inputs.astype(np.int64) + outputs
        if self._contents.repeats:
            self._coarsen(stream)
        offsets, keys = self._contents.columns(stream, self.block_tokens)
        del stream
        if not in_order:
            offsets, keys = reordered(offsets, keys, rows)
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
            session_id=sessions,
            request_id=self._names(rows),
            notes=tuple([*self.notes, *self._closing_notes()]),
            priority=self._priorities(rows),
        )

    def _sorted(self, n: int) -> tuple[Int64, Int64, Int64, bool]:
        """Arrivals from the first (-1: a later call) in order of the lines' arrival, then unsorted
        the time after the call before, the order, and whether that is the file's.
        """
        if self._linked:
            after, line = np.frombuffer(self._after, np.int64), np.frombuffer(self._line, np.int64)
        else:
            after, line = np.full(n, -1, dtype=np.int64), np.arange(n)
        arrival_ns = np.where(after < 0, np.frombuffer(self._at, np.int64), -1)
        heads = np.flatnonzero(after < 0)
        first_ns = int(arrival_ns[heads].min())
        if int(arrival_ns[heads].max()) - first_ns > MAX_TIME_NS:
            raise InputError(
                f"{self.source.path}: its arrivals span more than the 53 days that a run can last"
            )
        arrival_ns[heads] -= first_ns
        by_arrival = np.argsort(arrival_ns[heads], kind="stable")
        if len(heads) == n and np.array_equal(by_arrival, np.arange(n)):
            return arrival_ns, after, by_arrival, True
        rank = np.empty(len(heads), dtype=np.int64)
        rank[by_arrival] = np.arange(len(heads))
        rows = np.argsort(rank[line], kind="stable").astype(np.int64)
        return arrival_ns[rows], after, rows, False

    def _sessions(self, rows: Int64) -> list[str] | None:
        """The session of each row, and lets go of them: of a million requests they are what takes
        the memory.
        """
        if self._labels:
            labels, self._labels = self._labels, []
            labels.extend([None] * (len(rows) - len(labels)))
            return [labels[row] or "" for row in rows.tolist()]
        if not self._session_names:
            return None
        names = [*self._session_names, ""]
        self._session_names = {}
        return [names[key] for key in np.frombuffer(self._session, dtype=np.int64)[rows].tolist()]

    def _names(self, rows: Int64) -> list[str] | None:
        """The request's own name or, where it has none, its position in the file."""
        if not self._request_ids:
            return None
        names = self._request_ids
        names.extend([None] * (len(rows) - len(names)))
        return [str(row) if (name := names[row]) is None else name for row in rows.tolist()]

    def _coarsen(self, stream_tokens: Int64) -> None:
        while 0 < self.source.max_keys < int((stream_tokens // max(self.block_tokens, 1)).sum()):
            self.block_tokens *= 2

    def _priorities(self, rows: Int64) -> Int32 | None:
        if not self._priority:
            return None
        values = np.zeros(len(rows), dtype=np.int32)
        values[np.fromiter(self._priority, dtype=np.int64)] = np.fromiter(
            self._priority.values(), dtype=np.int32
        )
        return values[rows]

    def _closing_notes(self) -> list[str]:
        path, notes = self.source.path, []
        if self._dropped:
            kept = self.source.options.failures == "keep"
            are = plural(self._dropped, "is", "are")
            verb = f"{are} kept with one token each" if kept else f"{are} left out"
            notes.append(
                f"{path}: {counted(self._dropped, 'request')} without prompt or "
                f"answer tokens {verb}; the "
                f"first is {self.unit} {self._dropped_at}"
            )
        if self._unserved:
            names = ", ".join(f'"{name}"' for name in [*self._unserved][:4]) + (
                ", ..." if len(self._unserved) > 4 else ""
            )
            notes.append(
                f"{path}: models that this cluster does not serve go to the one it does: {names}"
            )
        return notes

"""Takes the requests of a trace in any format, and checks what all formats share."""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.core import Int64
from llmsim.workload.formats.collected import Collected
from llmsim.workload.formats.source import Rows, Texts
from llmsim.workload.limits import MAX_TIME_NS, MAX_TOKENS

LATEST_NS = 1 << 62
"""No clock says more; differences of two such times fit 64 bits."""


class Table(Collected):
    """Rows in any order; `add` checks what every format shares, `workload` sorts lines by arrival
    and may be called once.

    A row without `after_ns` begins a line at `at_ns`, in the file's own clock; a row with it
    continues the session's last row, that many ns after that row's last token.
    """

    def wants(self, count: int) -> bool:
        """Whether so many lines more may be taken at once, as far as `limit` goes."""
        options = self.source.options
        return (
            options.limit == 0 or options.changes_workload or self._lines + count <= options.limit
        )

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
        """Appends a request of line `number`; False where it was dropped, having no prompt or no
        answer. Nothing ever continues a line begun `aside`.
        """
        if input_tokens < 1 or output_tokens < 1:
            if input_tokens < 0 or output_tokens < 0:
                part = "a prompt" if input_tokens < 0 else "an answer"
                raise self.refusal(
                    number,
                    f"{part} has {min(input_tokens, output_tokens)} tokens, but it must have 0 or "
                    "more",
                )
            self.dropped(number)
            if self.source.options.failures == "drop":
                if session is not None and after_ns < 0 and not self._labelled:
                    self._begun.setdefault(session, at_ns)
                return False
            input_tokens, output_tokens = max(input_tokens, 1), max(output_tokens, 1)
        if input_tokens > MAX_TOKENS or output_tokens > MAX_TOKENS:
            raise self.refusal(
                number,
                f"{max(input_tokens, output_tokens)} tokens, but at most {MAX_TOKENS} are possible",
            )
        if after_ns >= 0 and session in self._begun and session not in self._session_names:
            at_ns, after_ns = self._begun[session], -1  # the calls before it were dropped
        self._at.append(at_ns if after_ns < 0 else 0)
        if self._labelled:
            self._label_all(len(self) - 1, [session])
        elif self._linked or after_ns >= 0 or session is not None:
            self._link(number, after_ns, session, aside)
        else:
            self._lines += 1
        self._input.append(input_tokens)
        self._output.append(output_tokens)
        self._model.append(self._model_index(model, number))
        if ids is not None and self.source.granularity:
            self._contents.name(len(self) - 1, ids)
        return True

    def extend(self, rows: Rows) -> bool:
        """Appends requests as `add` does one by one; False, with nothing appended, where each must
        be looked at.
        """
        try:
            inputs, outputs = (
                np.array(each, dtype=np.int64) for each in (rows.input_tokens, rows.output_tokens)
            )
        except OverflowError:
            return False
        if len(inputs) == 0:
            return True
        if self.source.models.required or abs(rows.at_ns).max() >= LATEST_NS:
            return False
        if min(inputs.min(), outputs.min()) < 0 or max(inputs.max(), outputs.max()) > MAX_TOKENS:
            return False
        empty = (inputs < 1) | (outputs < 1)
        if empty.any():
            if rows.after_ns is not None:
                return False
            self.dropped(rows.numbers()[int(empty.argmax())], int(np.count_nonzero(empty)))
            if self.source.options.failures == "drop":
                rows, inputs, outputs = rows.only(~empty), inputs[~empty], outputs[~empty]
            inputs, outputs = np.maximum(inputs, 1), np.maximum(outputs, 1)
        self._append(rows, inputs, outputs)
        return True

    def take(self, rows: Rows) -> None:
        """Appends requests all of which have tokens."""
        if self.extend(rows):
            return
        count = len(rows.input_tokens)
        blank = [None] * count
        after = [-1] * count if rows.after_ns is None else rows.after_ns.tolist()
        aside = [rows.after_ns is None] * count if rows.aside is None else rows.aside.tolist()
        repeated = (
            blank
            if rows.repeats is None
            else list(zip(*(each.tolist() for each in rows.repeats), strict=True))
        )
        sessions, models = (
            texts.listed() if texts else blank for texts in (rows.sessions, rows.models)
        )
        lengths = (np.array(rows.input_tokens).tolist(), np.array(rows.output_tokens).tolist())
        details = list(zip(rows.request_ids or blank, repeated, strict=True))
        columns = (rows.labels or sessions, rows.ids or blank, models, details)
        of = zip(rows.numbers(), rows.at_ns.tolist(), *lengths, after, aside, *columns, strict=True)
        for number, at_ns, inputs, outputs, after_ns, alone, session, ids, model, said in of:
            added = self.add(
                number,
                at_ns,
                inputs,
                outputs,
                after_ns=after_ns,
                session=session,
                ids=ids,
                model=model,
                aside=alone,
            )
            if added:
                self.detail(request_id=said[0], repeats=said[1])

    def name(self, first: int, counts: Int64, ids: NDArray[np.integer]) -> None:
        """The block ids of the rows from `first` to the last, `counts` for each, as 64 bits with or
        without a sign.
        """
        if self.source.granularity:
            self._contents.name_flat(first, counts, ids)

    def _append(self, rows: Rows, inputs: Int64, outputs: Int64) -> None:
        first, n = len(self), len(inputs)
        self._at.frombytes(
            (
                rows.at_ns if rows.after_ns is None else np.where(rows.after_ns < 0, rows.at_ns, 0)
            ).tobytes()
        )
        if self._labelled:
            self._label_all(first, rows.labels or [None] * n)
        elif self._linked or rows.after_ns is not None or rows.sessions is not None:
            self._link_all(first, n, rows)
        else:
            self._lines += n
        self._input.frombytes(inputs.astype(np.int32).tobytes())
        self._output.frombytes(outputs.astype(np.int32).tobytes())
        model = np.full(n, self._model_index(None, 0), dtype=np.int16)
        if rows.models is not None:
            names, index = rows.models.used()
            known = [*(self._model_index(name, 0) for name in names), self._model_index(None, 0)]
            model = np.array(known, dtype=np.int16)[index]
        self._model.frombytes(model.tobytes())
        if rows.request_ids is not None and any(name is not None for name in rows.request_ids):
            self._request_ids.extend([None] * (first - len(self._request_ids)))
            self._request_ids.extend(rows.request_ids)
        if rows.ids is not None and self.source.granularity:
            self._contents.name_all(first, rows.ids)
        if rows.repeats is not None and self.source.granularity:
            self._contents.repeat_all(first, *rows.repeats)

    def _link_all(self, first: int, n: int, rows: Rows) -> None:
        """`_link` for rows that were just appended."""
        self._begin_links(first)
        keys = self._session_keys(rows.sessions, n)
        begins = np.ones(n, dtype=np.bool_) if rows.after_ns is None else rows.after_ns < 0
        lines = self._lines + np.cumsum(begins) - 1
        self._lines += int(np.count_nonzero(begins))
        after_ns = np.full(n, -1, dtype=np.int64)
        if rows.after_ns is not None:
            heads = begins & (keys >= 0)
            lines = self._lines_followed(
                keys, heads if rows.aside is None else heads & ~rows.aside, begins, lines
            )
            after_ns = np.minimum(rows.after_ns, MAX_TIME_NS)
        for column, values in ((self._session, keys), (self._line, lines), (self._after, after_ns)):
            column.frombytes(values.astype(np.int64).tobytes())

    def _session_keys(self, sessions: Texts | None, n: int) -> Int64:
        """The number of each row's session (-1: none), those that are new after the others."""
        if sessions is None:
            return np.full(n, -1, dtype=np.int64)
        used, index = sessions.used()
        names = self._session_names
        known = [names.setdefault(name, len(names)) for name in used]
        self._line_of_session.extend([-1] * (len(names) - len(self._line_of_session)))
        return np.array([*known, -1], dtype=np.int64)[index]

    def _lines_followed(
        self, keys: Int64, heads: NDArray[np.bool_], begins: NDArray[np.bool_], lines: Int64
    ) -> Int64:
        """The line of every row: of those that begin one theirs in `lines`, of others that which
        the last of `heads` in their session began, here or earlier.
        """
        n = len(keys)
        if not self._line_of_session:
            return lines
        order = np.argsort(keys, kind="stable")
        sorted_keys = keys[order]
        latest = np.maximum.accumulate(np.where(heads[order], np.arange(n), -1))
        group = np.searchsorted(sorted_keys, sorted_keys)
        earlier = np.frombuffer(self._line_of_session, dtype=np.int64)[sorted_keys]
        found = np.where(latest >= group, lines[order[latest]], earlier)
        last = np.flatnonzero(np.diff(sorted_keys, append=sorted_keys[-1] + 1))
        for key, line in zip(sorted_keys[last].tolist(), found[last].tolist(), strict=True):
            if key >= 0:
                self._line_of_session[key] = line
        followed = np.empty(n, dtype=np.int64)
        followed[order] = found
        return np.where(begins, lines, followed)

    def _label_all(self, first: int, sessions: Sequence[str | None]) -> None:
        """Labels rows from `first` on, each of them a line; nothing is kept while none
        has a label.
        """
        self._lines += len(sessions)
        if self._labels or any(sessions):
            self._labels.extend([None] * (first - len(self._labels)))
            self._labels.extend(sessions)

    def _begin_links(self, before: int) -> None:
        """From here on it is kept which line every row belongs to; the rows `before` are lines of
        their own.
        """
        if not self._linked:
            self._linked = True
            self._after, self._session = array("q", [-1]) * before, array("q", [-1]) * before
            self._line = array("q", range(before))

    def _link(self, number: int, after_ns: int, session: str | None, aside: bool) -> None:
        """Says which session and line the row belongs to whose arrival was just appended. Nothing
        is kept of that while all rows are lines of their own.
        """
        self._begin_links(len(self) - 1)
        key = -1
        if session is not None:
            key = self._session_names.setdefault(session, len(self._session_names))
            self._line_of_session.extend([-1] * (key + 1 - len(self._line_of_session)))
        if after_ns >= 0:
            line = self._line_of_session[key] if key >= 0 else -1
            if line < 0:
                raise self.refusal(
                    number, "the first request of a session needs an arrival time, not a delay"
                )
        else:
            line = self._lines
            self._lines += 1
            if key >= 0 and not aside:
                self._line_of_session[key] = line
        self._after.append(min(after_ns, MAX_TIME_NS))
        self._line.append(line)
        self._session.append(key)

    def detail(
        self,
        *,
        request_id: str | None = None,
        priority: int | None = None,
        repeats: tuple[int, int] | None = None,
    ) -> None:
        """Says more about the row just added. `repeats` (row, tokens): its prompt begins with that
        many tokens of an earlier row's prompt and answer.
        """
        row = len(self) - 1
        if request_id is not None:
            self._request_ids.extend([None] * (row - len(self._request_ids)))
            self._request_ids.append(request_id)
        if priority is not None:
            self._priority[row] = priority
        if repeats is not None and self.source.granularity:
            self._contents.repeat(row, *repeats)

    def move(self, rows: Sequence[int], by_ns: Sequence[int]) -> None:
        """Shifts the arrivals of rows that begin lines."""
        for row, shift in zip(rows, by_ns, strict=True):
            self._at[row] += shift

    def _model_index(self, name: str | None, number: int) -> int:
        models = self.source.models
        if name is None and not models.required:
            return -1
        found = self._model_of.get(name) if name is not None else None
        if found is None:
            where = f"{self.source.path}:{number}:1"
            if name is None:
                return models.unnamed(where)
            try:
                found = models.index(name, where)
            except InputError:
                # Production traces name models of their own: where one model serves all, their
                # names do not matter.
                if models.required:
                    raise
                self._unserved[name] = None
                found = -1
            self._model_of[name] = found
        return found

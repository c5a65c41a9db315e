"""Reads a JSONL trace line by line: requests, sessions, or a mix, checked to the last field."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import UNSET

from llmsim.config.errors import InputError, nearest
from llmsim.config.files.reading import MAX_LINE_BYTES, too_long
from llmsim.core import EncoderInput, Workload
from llmsim.workload.columns import WorkloadBuilder
from llmsim.workload.limits import MAX_TIME_NS
from llmsim.workload.lines import (
    Call,
    Line,
    call_problem,
    column_of,
    culprit_of,
    decode_lenient,
    decode_strict,
    encoder_problem,
    given_fields,
    given_keys,
    problem,
    repeated_keys,
    unknown_keys,
)
from llmsim.workload.models import ModelNames
from llmsim.workload.open_trace import opened

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OWN_KEYS = (b'"input_toks"', b'"sub_requests"', b'"arrival_time_ns"')


def load_trace(
    path: str | Path,
    *,
    known_models: Sequence[str] | ModelNames,
    granularity: int,
    limit: int = 0,
) -> Workload:
    """The requests of a trace, in stable order of arrival.

    Lines hold `input_toks`, `output_toks`, `arrival_time_ns` and optionally `input_tok_ids`,
    `output_tok_ids`, `model`, `request_id`, `encoder_inputs`, `priority`, `slo_class`, `adapter`,
    `cancel_after_ns`, `cancel_after_toks`; a session has `arrival_time_ns`, `sub_requests` and
    optionally `session_id`, `model` and the last five, which its calls may override; calls may have
    `new_toks` instead of `input_toks`, `extends`, and `hidden` or `phase`. Gzip and zstd are
    recognised by content; blank lines are skipped; other keys are ignored with a note.
    `known_models` are the cluster's (empty: any name goes), perhaps under other names in the trace;
    `granularity` the tokens per content
    block (0: content is not kept), `limit` the number of lines to read (0: all). Token ids are
    hashed as they are read and dropped, so memory is bounded by the columns. Raises InputError,
    beginning `path:line:` where a line is at fault.
    """
    with opened(Path(path)) as stream:
        return read_lines(
            stream, str(path), known_models=known_models, granularity=granularity, limit=limit
        )


def read_lines(
    stream: BinaryIO,
    source: str,
    *,
    known_models: Sequence[str] | ModelNames,
    granularity: int,
    limit: int = 0,
) -> Workload:
    """The requests of lines as `load_trace` reads them; `source` names them in errors."""
    if limit < 0:
        raise InputError(f"the number of requests to read is {limit}, but must be 0 (all) or more")
    names = known_models if isinstance(known_models, ModelNames) else ModelNames(known_models)
    reader = _Reader(source, names, WorkloadBuilder(granularity))
    reader.read(stream, limit)
    return reader.workload()


def is_own_format(path: str | Path) -> bool:
    """Whether a file begins like a trace of this format, so that no other reader need be asked."""
    with opened(Path(path)) as stream:
        line = stream.readline(1 << 16)
    return any(key in line for key in _OWN_KEYS) and not line.lstrip(
        _BYTE_ORDER_MARK
    ).lstrip().startswith(b"[")


DOUBLE_KEYS, OWN_TOKENS = "double keys", "own tokens of a session"
"""What is noted once."""
OF_CALLS = ("input_toks", "output_toks", "input_tok_ids", "output_tok_ids")
"""Keys of a line that are those of a call where the line is a session."""


class _Reader:
    """Takes lines into a builder; keeps what must be said once about the whole file."""

    def __init__(self, source: str, models: ModelNames, builder: WorkloadBuilder) -> None:
        self._source = source
        self._models = models
        self._builder = builder
        self._decode = decode_strict
        self._sessions = 0
        self._noted: set[str] = set()
        """What was noted once, and is not looked for again."""
        self._notes: list[str] = []

    def read(self, stream: BinaryIO, limit: int) -> None:
        taken = 0
        for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise too_long(f"{self._source}:{number}:1")
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if not line or line.isspace():
                continue
            self._builder.begin_line(number)
            self._take(line, number)
            taken += 1
            if taken == limit:
                return

    def workload(self) -> Workload:
        if not len(self._builder):
            raise InputError(
                f"{self._source}: the trace is empty; it needs a line with input_toks, "
                "output_toks and arrival_time_ns"
            )
        repeated = [
            f"{self._source}: {sentence}; all are kept"
            for sentence in self._builder.repeated_names()
        ]
        notes = (*self._notes, *repeated, *self._builder.assumptions(self._source))
        return self._builder.build(
            models=tuple(self._models.names), source=self._source, notes=notes
        )

    def _take(self, line: bytes, number: int) -> None:
        try:
            record: Line = self._decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            record = self._decode_again(line, number)
        if DOUBLE_KEYS not in self._noted and line.count(b'":') > given_keys(record):
            self._look_for_doubles(line, number)
        if record.sub_requests is not UNSET:
            self._take_session(record, record.sub_requests, line, number)
            return
        if record.arrival_time_ns is UNSET:
            raise self._refusal(line, number)
        self._take_call(record, record.arrival_time_ns, record.model, line, number)
        if record.session_id is not UNSET or record.request_id is not UNSET:
            self._builder.name_last(record.session_id or None, record.request_id or None, number)
        self._label(record, record)
        self._limit(record, record)
        self._speculate(record, record)

    def _look_for_doubles(self, line: bytes, number: int) -> None:
        """Notes, once, a key that a line gives twice: JSON leaves open which holds, and the last
        one is used here.
        """
        keys = repeated_keys(line)
        if keys:
            named = ", ".join(f'"{key}"' for key in keys)
            self._note_once(
                DOUBLE_KEYS, number, f"{named} is given twice in the line; the last value is used"
            )

    def _decode_again(self, line: bytes, number: int) -> Line:
        """The line without its unknown keys, which are noted once; refuses a line with any other
        fault.
        """
        try:
            record: Line = decode_lenient(line)
            keys = unknown_keys(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._refusal(line, number) from None
        self._decode = decode_lenient  # type: ignore[assignment]
        names = ", ".join(f'"{key}"{nearest(key, Line.__struct_fields__)}' for key in keys)
        self._notes.append(
            f"{self._source}:{number}: unknown keys are ignored, here and below: {names}"
        )
        return record

    def _take_session(self, record: Line, calls: list[Call], line: bytes, number: int) -> None:
        if record.arrival_time_ns is UNSET or not calls:
            raise self._refusal(line, number)
        if record.arrival_time_ns + sum(call.tool_duration_ns for call in calls) > MAX_TIME_NS:
            raise self._refusal(line, number)
        self._note_own_tokens(record, number)
        session_id = self._session_id(record)
        arrival_ns = record.arrival_time_ns
        said = 0
        for index, call in enumerate(calls):
            extends = self._extended(call, said, line, number)
            said = self._take_call(call, arrival_ns, call.model or record.model, line, number)
            self._reason(call, extends=extends, first=arrival_ns >= 0)
            # The peer's traces may give a duration after the last call; nothing waits for it.
            tool_ns = call.tool_duration_ns if index + 1 < len(calls) else 0
            self._builder.name_last(session_id, call.request_id or None, number, tool_ns)
            self._label(call, record)
            self._limit(call, record)
            self._speculate(call, record)
            arrival_ns = -1

    def _session_id(self, session: Line) -> str:
        """Its own, else its number among the sessions."""
        self._sessions += 1
        if session.session_id is UNSET:
            return f"session-{self._sessions - 1}"
        return session.session_id

    def _reason(self, call: Call, *, extends: bool, first: bool) -> None:
        """Names the call's round, where the line says that it is one of several."""
        says_phase = call.hidden is not UNSET or call.phase is not UNSET
        if extends or says_phase:
            hidden = call.hidden is True or call.phase == "thinking"
            self._builder.reason_last(hidden=hidden, extends=extends and not first)

    def _note_own_tokens(self, session: Line, number: int) -> None:
        """Notes, once, what a session says of tokens, which are those of its calls."""
        if OWN_TOKENS in self._noted:
            return
        given = [name for name in OF_CALLS if getattr(session, name) is not UNSET]
        if given:
            names = " and ".join(f'"{name}"' for name in given)
            self._note_once(
                OWN_TOKENS,
                number,
                f'{names} beside "sub_requests" is ignored, here and below: each call has its own',
            )

    def _note_once(self, what: str, number: int, sentence: str) -> None:
        self._noted.add(what)
        self._notes.append(f"{self._source}:{number}: {sentence}")

    def _extended(self, call: Call, said: int, line: bytes, number: int) -> bool:
        """Whether a call's prompt begins with what its session has said; fills in `input_toks`."""
        if call.new_toks is UNSET and call.extends is not True and call.phase is UNSET:
            return False
        if call_problem(given_fields(call), "", said):
            raise self._refusal(line, number)
        if call.new_toks is not UNSET:
            call.input_toks = said + call.new_toks
        return call.new_toks is not UNSET or call.extends is True

    def _label(self, call: Line | Call, record: Line) -> None:
        """Priority, class and adapter; a session's own hold for the calls that give none."""
        priority = record.priority if call.priority is UNSET else call.priority
        if priority is not UNSET:
            self._builder.prioritise_last(priority)
        slo_class = record.slo_class if call.slo_class is UNSET else call.slo_class
        if slo_class is not UNSET:
            self._builder.classify_last(slo_class)
        adapter = record.adapter if call.adapter is UNSET else call.adapter
        if adapter is not UNSET:
            self._builder.adapt_last(adapter)

    def _limit(self, call: Line | Call, record: Line) -> None:
        """When the client gives up; a session's own value holds for the calls that give none."""
        timeout = record.cancel_after_ns if call.cancel_after_ns is UNSET else call.cancel_after_ns
        tokens = (
            record.cancel_after_toks if call.cancel_after_toks is UNSET else call.cancel_after_toks
        )
        if timeout is not UNSET or tokens is not UNSET:
            self._builder.limit_last(timeout or None, tokens or None)

    def _speculate(self, call: Line | Call, record: Line) -> None:
        """What becomes of its drafts; a session's own values hold for the calls that give none."""
        for name in ("acceptance_rate", "accepted_drafts", "num_speculative_tokens"):
            value = getattr(call, name)
            value = getattr(record, name) if value is UNSET else value
            if value is not UNSET:
                self._builder.speculate_last(name, value)

    def _take_call(
        self, call: Line | Call, arrival_ns: int, model: object, line: bytes, number: int
    ) -> int:
        """Adds a request or call; its tokens, prompt and answer."""
        input_tokens, output_tokens = call.input_toks, call.output_toks
        if input_tokens is UNSET or output_tokens is UNSET:
            raise self._refusal(line, number)
        index = (
            -1 if model is UNSET and not self._models.required else self._model(model, line, number)
        )
        input_ids, output_ids = call.input_tok_ids, call.output_tok_ids
        if output_ids is not UNSET and len(output_ids) != output_tokens:
            raise self._refusal(line, number)
        if input_ids is not UNSET and len(input_ids) != input_tokens:
            raise self._refusal(line, number)
        encoded = self._encoded(call, line, number)
        row = (arrival_ns, input_tokens, output_tokens, index)
        if input_ids is UNSET:
            self._builder.add(*row)
        else:
            ids = self._builder.with_images(input_ids, encoded) if encoded else input_ids
            self._builder.add_with_content(row, ids, None if output_ids is UNSET else output_ids)
        self._builder.encode_last(encoded)
        return input_tokens + output_tokens

    def _encoded(self, call: Line | Call, line: bytes, number: int) -> list[EncoderInput]:
        """The encoder inputs of a call whose prompt is known."""
        if call.encoder_inputs is UNSET or not call.encoder_inputs:
            return []
        found = [(one.offset, one.tokens, one.id) for one in call.encoder_inputs]
        fields = {
            "input_toks": call.input_toks,
            "encoder_inputs": [msgspec.to_builtins(one) for one in call.encoder_inputs],
        }
        said = encoder_problem(fields, "")
        if said:
            column = max(line.find(b'"encoder_inputs"'), 0) + 1
            raise InputError(f"{self._source}:{number}:{column}: {said}")
        return found

    def _model(self, model: object, line: bytes, number: int) -> int:
        """The index of the model that a line names, or names not."""
        column = max(line.find(b'"model"'), 0) + 1
        where = f"{self._source}:{number}:{column}"
        return (
            self._models.index(model, where)
            if isinstance(model, str)
            else self._models.unnamed(where)
        )

    def _refusal(self, line: bytes, number: int) -> InputError:
        said = problem(line)
        field, value = culprit_of(line, said)
        return InputError(
            f"{self._source}:{number}:{column_of(line, said)}: {said}",
            file=self._source,
            field=field,
            value=value,
        )

"""The schema of one trace line, and the sentence that says what is wrong with a line that does not
match it.
"""

import json
import re
from collections import Counter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from llmsim.workload.limits import (
    MAX_ADAPTER_LETTERS,
    MAX_DRAFTS,
    MAX_ENCODER_INPUTS,
    MAX_PRIORITY,
    MAX_TIME_NS,
    MAX_TOKEN_ID,
    MAX_TOKENS,
    MAX_VERIFICATIONS,
    MIN_PRIORITY,
    SLO_CLASS,
)

Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
TimeNs = Annotated[int, Meta(ge=0, le=MAX_TIME_NS)]
Priority = Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
SloClass = Annotated[str, Meta(pattern=SLO_CLASS)]
Adapter = Annotated[str, Meta(max_length=MAX_ADAPTER_LETTERS)]
Patience = Annotated[int, Meta(ge=1, le=MAX_TIME_NS)]
Rate = Annotated[float, Meta(ge=0, le=1)]
Rates = Annotated[list[Rate], Meta(min_length=1, max_length=MAX_DRAFTS)]
Drafts = Annotated[int, Meta(ge=0, le=MAX_DRAFTS)]
Verifications = Annotated[list[Drafts], Meta(min_length=1, max_length=MAX_VERIFICATIONS)]
TokenIds = list[Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]]


class EncoderInput(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A part of a prompt that an encoder computes; equal names are equal content."""

    offset: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    tokens: Tokens
    id: Adapter = ""


EncoderInputs = Annotated[list[EncoderInput], Meta(max_length=MAX_ENCODER_INPUTS)]


class Call(msgspec.Struct, gc=False):
    """One call of a session; `new_toks` gives the prompt as what the session has not said yet."""

    input_toks: Tokens | UnsetType = UNSET
    new_toks: Tokens | UnsetType = UNSET
    extends: bool | UnsetType = UNSET
    hidden: bool | UnsetType = UNSET
    phase: Literal["thinking", "answer"] | UnsetType = UNSET
    output_toks: Tokens | UnsetType = UNSET
    tool_duration_ns: TimeNs = 0
    input_tok_ids: TokenIds | UnsetType = UNSET
    output_tok_ids: TokenIds | UnsetType = UNSET
    model: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    slo_class: SloClass | UnsetType = UNSET
    adapter: Adapter | UnsetType = UNSET
    encoder_inputs: EncoderInputs | UnsetType = UNSET
    cancel_after_ns: Patience | UnsetType = UNSET
    cancel_after_toks: Tokens | UnsetType = UNSET
    acceptance_rate: Rate | Rates | UnsetType = UNSET
    accepted_drafts: Verifications | UnsetType = UNSET
    num_speculative_tokens: Drafts | UnsetType = UNSET


class Line(msgspec.Struct, gc=False):
    """A request, or a session where `sub_requests` is there; what must be there is checked after
    decoding.
    """

    input_toks: Tokens | UnsetType = UNSET
    output_toks: Tokens | UnsetType = UNSET
    arrival_time_ns: TimeNs | UnsetType = UNSET
    input_tok_ids: TokenIds | UnsetType = UNSET
    output_tok_ids: TokenIds | UnsetType = UNSET
    model: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    sub_requests: list[Call] | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    slo_class: SloClass | UnsetType = UNSET
    adapter: Adapter | UnsetType = UNSET
    encoder_inputs: EncoderInputs | UnsetType = UNSET
    cancel_after_ns: Patience | UnsetType = UNSET
    cancel_after_toks: Tokens | UnsetType = UNSET
    acceptance_rate: Rate | Rates | UnsetType = UNSET
    accepted_drafts: Verifications | UnsetType = UNSET
    num_speculative_tokens: Drafts | UnsetType = UNSET


class _StrictCall(Call, gc=False, forbid_unknown_fields=True):
    pass


class _StrictLine(Line, gc=False, forbid_unknown_fields=True):
    sub_requests: list[_StrictCall] | UnsetType = UNSET  # type: ignore[assignment]


decode_strict = msgspec.json.Decoder(_StrictLine).decode
"""Refuses unknown keys, which is how they are noticed without looking for them."""
decode_lenient = msgspec.json.Decoder(Line).decode

_TOKENS = ("input_toks", "output_toks")
_IDS = {"input_tok_ids": "input_toks", "output_tok_ids": "output_toks"}
_TEXTS = ("model", "request_id", "session_id")
_PHASES = ("thinking", "answer")


def given_keys(record: Line | Call) -> int:
    """Keys of a decoded line, and of its calls, that were surely given: a line with more of them
    may repeat one.

    A tool time of 0 may be the default or given, so it does not count.
    """
    given = sum(getattr(record, name) is not UNSET for name in record.__struct_fields__)
    if isinstance(record, Call):
        return given - (record.tool_duration_ns == 0)
    calls = record.sub_requests
    return given if calls is UNSET else given + sum(given_keys(call) for call in calls)


def given_fields(call: Call) -> dict[str, Any]:
    """The keys of a decoded call that were given, with their values."""
    values = {name: getattr(call, name) for name in call.__struct_fields__}
    return {name: value for name, value in values.items() if value is not UNSET}


def repeated_keys(line: bytes) -> list[str]:
    """Keys that an object of a well-formed line gives more than once; sorted."""
    found: set[str] = set()

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in pairs)
        found.update(key for key, count in counts.items() if count > 1)
        return dict(pairs)

    json.loads(line, object_pairs_hook=keep)
    return sorted(found)


def unknown_keys(line: bytes) -> list[str]:
    """Keys of a well-formed line, and of its calls, that mean nothing to the reader; sorted."""
    fields = msgspec.json.decode(line)
    found = set(fields) - set(Line.__struct_fields__)
    for call in fields.get("sub_requests", ()):
        found |= set(call) - set(Call.__struct_fields__)
    return sorted(found)


def column_of(line: bytes, said: str) -> int:
    """Where in a line (from 1, in bytes) that is which `problem` speaks of; 1 where it is missing,
    or all of it.
    """
    byte = re.search(r"\(byte (\d+)\)", said)
    if byte:
        return int(byte[1]) + 1
    if "is truncated" in said or "not UTF-8" in said:
        position = re.search(r"at column (\d+)", said)
        return int(position[1]) if position else len(line.rstrip()) + 1
    field = re.match(r'"(?:sub_requests\[(\d+)\])?\.?(\w*)', said)
    if field is None:
        return 1
    try:
        start = _call_start(line, int(field[1])) if field[1] else 0
    except ValueError:  # a text that looks like the list of calls
        return 1
    return max(line.find(b'"%b"' % field[2].encode(), start) if field[2] else start, 0) + 1


def culprit_of(line: bytes, said: str) -> tuple[str | None, Any]:
    """The key of a line of which `problem` speaks, such as `sub_requests[0].new_toks`, and its
    value; None where it speaks of the whole line, or the key is missing.
    """
    named = re.match(r'"((?:sub_requests\[\d+\])?\.?\w*)', said)
    if named is None:
        return None, None
    value: Any = msgspec.json.decode(line)
    try:
        for key in re.findall(r"\w+", named[1]):
            value = value[int(key)] if isinstance(value, list) else value[key]
    except (KeyError, IndexError, TypeError):
        value = None
    return named[1], value


def _call_start(line: bytes, index: int) -> int:
    """Where call `index` of a well-formed session begins."""
    text, scan = line.decode("utf-8"), json.JSONDecoder().raw_decode
    at = text.index("[", text.index('"sub_requests"')) + 1
    for turn in range(index + 1):
        while text[at] in " \t,":
            at += 1
        at = scan(text, at)[1] if turn < index else at
    return len(text[:at].encode())


def problem(line: bytes) -> str:
    """What is wrong with a line that was refused, without file and line number."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        position = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
        return f"not UTF-8 text ({position}); a trace is JSON Lines in UTF-8"
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        return f"not valid JSON: {reason}; every line must be one complete JSON object"
    except RecursionError:
        return "not valid JSON for a trace: nested too deeply"
    if not isinstance(fields, dict):
        wanted = "a JSON object with input_toks, output_toks and arrival_time_ns"
        return f"holds {_shown(fields)}, but every line must be {wanted}"
    found = (
        _session_problem(fields)
        if "sub_requests" in fields
        else _request_problem(fields, "", timed=True)
    )
    return found or f"not a valid request: {_shown(fields)}"


def _session_problem(fields: dict[str, Any]) -> str:
    found = _integer_problem(fields, "arrival_time_ns", 0, MAX_TIME_NS, "") or _text_problem(
        fields, ""
    )
    found = found or _optional_problem(fields, "")
    if found:
        return found
    calls = fields["sub_requests"]
    if not isinstance(calls, list):
        return f'"sub_requests" is {_shown(calls)}, but must be a list of calls'
    if not calls:
        return '"sub_requests" is empty, but a session needs at least one call'
    said = 0
    for index, call in enumerate(calls):
        path = f"sub_requests[{index}]"
        if not isinstance(call, dict):
            return (
                f'"{path}" is {_shown(call)}, but must be an object with input_toks and output_toks'
            )
        found = call_problem(call, f"{path}.", said)
        if found:
            return found
        prompt = said + call["new_toks"] if "new_toks" in call else call["input_toks"]
        said = prompt + call["output_toks"]
    total_ns = fields["arrival_time_ns"] + sum(call.get("tool_duration_ns", 0) for call in calls)
    if total_ns > MAX_TIME_NS:
        most = f"the {MAX_TIME_NS} ns (53 days) that a run can last"
        return f"the session's arrival and tool times add up to {total_ns} ns, beyond {most}"
    return ""


def call_problem(fields: dict[str, Any], path: str, said: int) -> str:
    """What is wrong with a call of a session, in which `said` tokens have been said before."""
    for name in ("extends", "hidden"):
        if name in fields and not isinstance(fields[name], bool):
            return f'"{path}{name}" is {_shown(fields[name])}, but must be true or false'
    phase = fields.get("phase", "answer")
    if phase not in _PHASES:
        return f'"{path}phase" is {_shown(phase)}, but must be "thinking" or "answer"'
    if "phase" in fields and fields.get("hidden", phase == "thinking") != (phase == "thinking"):
        return f'"{path}hidden" contradicts "phase", which is {_shown(phase)}; keep one of them'
    tokens = _TOKENS
    if "new_toks" in fields:
        tokens = ("new_toks", "output_toks")
        for other in ("input_toks", "input_tok_ids"):
            if other in fields:
                return f'"{path}{other}" and "new_toks" both give the prompt; keep one of them'
    found = _request_problem(fields, path, timed=False, tokens=tokens)
    return found or _extension_problem(fields, path, said)


def _extension_problem(fields: dict[str, Any], path: str, said: int) -> str:
    """What is wrong with a prompt that continues its session."""
    if "new_toks" in fields:
        if fields.get("extends", True) is not True:
            return f'"{path}extends" is false, but new_toks continues the session; remove one'
        if said + fields["new_toks"] > MAX_TOKENS:
            return (
                f'"{path}new_toks" makes a prompt of {said + fields["new_toks"]} tokens, but at '
                f"most {MAX_TOKENS} are possible"
            )
    elif fields.get("extends", False):
        if "input_tok_ids" in fields:
            return f'"{path}extends" is true, but input_tok_ids name the prompt; remove one of them'
        if fields["input_toks"] <= said:
            return (
                f'"{path}input_toks" is {fields["input_toks"]}, but a prompt that extends its '
                f"session has more than the {said} tokens before it"
            )
    return ""


def _request_problem(
    fields: dict[str, Any], path: str, *, timed: bool, tokens: tuple[str, ...] = _TOKENS
) -> str:
    found = ""
    for name in tokens:
        found = found or _integer_problem(fields, name, 1, MAX_TOKENS, path)
    if timed:
        found = found or _integer_problem(fields, "arrival_time_ns", 0, MAX_TIME_NS, path)
    elif "tool_duration_ns" in fields:
        found = found or _integer_problem(fields, "tool_duration_ns", 0, MAX_TIME_NS, path)
    for name, length in _IDS.items():
        found = found or _ids_problem(fields, name, length, path)
    found = found or encoder_problem(fields, path)
    return found or _optional_problem(fields, path) or _text_problem(fields, path)


def encoder_problem(fields: dict[str, Any], path: str) -> str:
    """What is wrong with the encoder inputs of a request whose `input_toks` are known."""
    inputs, end = fields.get("encoder_inputs", []), 0
    if not isinstance(inputs, list) or len(inputs) > MAX_ENCODER_INPUTS:
        wanted = f"must be a list of at most {MAX_ENCODER_INPUTS} objects with offset and tokens"
        return f'"{path}encoder_inputs" is {_shown(inputs)}, but {wanted}'
    for index, one in enumerate(inputs):
        where = f"{path}encoder_inputs[{index}]"
        if not isinstance(one, dict) or set(one) - {"offset", "tokens", "id"}:
            return f'"{where}" is {_shown(one)}, but must be an object with offset, tokens and id'
        found = _integer_problem(one, "offset", end, MAX_TOKENS, f"{where}.")
        found = found or _integer_problem(one, "tokens", 1, MAX_TOKENS, f"{where}.")
        name = one.get("id", "")
        if not found and not (isinstance(name, str) and len(name) <= MAX_ADAPTER_LETTERS):
            wanted = f"must be a name of at most {MAX_ADAPTER_LETTERS} letters"
            found = f'"{where}.id" is {_shown(name)}, but {wanted}'
        if found:
            return found
        end = one["offset"] + one["tokens"]
        if end > fields.get("input_toks", end):
            return (
                f'"{where}.tokens" end with token {end}, but the prompt has '
                f"{fields['input_toks']} tokens"
            )
    return ""


def _optional_problem(fields: dict[str, Any], path: str) -> str:
    found = ""
    for name, low, high in (
        ("priority", MIN_PRIORITY, MAX_PRIORITY),
        ("cancel_after_ns", 1, MAX_TIME_NS),
        ("cancel_after_toks", 1, MAX_TOKENS),
        ("num_speculative_tokens", 0, MAX_DRAFTS),
    ):
        found = found or (_integer_problem(fields, name, low, high, path) if name in fields else "")
    found = found or _class_problem(fields, path) or _adapter_problem(fields, path)
    return found or _draft_problem(fields, path)


def _class_problem(fields: dict[str, Any], path: str) -> str:
    if "slo_class" not in fields:
        return ""
    value = fields["slo_class"]
    if isinstance(value, str) and re.search(SLO_CLASS, value):
        return ""
    wanted = "must be a name of at most 64 letters, digits, dots, dashes and underscores"
    return f'"{path}slo_class" is {_shown(value)}, but {wanted}'


def _adapter_problem(fields: dict[str, Any], path: str) -> str:
    value = fields.get("adapter", "")
    if isinstance(value, str) and len(value) <= MAX_ADAPTER_LETTERS:
        return ""
    wanted = f"must be the name of a LoRA adapter in at most {MAX_ADAPTER_LETTERS} letters"
    return f'"{path}adapter" is {_shown(value)}, but {wanted}'


def _draft_problem(fields: dict[str, Any], path: str) -> str:
    if "acceptance_rate" in fields:
        value = fields["acceptance_rate"]
        rates = value if isinstance(value, list) else [value]
        wanted = f"must be a number from 0 to 1, or a list of 1 to {MAX_DRAFTS} of them"
        if not 1 <= len(rates) <= MAX_DRAFTS or not all(map(_is_rate, rates)):
            return f'"{path}acceptance_rate" is {_shown(value)}, but {wanted}'
    if "accepted_drafts" in fields:
        counts = fields["accepted_drafts"]
        wanted = f"must be a list of integers from 0 to {MAX_DRAFTS}, one for each verification"
        if not isinstance(counts, list) or not 1 <= len(counts) <= MAX_VERIFICATIONS:
            return f'"{path}accepted_drafts" is {_shown(counts)}, but {wanted}'
        for index, count in enumerate(counts):
            if type(count) is not int or not 0 <= count <= MAX_DRAFTS:
                return f'"{path}accepted_drafts[{index}]" is {_shown(count)}, but {wanted}'
    return ""


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _integer_problem(fields: dict[str, Any], name: str, low: int, high: int, path: str) -> str:
    wanted = f"must be an integer from {low} to {high}"
    if name not in fields:
        unknown = ", ".join(
            f'"{key}"' for key in sorted(fields) if key not in Line.__struct_fields__
        )
        present = f" (there is an unknown {_cut(unknown)})" if unknown else ""
        return f'"{path}{name}" is missing{present}; it {wanted}'
    value = fields[name]
    if type(value) is not int or not low <= value <= high:
        return f'"{path}{name}" is {_shown(value)}, but {wanted}'
    return ""


def _ids_problem(fields: dict[str, Any], name: str, length: str, path: str) -> str:
    if name not in fields:
        return ""
    ids = fields[name]
    if not isinstance(ids, list):
        return f'"{path}{name}" is {_shown(ids)}, but must be a list of token ids, or be left out'
    for index, value in enumerate(ids):
        if type(value) is not int or not 0 <= value <= MAX_TOKEN_ID:
            return (
                f'"{path}{name}[{index}]" is {_shown(value)}, but must be an integer from 0 to '
                f"{MAX_TOKEN_ID}"
            )
    if len(ids) != fields[length]:
        return (
            f'"{path}{name}" has {len(ids)} ids, but "{length}" is {fields[length]}: the two '
            "must agree"
        )
    return ""


def _text_problem(fields: dict[str, Any], path: str) -> str:
    for name in _TEXTS:
        if name in fields and not isinstance(fields[name], str):
            return f'"{path}{name}" is {_shown(fields[name])}, but must be a string, or be left out'
    return ""


def _shown(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."

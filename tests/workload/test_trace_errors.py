"""A bad trace is refused with one sentence that names file, line and field."""

import gzip
import json
import os
import re

import pytest
from reference_hasher import ReferenceHasher

from llmsim.config.errors import InputError
from llmsim.core import MAX_HORIZON_PS
from llmsim.workload import columns, load_trace

HUGE = 10**30
WRONG_TYPES = [True, "5", None, 1.5, [], {}, HUGE, -HUGE]
TOKENS_OUT_OF_RANGE = [0, -1, 1_000_000_001, 2**31, 2**63]
TIME_OUT_OF_RANGE = [-1, MAX_HORIZON_PS // 1000 + 1, 2**63]
CALL = {
    "input_toks": 2,
    "output_toks": 2,
    "tool_duration_ns": 1,
    "input_tok_ids": [1, 2],
    "output_tok_ids": [3, 4],
}
REQUEST = {
    "input_toks": 2,
    "output_toks": 2,
    "arrival_time_ns": 1,
    "input_tok_ids": [1, 2],
    "output_tok_ids": [3, 4],
    "model": "m",
    "request_id": "r",
}
ROUND = {"new_toks": 2, "output_toks": 2, "extends": True, "hidden": True, "phase": "thinking"}
SESSION = {"session_id": "s", "arrival_time_ns": 1, "model": "m", "sub_requests": [CALL, CALL]}
MISSING = object()

BAD_VALUES = {
    "input_toks": [*WRONG_TYPES, *TOKENS_OUT_OF_RANGE],
    "output_toks": [*WRONG_TYPES, *TOKENS_OUT_OF_RANGE],
    "arrival_time_ns": [*WRONG_TYPES, *TIME_OUT_OF_RANGE],
    "tool_duration_ns": [*WRONG_TYPES, *TIME_OUT_OF_RANGE],
    "input_tok_ids": [
        True,
        "5",
        None,
        1,
        {},
        [1],
        [1, 2, 3],
        [],
        [1, -1],
        [1, 2**31],
        [1, True],
        [1, None],
        [1, "2"],
        [1, 2.0],
    ],
    "output_tok_ids": [
        True,
        "5",
        None,
        1,
        {},
        [1],
        [1, 2, 3],
        [],
        [1, -1],
        [1, 2**31],
        [1, True],
        [1, None],
        [1, "2"],
        [1, 2.0],
    ],
    "model": [True, 5, None, 1.5, [], {}],
    "request_id": [True, 5, None, 1.5, [], {}],
    "session_id": [True, 5, None, 1.5, [], {}],
    "sub_requests": [True, 5, None, "x", {}, [], [1], [None], [[]], [{}]],
    "new_toks": [*WRONG_TYPES, *TOKENS_OUT_OF_RANGE],
    "extends": ["true", 0, 1, None, 1.5, [], {}],
    "hidden": ["true", 0, 1, None, 1.5, [], {}],
    "phase": [True, 5, None, 1.5, [], {}, "", "hidden", "Thinking"],
}
REQUIRED = ("input_toks", "output_toks", "arrival_time_ns")


def cases():
    shapes = (("request", REQUEST), ("session", SESSION), ("call", CALL), ("round", ROUND))
    for shape, base in shapes:
        for field in base:
            values = [*BAD_VALUES[field], *([MISSING] if field in (*REQUIRED, "new_toks") else [])]
            for value in values:
                yield pytest.param(
                    shape,
                    field,
                    value,
                    id=f"{shape}-{field}-{'missing' if value is MISSING else value!r}",
                )


def changed(base, field, value):
    fields = {key: old for key, old in base.items() if key != field}
    return fields if value is MISSING else {**fields, field: value}


def refusal(tmp_path, data):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        load_trace(path, known_models=["m"], granularity=16)
    message = str(caught.value)
    assert message.startswith(f"{path}:")
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message.removeprefix(str(path))


@pytest.fixture(autouse=True)
def reference_hasher(monkeypatch):
    monkeypatch.setattr(columns, "content_hasher", ReferenceHasher)


def column_in(message):
    """The column of an error in line 3."""
    return int(re.match(r":3:(\d+): ", message)[1])


def encoded(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.mark.parametrize("extra", [{}, {"unknown": 1}])
@pytest.mark.parametrize(("shape", "field", "value"), list(cases()))
def test_every_field(tmp_path, shape, field, value, extra):
    if shape in ("call", "round"):
        call = CALL if shape == "call" else ROUND
        bad = {**SESSION, "sub_requests": [call, changed(call, field, value)], **extra}
        missing_new = field == "new_toks" and value is MISSING  # then input_toks is needed
        where = f"sub_requests[1].{'input_toks' if missing_new else field}"
    else:
        bad = {**changed(REQUEST if shape == "request" else SESSION, field, value), **extra}
        where = field
    # The lines before it are good, and of both kinds: the reader may have switched to its lenient
    # decoder.
    message = refusal(tmp_path, encoded({**REQUEST, **extra}, SESSION, bad))
    column = column_in(message)
    text = json.dumps(bad)[column - 1 :]
    if value is MISSING:
        assert (
            text.startswith("{")
            and (shape in ("request", "session") or column > json.dumps(bad).index("["))
        ) or column == 1
    elif field == "sub_requests":
        assert text.startswith(('"sub_requests"', "1", "null", "[", "{"))
    else:
        assert text.startswith(f'"{field}"')
        assert json.dumps(bad)[: column - 1].count(f'"{field}"') == (
            shape in ("call", "round")
        )  # the first call has it, too
    assert where in message or field == "sub_requests"
    if value is MISSING:
        assert f'"{where}" is missing' in message


def test_good_lines_are_good(tmp_path):
    path = tmp_path / "good.jsonl"
    path.write_bytes(encoded(REQUEST, SESSION))
    assert len(load_trace(path, known_models=["m"], granularity=16)) == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"input_toks": 1', "not valid JSON"),
        (b'{"input_toks": 1,}', "not valid JSON"),
        (b"{'input_toks': 1}", "not valid JSON"),
        (b'{"input_toks": NaN}', "not valid JSON"),
        (b'{"input_toks": 1e999, "output_toks": 1, "arrival_time_ns": 0}', "not valid JSON"),
        (b"[1, 2]", "must be a JSON object"),
        (b"3", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"{}", '"input_toks" is missing'),
        (b'{"x": "\xff"}', "not UTF-8"),
        (
            b'{"model": "\xc3\x28", "input_toks": 1, "output_toks": 1, "arrival_time_ns": 0}',
            "not UTF-8",
        ),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b"\x00\x01\x02", "not valid JSON"),
        (b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (
            b'{"input_tokens": 1, "output_toks": 1, "arrival_time_ns": 0}',
            'there is an unknown "input_tokens"',
        ),
    ],
)
def test_malformed_line_is_named(tmp_path, line, said):
    message = refusal(tmp_path, encoded(REQUEST) + b"\n" + line + b"\n" + encoded(REQUEST))
    column_in(message)
    assert said in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"new_toks": 5}, '"sub_requests[1].input_toks" and "new_toks" both give the prompt'),
        ({"input_toks": MISSING, "new_toks": 5, "input_tok_ids": [1]}, 'input_tok_ids" and "new_'),
        ({"input_toks": MISSING, "new_toks": 5, "extends": False}, "is false, but new_toks"),
        ({"input_toks": MISSING, "new_toks": 10**9}, "makes a prompt of 1000000014 tokens"),
        ({"input_toks": 14, "extends": True}, "is 14, but a prompt that extends its session has"),
        ({"input_toks": 15, "extends": True, "input_tok_ids": [1] * 15}, "input_tok_ids name"),
        ({"phase": "answer", "hidden": True}, 'hidden" contradicts "phase", which is "answer"'),
    ],
)
def test_a_round_that_contradicts_itself(tmp_path, more, said):
    first = {"input_toks": 10, "output_toks": 4}
    second = {"input_toks": 20, "output_toks": 4} | more
    second = {key: value for key, value in second.items() if value is not MISSING}
    bad = {**SESSION, "sub_requests": [first, second]}
    message = refusal(tmp_path, encoded(REQUEST, SESSION, bad))
    assert column_in(message) > 1
    assert said in message


def test_session_may_not_outlast_the_clock(tmp_path):
    call = {**CALL, "tool_duration_ns": MAX_HORIZON_PS // 1000}
    assert "add up to" in refusal(tmp_path, encoded({**SESSION, "sub_requests": [call, call]}))


@pytest.mark.parametrize("data", [b"", b"\n\n  \n", b"\xef\xbb\xbf"])
def test_empty_trace(tmp_path, data):
    assert "the trace is empty" in refusal(tmp_path, data)


@pytest.mark.parametrize("cut", [slice(0, -9), slice(0, 12)])
def test_damaged_gzip(tmp_path, cut):
    assert "damaged" in refusal(tmp_path, gzip.compress(encoded(REQUEST) * 50)[cut])


def test_corrupt_gzip_body(tmp_path):
    packed = bytearray(gzip.compress(os.urandom(2000)))
    packed[200] ^= 0xFF
    refusal(tmp_path, bytes(packed))


def test_missing_file_folder_and_odd_path(tmp_path):
    (tmp_path / "trace.jsonl").write_bytes(encoded(REQUEST))
    for path, said in (
        ("trace.json", 'no such trace file (did you mean "trace.jsonl"?)'),
        ("no/where", "no such"),
        (".", "a folder"),
        ("a\0b", "path"),
    ):
        with pytest.raises(InputError) as caught:
            load_trace(tmp_path / path, known_models=[], granularity=16)
        assert said in str(caught.value)

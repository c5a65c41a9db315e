"""What a good trace becomes: columns, sessions, models, order, notes."""

import gzip
import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_hasher import ReferenceHasher
from shared_data import shared

from llmsim.config.errors import InputError
from llmsim.workload import columns, load_dataset, load_trace

LLAMA, QWEN = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B"


@pytest.fixture(autouse=True)
def reference_hasher(monkeypatch):
    monkeypatch.setattr(columns, "content_hasher", ReferenceHasher)


@pytest.fixture
def read(tmp_path):
    def load(*lines, models=(LLAMA,), granularity=4, limit=0):
        path = tmp_path / "trace.jsonl"
        path.write_text(
            "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        )
        return load_trace(path, known_models=models, granularity=granularity, limit=limit)

    return load


def request(at=0, tokens_in=5, tokens_out=3, **more):
    return {"input_toks": tokens_in, "output_toks": tokens_out, "arrival_time_ns": at, **more}


def test_flat_lines_become_columns(read):
    workload = read(request(7, 5, 3), request(9, 2, 1))
    assert workload.arrival_ps.tolist() == [7_000, 9_000]
    assert workload.input_tokens.tolist() == [5, 2]
    assert workload.output_tokens.tolist() == [3, 1]
    assert workload.model.tolist() == [-1, -1]
    assert workload.next_call.tolist() == [-1, -1]
    assert workload.key_offsets.tolist() == [0, 0, 0]
    assert (workload.session_id, workload.request_id, workload.notes) == (None, None, ())
    types = {
        name: getattr(workload, name).dtype.name
        for name in ("arrival_ps", "input_tokens", "model", "next_call", "keys")
    }
    assert list(types.values()) == ["int64", "int32", "int16", "int32", "uint64"]


def test_sessions_mix_with_requests(read):
    calls = [
        {"input_toks": 4, "output_toks": 2, "tool_duration_ns": 5},
        {"input_toks": 9, "output_toks": 1, "tool_duration_ns": 8},
    ]
    workload = read(
        request(1),
        {"session_id": "a", "arrival_time_ns": 2, "sub_requests": calls},
        {"arrival_time_ns": 2, "sub_requests": calls[:1]},
    )
    assert workload.arrival_ps.tolist() == [1_000, 2_000, -1, 2_000]
    assert workload.next_call.tolist() == [-1, 2, -1, -1]
    assert workload.tool_delay_ps.tolist() == [
        0,
        5_000,
        0,
        0,
    ]  # nothing waits for the last call's tool
    assert workload.session_id == ["", "a", "a", "session-1"]


def test_token_ids_are_hashed_with_the_answer(read):
    ids = list(range(5))
    workload = read(
        request(0),
        request(1, input_tok_ids=ids, output_tok_ids=[7, 8, 9]),
        request(2, input_tok_ids=ids),
        request(3, output_tok_ids=[7, 8, 9]),
    )
    assert workload.key_offsets.tolist() == [0, 0, 2, 3, 3]
    assert workload.keys.tolist() == [1, 2, 1]
    assert len(read(request(1, input_tok_ids=ids), granularity=0).keys) == 0


@settings(deadline=None, max_examples=50)
@given(times=st.lists(st.integers(0, 4), min_size=1, max_size=12), data=st.data())
def test_sorting_is_stable_and_moves_sessions_whole(tmp_path_factory, times, data):
    path = tmp_path_factory.mktemp("sort") / "t.jsonl"
    lines = []
    for index, at in enumerate(times):
        calls = data.draw(st.integers(0, 3))
        body = [
            {
                "input_toks": index + 1,
                "output_toks": call + 1,
                "input_tok_ids": [index] * (index + 1),
            }
            for call in range(calls)
        ]
        lines.append(
            {"arrival_time_ns": at, "sub_requests": body}
            if calls
            else request(at, index + 1, 1, input_tok_ids=[index] * (index + 1))
        )
    path.write_text("\n".join(map(json.dumps, lines)))
    workload = load_trace(path, known_models=[], granularity=1)
    expected = sorted(range(len(times)), key=times.__getitem__)
    heads = np.flatnonzero(workload.arrival_ps >= 0)
    assert (workload.input_tokens[heads] - 1).tolist() == expected
    for row, end in zip(heads, [*heads[1:], len(workload)], strict=True):
        assert workload.output_tokens[row:end].tolist() == list(range(1, end - row + 1))
        assert workload.next_call[row:end].tolist() == [*range(row + 1, end), -1]
    assert np.array_equal(np.diff(workload.key_offsets), workload.input_tokens)
    assert bool(workload.notes) == (expected != list(range(len(times))))
    if workload.notes:  # requests keep the number of their place in the file
        rows_of = np.cumsum([0, *(len(line.get("sub_requests", [0])) for line in lines)])
        assert [int(workload.request_id[row]) for row in heads] == rows_of[expected].tolist()


def test_the_line_that_goes_back_in_time_is_named(read):
    """Of 0, 9, 5 and 7 the second is where it belongs; the third line is earlier than it."""
    first, *rest = request(0), request(9), request(5), request(7)
    note = read(first, "", *rest).notes[0]
    assert ": line 4 arrives at 5 ns, before line 3 (9 ns); lines were sorted" in note
    calls = {"sub_requests": [{"input_toks": 1, "output_toks": 1}] * 3}
    sessions = [{"arrival_time_ns": at, **calls} for at in (3, 1, 0)]
    (note,) = read(*sessions).notes
    assert ": line 2 arrives at 1 ns, before line 1 (3 ns), the first of 2 such lines; " in note


def test_limit_counts_lines(read):
    calls = [{"input_toks": 1, "output_toks": 1}] * 3
    assert (
        len(read({"arrival_time_ns": 0, "sub_requests": calls}, request(1), "not json", limit=2))
        == 4
    )
    with pytest.raises(InputError, match="-1"):
        read(request(), limit=-1)


def test_blank_lines_gzip_and_byte_order_mark(read, tmp_path):
    assert len(read("", request(1), "  ", request(2))) == 2
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(request()).encode()))
    assert len(load_trace(packed, known_models=[], granularity=16)) == 1


def test_unknown_keys_are_noted_once(read):
    lines = [request(1), request(2, inputs_tok_ids=[1], user="x"), request(3, more=1)]
    (note,) = read(*lines).notes
    assert "trace.jsonl:2: unknown keys are ignored, here and below: " in note
    assert note.endswith('"inputs_tok_ids" (did you mean "input_tok_ids"?), "user"')
    session = {
        "arrival_time_ns": 0,
        "sub_requests": [{"input_toks": 1, "output_toks": 1, "think": 3}],
    }
    assert '"think"' in read(session).notes[0]


def test_models_match_by_name_or_tail(read):
    workload = read(
        *(request(model=name) for name in (QWEN, "llama-3.1-8b", "META-LLAMA/llama-3.1-8B")),
        models=(LLAMA, QWEN, LLAMA),
    )
    assert workload.models == (LLAMA, QWEN)
    assert workload.model.tolist() == [1, 0, 0]
    assert read(request(model="any"), request(model="other"), models=()).models == ("any", "other")
    calls = [
        {"input_toks": 1, "output_toks": 1},
        {"input_toks": 1, "output_toks": 1, "model": QWEN},
    ]
    assert read(
        {"arrival_time_ns": 0, "model": LLAMA, "sub_requests": calls}, models=(LLAMA, QWEN)
    ).model.tolist() == [
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("line", "models", "said"),
    [
        (request(), (LLAMA, QWEN), '"model" is missing, and the cluster serves several'),
        (request(model="meta-llama/Llama-3.1-8b-it"), (LLAMA,), f'did you mean "{LLAMA}"'),
        (request(model="lama-3.1-8b"), (LLAMA,), f'did you mean "{LLAMA}"'),
        (request(model="same"), ("a/same", "b/same"), "could be any of"),
        (request(model="other/Llama-3.1-8B"), (LLAMA,), "; name it so, or leave the model out"),
        (request(model=""), (LLAMA,), "is not served"),
    ],
)
def test_model_errors_name_line_and_choice(read, line, models, said):
    with pytest.raises(InputError, match=r"trace\.jsonl:1:\d+: ") as caught:
        read(line, models=models)
    assert said in str(caught.value)


def test_specification_instead_of_a_path():
    workload = load_dataset(
        "synthetic:n=9,rate=1,input=5,output=2", known_models=[LLAMA], granularity=16, limit=4
    )
    assert len(workload) == 4


def test_request_ids_are_kept(read):
    assert read(request(), request(request_id="mine")).request_id == ["0", "mine"]


@pytest.mark.parametrize(
    "name",
    [
        "groundtruth/workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl",
        "artifact/dataset/sharegpt_pulse_req50_n6_delay15_pc.jsonl",
    ],
)
def test_published_traces_load(name):
    workload = load_trace(shared(name), known_models=[LLAMA], granularity=16)
    assert len(workload) == 300
    assert workload.notes == ()
    blocks = (workload.input_tokens + workload.output_tokens) // 16
    assert np.array_equal(np.diff(workload.key_offsets), blocks)


def test_a_hundred_thousand_lines_load_quickly(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(
        "".join(
            f'{{"input_toks": {1 + i % 900}, "output_toks": 9, "arrival_time_ns": {i * 1000}}}\n'
            for i in range(100_000)
        )
    )
    start = time.process_time()
    assert len(load_trace(path, known_models=[LLAMA], granularity=16)) == 100_000
    assert (
        time.process_time() - start < 0.5 * 3
    )  # measured 0.1 s; three times the budget, for slow machines


def test_when_clients_give_up(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [
        '{"input_toks": 1, "output_toks": 1, "arrival_time_ns": 9, "cancel_after_toks": 4}',
        '{"arrival_time_ns": 2, "cancel_after_ns": 7, "sub_requests": [{"input_toks": 2, '
        '"output_toks": 2}, {"input_toks": 3, "output_toks": 3, "cancel_after_ns": 8}]}',
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    workload = load_trace(path, known_models=(), granularity=16)
    assert workload.timeout_ps is not None and workload.cancel_after_tokens is not None
    assert workload.timeout_ps.tolist() == [7000, 8000, -1]
    assert workload.cancel_after_tokens.tolist() == [0, 0, 4]
    path.write_text(lines[0].replace("4}", "0}"), encoding="utf-8")
    with pytest.raises(InputError, match='"cancel_after_toks" is 0, but must be an integer from 1'):
        load_trace(path, known_models=(), granularity=16)


def test_names_that_lines_share_are_noted(read):
    call = {"input_toks": 1, "output_toks": 1}
    session = {"session_id": "s", "arrival_time_ns": 0, "sub_requests": [call, call]}
    assert read(session, request(request_id="a"), request(request_id="b")).notes == ()
    notes = read(
        session, session, request(request_id="a"), request(request_id="a"), request(request_id="a")
    ).notes
    for said in (
        '2 lines repeat a request_id of another, the first of them "a" (lines 3 and 4)',
        '1 line repeats a session_id of another, the first of them "s" (lines 1 and 2)',
    ):
        assert any(said in note for note in notes)


def test_a_key_given_twice_is_noted_and_the_last_value_holds(read):
    line = '{"input_toks":5,"output_toks":2,"arrival_time_ns":0,"input_toks":7}'
    workload = read(request(), line, line)
    assert workload.input_tokens.tolist() == [5, 7, 7]
    assert [note for note in workload.notes if ':2: "input_toks" is given twice' in note]
    inside = (
        '{"arrival_time_ns":0,"sub_requests":[{"input_toks":5,"output_toks":2,"output_toks":3}]}'
    )
    assert any('"output_toks" is given twice' in note for note in read(inside).notes)
    assert read(request(request_id='a":b":c'), request(priority=0)).notes == ()


def test_what_a_client_wants_survives_being_written(read, tmp_path):
    from llmsim.export.jsonl import write_jsonl

    first = read(
        request(0, priority=3), request(5, cancel_after_ns=2000), request(6, cancel_after_toks=2)
    )
    write_jsonl(first, tmp_path / "again.jsonl", token_ids=False)
    again = load_trace(tmp_path / "again.jsonl", known_models=(LLAMA,), granularity=4)
    assert again.priority.tolist() == [3, 0, 0] == first.priority.tolist()
    assert (
        again.timeout_ps.tolist() == first.timeout_ps.tolist() and again.timeout_ps[1] == 2_000_000
    )
    assert again.cancel_after_tokens.tolist() == first.cancel_after_tokens.tolist() == [0, 0, 2]


def test_a_generator_that_never_ends_is_refused_before_it_draws():
    started = time.perf_counter()
    with pytest.raises(
        InputError, match=r"100000000 requests at 0\.0001 per second take 1\.157e\+07 days"
    ):
        load_dataset(
            "synthetic:n=100000000,rate=0.0001,input=5,output=5", known_models=(), granularity=16
        )
    assert time.perf_counter() - started < 1


def test_the_file_behind_a_dataset_is_known():
    from llmsim.workload.dataset import file_of

    assert file_of("a.jsonl") == ["a.jsonl"] == file_of("trace:a.jsonl,speedup=2")
    assert file_of("synthetic:n=5,rate=1,input=5,output=5") == []

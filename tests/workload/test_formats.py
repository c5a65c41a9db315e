"""Every format: a sample written to its published schema becomes the requests it means, however it
is packed.
"""

import gzip
import json
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_tools import blocks, sharing

from llmsim.config.errors import InputError
from llmsim.workload import load_dataset
from llmsim.workload.formats import FORMATS, read_trace
from llmsim.workload.options import TraceOptions

SAMPLES = Path(__file__).parent / "samples"
MS = 10**9

# file -> format, arrival (ms, None: follows the row before), input, output, tool time (ms) before
# the next call
EXPECTED = {
    "llmservingsim.jsonl": (
        "llmservingsim",
        [7e-6, 9e-6, None],
        [5, 4, 9],
        [3, 2, 1],
        [0, 5e-6, 0],
    ),
    "mooncake.jsonl": (
        "mooncake",
        [0, 500, 3000, 3000],
        [1300, 1536, 600, 100],
        [20, 7, 300, 1],
        [0] * 4,
    ),
    "mooncake_sessions.jsonl": (
        "mooncake",
        [0, None, None, 99.5, None],
        [512, 1030, 1100, 64, 80],
        [10, 11, 12, 4, 5],
        [2500, 0, 0, 1, 0],
    ),
    # tokens of text: bytes over 4; the second of "talk" has 19 bytes, 30 tokens of answer and 8
    # bytes before and in it
    "mooncake_text.jsonl": (
        "mooncake",
        [0, 50, None, 1000, 1100],
        [6, 5, 37, 2, 6],
        [4, 30, 5, 50, 3],
        [0, 2000, 0, 0, 0],
    ),
    "mooncake_messages.jsonl": ("mooncake", [0, None], [3, 7], [158, 103], [4503.5, 0]),
    "bailian.jsonl": ("bailian", [0, 386, 1386, 8886], [40, 16, 64, 65], [13, 3, 8, 8], [0] * 4),
    "azure_2023.csv": ("azure", [0, 4314.579, 15319.4101], [374, 396, 879], [44, 109, 55], [0] * 3),
    "azure_2024.csv": ("azure", [0, 7.405, 990.07], [2162, 2399, 76], [5, 6, 15], [0] * 3),
    "burstgpt.csv": ("burstgpt", [0, 40_000, 113_500], [472, 1087, 1360], [18, 230, 394], [0] * 3),
    "burstgpt_sessions.csv": ("burstgpt", [0, 3000, 9000], [10, 30, 40], [20, 5, 6], [0] * 3),
    "vidur.csv": ("vidur", [0, 250], [100, 64], [20, 10], [0, 0]),
    "vidur_lengths.csv": ("vidur", [0, 0], [100, 64], [20, 10], [0, 0]),
    "splitwise.csv": ("csv", [0, 250, 2875], [374, 396, 879], [44, 109, 55], [0] * 3),
    "servegen.csv": ("csv", [0, 750], [10, 15], [20, 25], [0, 0]),
    "servegen_batch.jsonl": ("mooncake", [0, 0], [61, 54], [2370, 2031], [0, 0]),
    "wildchat.jsonl": ("sharegpt", [0, None, 0], [3, 10, 1], [5, 1, 2], [0] * 3),
    "openai_messages.jsonl": ("sharegpt", [0, 0], [4, 1], [2, 3], [0, 0]),
    "openai_log.jsonl": ("jsonl", [0, 1500, 3000], [120, 80, 9], [40, 64, 1], [0] * 3),
    "openai_log_flat.jsonl": ("jsonl", [0, 500], [120, 80], [40, 64], [0, 0]),
    "openai_batch.jsonl": ("openai", [0, 0, 0], [4, 4, 3], [1000, 20, 5], [0] * 3),
    "openai_batch_output.jsonl": ("jsonl", [0, 2000], [25, 30], [31, 7], [0, 0]),
    "vllm_custom.jsonl": ("openai", [0, 0], [8, 7], [10, 1520], [0, 0]),
    "frontier.csv": ("vidur", [0, 1500], [48, 64], [20, 10], [0, 0]),
    "vllm_bench.json": ("vllm-bench", [0, 1250], [100, 200], [20, 40], [0, 0]),
    "aiperf.jsonl": ("aiperf", [0, 40.000001, 2000], [550, 300, 640], [9, 8, 7], [0] * 3),
    "tracelab.jsonl": (
        "tracelab",
        [0, None, 1000, None, None],
        [64, 128, 100, 140, 40],
        [4, 5, 10, 10, 3],
        [3000, 0, 300, 350.5, 0],
    ),
    "weka.jsonl": (
        "weka",
        [0, None, None, 0, 3500, 5500, None],
        [192, 256, 320, 64, 128, 64, 128],
        [10, 12, 20, 6, 5, 4, 4],
        [2000, 8000, 0, 0, 0, 1500, 0],
    ),
    "sharegpt.json": ("sharegpt", [0, None, 0], [10, 17, 3], [5, 1, 1], [0] * 3),
}

# file -> which blocks of 16 tokens of each request are equal to which: equal letters, equal content
CONTENT = {
    "mooncake.jsonl": [
        "a" * 32 + "b" * 32 + "c" * 17,
        "a" * 32 + "b" * 32 + "d" * 32,
        "a" * 32 + "e" * 5,
        "f" * 6,
    ],
    "bailian.jsonl": ["ab", "a", "abcd", "abcd"],
    "frontier.csv": ["abc", "abcd"],
    "tracelab.jsonl": ["abcd", "abcdefgh", "ijklmn", "ijklmnopq", "rs"],
    "weka.jsonl": [
        "aaaabbbbcccc",
        "aaaabbbbccccdddd",
        "aaaabbbbccccddddeeee",
        "ffff",
        "aaaagggg",
        "aaaa",
        "aaaahhhh",
    ],
    "sharegpt.json": ["", "a", ""],
    "azure_2023.csv": ["", "", ""],
}


def test_every_format_has_a_sample():
    assert {name for name, *_ in EXPECTED.values()} | {"baseten"} == set(FORMATS)
    assert {path.name for path in SAMPLES.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_sample_becomes_its_requests(name):
    kind, arrivals, inputs, outputs, tools = EXPECTED[name]
    trace = read_trace(SAMPLES / name, known_models=["m"], granularity=16)
    workload = trace.at(16)
    assert trace.format == kind
    assert workload.granularity == 16 or len(workload.keys) == 0
    assert workload.arrival_ps.tolist() == [-1 if at is None else round(at * MS) for at in arrivals]
    assert workload.input_tokens.tolist() == inputs
    assert workload.output_tokens.tolist() == outputs
    assert workload.tool_delay_ps.tolist() == [round(ms * MS) for ms in tools]
    assert workload.next_call.tolist() == [
        row + 1 if row + 1 < len(arrivals) and arrivals[row + 1] is None else -1
        for row in range(len(arrivals))
    ]
    assert len(workload.key_offsets) == len(workload) + 1
    if name in CONTENT:
        assert sharing(blocks(workload)) == sharing(
            [one_letter_per_place(text) for text in CONTENT[name]]
        )


def one_letter_per_place(text):
    """Equal letters name one of the file's blocks; the engine's blocks inside it differ by their
    place.
    """
    return [(letter, index - text.index(letter)) for index, letter in enumerate(text)]


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_packed_files_read_alike(tmp_path, name, packing):
    data = (SAMPLES / name).read_bytes()
    path = tmp_path / "trace"
    packed = (
        gzip.compress(data) if packing == "gzip" else pa.compress(data, codec="zstd", asbytes=True)
    )
    path.write_bytes(packed)
    plain = load_dataset(str(SAMPLES / name), known_models=["m"], granularity=16)
    again = load_dataset(str(path), known_models=["m"], granularity=16)
    assert np.array_equal(plain.arrival_ps, again.arrival_ps)
    assert np.array_equal(plain.keys, again.keys)


def test_prompts_given_as_text_that_cannot_be_counted(tmp_path):
    path = tmp_path / "t.jsonl"
    for row, why in (
        (
            '"messages": [], "message_mode": "both", "output_length": 3',
            '"message_mode" is "both"; it may be',
        ),
        (
            '"payload": {"prompt": [1, "a"], "max_tokens": 3}',
            r'"input_length" is missing; .*text_input, messages',
        ),
        ('"text_input": "a"', '"output_length" is missing'),
    ):
        path.write_text(
            '{"timestamp": 0, "text_input": "a", "output_length": 1}\n{"timestamp": 1, '
            + row
            + "}\n"
        )
        with pytest.raises(InputError, match=f"t.jsonl:2:.*{why}"):
            load_dataset(str(path), known_models=[], granularity=0)


def test_damaged_zstd(tmp_path):
    path = tmp_path / "t.zst"
    path.write_bytes(
        pa.compress((SAMPLES / "azure_2023.csv").read_bytes(), codec="zstd", asbytes=True)[:-9]
        + b"\0" * 5
    )
    with pytest.raises(InputError, match=r"zstd|cut short"):
        load_dataset(str(path), known_models=[], granularity=16)


def test_content_tells_the_format_and_not_the_name(tmp_path):
    shutil.copy(SAMPLES / "azure_2023.csv", tmp_path / "mooncake.jsonl")
    assert read_trace(tmp_path / "mooncake.jsonl", known_models=[], granularity=0).format == "azure"


def test_one_line_says_what_is_not_used():
    notes = read_trace(SAMPLES / "burstgpt.csv", known_models=["m"], granularity=0).workload.notes
    assert [note for note in notes if "not used" in note] == [
        f'{SAMPLES / "burstgpt.csv"}:1: not used, here and below: "Log Type", "Total tokens"'
    ]
    assert any(
        "1 request without prompt or answer tokens is left out; the first is line 4" in note
        for note in notes
    )
    assert any(
        'models that this cluster does not serve go to the one it does: "ChatGPT", "GPT-4"' in n
        for n in notes
    )


def test_failures_may_be_kept():
    kept = load_dataset(
        f"trace:{SAMPLES / 'burstgpt.csv'},failures=keep", known_models=["m"], granularity=16
    )
    assert kept.output_tokens.tolist() == [18, 230, 1, 394]


def test_sessions_whose_first_call_failed_begin_with_the_next(tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [
        {"session_id": "s", "timestamp": 5, "input_length": 9, "output_length": 0, "hash_ids": [1]},
        {"session_id": "x", "timestamp": 7, "input_length": 9, "output_length": 1},
        {"session_id": "s", "delay": 3, "input_length": 8, "output_length": 2, "hash_ids": [1]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload = load_dataset(str(path), known_models=[], granularity=16)
    assert workload.arrival_ps.tolist() == [0, 2 * MS]
    assert workload.input_tokens.tolist() == [8, 9]


def test_priorities_and_names_are_kept():
    workload = load_dataset(
        str(SAMPLES / "mooncake_sessions.jsonl"), known_models=[], granularity=16
    )
    assert workload.priority is not None
    assert workload.priority.tolist() == [2, 0, 0, 0, 0]
    assert workload.session_id == ["a", "a", "a", "b", "b"]
    assert workload.request_id[0] == "a0"


def test_text_hash_ids_are_names_too(tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [["aa", "bb"], ["aa", "cc"], [3, "aa"], [2**70, -1]]
    path.write_text(
        "".join(
            json.dumps({"timestamp": 1, "input_length": 64, "output_length": 1, "hash_ids": r})
            + "\n"
            for r in rows
        )
    )
    found = load_dataset(f"trace:{path},block=32", known_models=[], granularity=32)
    assert sharing(blocks(found)) == sharing([["a", "b"], ["a", "c"], ["3", "3a"], ["x", "y"]])


def test_weka_times_relative_to_the_sub_agent(tmp_path):
    document = json.loads((SAMPLES / "weka.jsonl").read_text().splitlines()[0])
    for call in document["requests"][3]["requests"]:
        call["t"] -= 5.0
    path = tmp_path / "one.json"
    path.write_text(json.dumps(document, indent=2))  # one document over many lines
    relative = read_trace(path, known_models=[], granularity=64)
    assert any("from their own start" in note for note in relative.workload.notes)
    assert relative.workload.arrival_ps.tolist() == [0, -1, -1, 3500 * MS, 5500 * MS, -1]


def test_sharegpt_first_turns_and_rate():
    first = load_dataset(
        f"trace:{SAMPLES / 'sharegpt.json'},turns=first,rate=2,seed=4",
        known_models=[],
        granularity=16,
    )
    assert first.input_tokens.tolist() == [10, 3]
    assert (np.diff(first.arrival_ps) > 0).all()
    assert first.next_call.tolist() == [-1, -1]


def test_baseten_parquet_and_arrow(tmp_path):
    table = pa.table(
        {
            "timestamp_start_unix_ms": [1_700_000_000_500, 1_700_000_000_000],
            "prompt": ["x", "y"],
            "input_tokens": [130, 64],
            "output_tokens": [5, 6],
            "total_hashes": [[7, -8, 9], [7]],
            "block_size": [64, 64],
            "provided_session_id": ["s", None],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as out:
        out.write_table(table)
    for name in ("t.parquet", "t.arrow"):
        trace = read_trace(tmp_path / name, known_models=[], granularity=16)
        workload = trace.at(16)
        assert trace.format == "baseten"
        assert workload.arrival_ps.tolist() == [0, 500 * MS]
        assert workload.input_tokens.tolist() == [64, 130]
        assert sharing(blocks(workload)) == sharing([list("abcd"), list("abcdefgh")])
        assert any('"prompt"' in note for note in workload.notes)
    pq.write_table(table.drop_columns(["input_tokens"]), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match='"input_tokens" is missing'):
        read_trace(tmp_path / "bad.parquet", known_models=[], granularity=16)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the trace is empty"),
        (b"\n \n", "the trace is empty"),
        (b"hello", ':1: not a trace that is known: it begins with "hello"'),
        (
            b"a,b,c\n1,2,3\n",
            "(columns a, b, c; 'trace:FILE,columns=ARRIVAL|PROMPT|ANSWER', in quotes, names them)",
        ),
        (b'{"a": 1}\n', "not a trace that is known"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "the trace is empty"),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,3,x\n",
            ':2:25: "GeneratedTokens" is "x", but',
        ),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,3,4\n",
            ':2:1: "TIMESTAMP" is "yesterday", but must be',
        ),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,-3,4\n",
            ":2:1: a prompt has -3 tokens, but it must have 0 or more",
        ),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,3\n",
            ":2:1: 2 fields, but the header names 3",
        ),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n\xff,3,4\n", ":2:1: byte 0xff is not UTF-8"),
        (b"Timestamps,ContextTokens,GeneratedTokens\n1,3,4\n", '"TIMESTAMP" is missing'),
        (
            b"arrived_at,num_prefill_tokens,num_decode_tokens\nnan,3,4\n",
            ':2:1: "arrived_at" is "nan", but',
        ),
        (
            b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,3.5,4\n",
            ':2:3: "num_prefill_tokens" is "3.5"',
        ),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,3,1e12\n", "at most 1000000000"),
        (
            b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,3,4\n9e7,1,1\n",
            "more than the 53 days",
        ),
        (
            b'{"timestamp": 1, "input_length": 3, "output_length": "x"}\n',
            ':1:37: "output_length": expected "int | null", got',
        ),
        (
            b'{"timestamp": 1, "input_length": -3, "output_length": 4}\n',
            ':1:18: "input_length": expected "int" >= 0, got -3',
        ),
        (
            b'{"timestamp": 1, "input_length": 3, "output_length": 4}\n{"timestamp": 1,}\n',
            ":2:17: not valid JSON",
        ),
        (
            b'{"timestamp": 1, "input_length": 3, "output_length": 4}\n{"timestamp": 1, "in',
            ":2:21: not valid JSON",
        ),
        (
            b'{"timestamp": 1, "input_length": 3, "output_length": 4, "hash_ids": [1, 2.5]}\n',
            '"hash_ids[1]": expected',
        ),
        (
            (
                b'{"timestamp": 1, "input_length": 3, "output_length": 4}\n{"input_length": 3, '
                b'"output_length": 4}\n'
            ),
            "is missing",
        ),
        (
            (
                b'{"input_length": 3, "output_length": 4}\n{"timestamp": 1, "input_length": 3, '
                b'"output_length": 4}\n'
            ),
            "has none",
        ),
        (b'{"input_length": 3, "hash_ids": [1]}\n', '"output_length" is missing'),
        (
            b'{"timestamp": 1, "output_length": 4, "hash_ids": [], "input_length": null}\n',
            '"input_length" is missing',
        ),
        (
            b'{"session_id": "s", "delay": 4, "input_length": 3, "output_length": 4}\n',
            "needs an arrival time",
        ),
        (b'{"timestamp": 1e300, "input_length": 3, "output_length": 4}\n', '"timestamp" is 1e+300'),
        (b'[{"id": 1, "conversations": 3}]', ":1:2: not a conversation"),
        (
            b'[{"id": 1, "conversations": []},\n {"id": 2, "conversations": [{"from": 1}]}]',
            ':2:2: "conversations[0]" needs',
        ),
        (b'[{"id": 1, "conversations": []},\n {"id": 2, "conve', "not valid JSON"),
        (b'[{"id": 1, "conversations": []}', "the list is cut short"),
        (b'[{"id": 1, "conversations": []} {}]', 'divided by ","'),
        (
            b'{"input_lens": [1, 2], "output_lens": [1]}',
            '"output_lens" has 1 values, but "input_lens" has 2',
        ),
        (
            b'{"total_input_tokens": 1, "request_throughput": 1, "output_throughput": 1}',
            "--save-detailed",
        ),
        (b'{"block_size": 64, "requests": [{"t": "x"}]}', ":1:1: not a conversation: expected"),
        (b"PAR1 and nothing", "not readable as parquet"),
    ],
)
def test_bad_files_are_one_sentence_with_a_place(tmp_path, data, said):
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        load_dataset(str(path), known_models=[], granularity=16)
    message = str(caught.value)
    assert message.startswith(f"{path}:")
    assert "\n" not in message
    assert said in message


def test_arrivals_in_any_order_are_sorted_and_sessions_stay_whole(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = (SAMPLES / "mooncake_sessions.jsonl").read_text().splitlines()
    path.write_text("\n".join([lines[1], lines[0], *lines[2:]]))
    again = load_dataset(str(path), known_models=[], granularity=16)
    plain = load_dataset(str(SAMPLES / "mooncake_sessions.jsonl"), known_models=[], granularity=16)
    for column in ("arrival_ps", "input_tokens", "next_call", "tool_delay_ps"):
        assert np.array_equal(getattr(again, column), getattr(plain, column))


def test_several_models_need_names_that_are_served():
    with pytest.raises(InputError, match="ChatGPT"):
        load_dataset(str(SAMPLES / "burstgpt.csv"), known_models=["a", "b"], granularity=16)
    with pytest.raises(InputError, match="serves several"):
        load_dataset(str(SAMPLES / "azure_2023.csv"), known_models=["a", "b"], granularity=16)


def test_a_hundred_thousand_lines_are_quick(tmp_path):
    path = tmp_path / "t.jsonl"
    row = '{"timestamp": %d, "input_length": 1500, "output_length": 9, "hash_ids": [0, %d, %d]}\n'
    path.write_text("".join(row % (n, 2 * n + 1, 2 * n + 2) for n in range(100_000)))
    start = time.process_time()
    trace = read_trace(path, known_models=["m"], granularity=16, options=TraceOptions())
    assert (
        time.process_time() - start < 1.0 * 3
    )  # a tenth of the budget for a million, three times for slow machines
    assert len(trace.workload.keys) == 300_000

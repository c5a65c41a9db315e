"""What tools do to a file without changing what it says: every sample reads the same, however it is
written.
"""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import InputError
from llmsim.workload.formats import read_trace

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
COLUMNS = (
    "arrival_ps",
    "input_tokens",
    "output_tokens",
    "next_call",
    "tool_delay_ps",
    "key_offsets",
    "keys",
)
IDS = (
    "hash_ids",
    "chat_id",
    "parent_chat_id",
    "session_id",
    "round_index",
    "turn",
    "turn_index",
    "block_size",
    "id",
)


def told(path: Path) -> dict[str, Any]:
    made = read_trace(path, known_models=(), granularity=16).workload
    labels = {"session_id": made.session_id, "request_id": made.request_id}
    return {**{name: getattr(made, name).tolist() for name in COLUMNS}, **labels}


def each_line(change: Callable[[Any], Any]) -> Callable[[str], str]:
    return lambda text: "".join(
        json.dumps(change(json.loads(line))) + "\n" for line in text.splitlines() if line
    )


def turned(value: Any) -> Any:
    """Keys in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(each) for each in value] if isinstance(value, list) else value


def floats(value: Any) -> Any:
    """Counts and times as pandas writes them."""
    if isinstance(value, dict):
        return {
            key: each if key in IDS or key.endswith("_ns") else floats(each)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [floats(each) for each in value]
    return float(value) if type(value) is int else value


def each_row(change: Callable[[list[str]], list[str]], **how: Any) -> Callable[[str], str]:
    def write(text: str) -> str:
        out = io.StringIO()
        csv.writer(out, **how).writerows(change(row) for row in csv.reader(io.StringIO(text)))
        return out.getvalue()

    return write


ANY: dict[str, Callable[[str], str]] = {
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "blank lines": lambda text: "\n\n" + text.replace("\n", "\n\n") + "\n  \n",
    "no last newline": lambda text: text.rstrip("\n"),
}
KINDS: dict[str, dict[str, Callable[[str], str]]] = {
    ".jsonl": {
        "keys turned": each_line(turned),
        "more keys": each_line(
            lambda row: {**row, "zz": {"a": [1, {"b": None}]}, "é": "\u20ac", "big": 1e300}
        ),
        "compact": lambda text: text.replace('": ', '":').replace(", ", ","),
        "blanks after lines": lambda text: text.replace("\n", " \t\n"),
        "floats": each_line(floats),
    },
    ".json": {
        "keys turned": lambda text: json.dumps(turned(json.loads(text))),
        "indented": lambda text: json.dumps(json.loads(text), indent=4),
        "floats": lambda text: json.dumps(floats(json.loads(text))),
    },
    ".csv": {
        "columns turned": each_row(lambda row: row[::-1]),
        "quoted": each_row(lambda row: row, quoting=csv.QUOTE_ALL),
        "blanks and quotes": lambda text: each_row(lambda row: row, quoting=csv.QUOTE_ALL)(
            text
        ).replace('","', '", "'),
        "more columns": each_row(lambda row: [*row, 'a,"b\nc']),
        "floats": each_row(
            lambda row: (
                row[:1] + [f"{cell}.0" if cell.isdigit() else cell for cell in row[1:]]
            )  # the first may be an id
        ),
    },
}
CASES = [
    pytest.param(path, change, id=f"{path.name}-{name}")
    for path in SAMPLES
    for name, change in {**ANY, **KINDS[path.suffix]}.items()
    if not (
        path.name == "llmservingsim.jsonl" and name == "floats"
    )  # our own format says integer, and means it
]


@pytest.mark.parametrize(("path", "change"), CASES)
def test_it_reads_the_same(path: Path, change: Callable[[str], str], tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8", newline="")
    assert told(odd) == told(path)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_one_line_is_a_trace(path: Path, tmp_path: Path) -> None:
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if '"warmup"' not in line
    ]
    if path.suffix == ".json":
        pytest.skip("a document")
    one = tmp_path / "one"
    one.write_text("\n".join(lines[: 1 + (path.suffix == ".csv")]))
    assert len(read_trace(one, known_models=(), granularity=16).workload) >= 1


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_cut_file_is_read_or_one_sentence(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    cut = tmp_path / "cut"
    for size in range(0, len(data), max(1, len(data) // 40)):
        cut.write_bytes(data[:size])
        try:
            read_trace(cut, known_models=(), granularity=16)
        except InputError as error:
            assert str(error).startswith(f"{cut}:") and "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2023-11-16 18:15:46.6805900", 680_590_000), ("2023-11-16T18:15:46", 0),
        ("2023-11-16T18:15:46.5Z", 500_000_000),
        ("2023-11-16 19:15:46.123456789+01:00", 123_456_789), ("2023-11-16T12:45:46-05:30", 0),
    ],
)  # fmt: skip
def test_times_of_azure(text: str, ns: int, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n{text},1,1\n"
    )
    assert read_trace(path, known_models=(), granularity=0).workload.arrival_ps.tolist() == [
        0,
        ns * 1000,
    ]


ROW = '{"input_toks": 8, "output_toks": 2, "arrival_time_ns": 0}'
UNANSWERED = '[{"id": "a", "conversations": [{"from": "human", "value": "hi"}]}]'


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (ROW.encode("utf-16"), "the text is UTF-16; save it as UTF-8"),
        (f"[{ROW}]".encode(), "one JSON array; write each of them as a line of its own"),
        (b"TIMESTAMP;ContextTokens;GeneratedTokens\n1;2;3\n", 'separated by ";"'),
        (UNANSWERED.encode(), "none of the conversations has an answer to a question"),
        (b"arrival,input,input,output\n0,1,2,3\n", 'two columns are named "input"'),
        (b"arrival,input,output\n0,-100,5\n", "a prompt has -100 tokens, but it must have 0 or"),
        (b"arrival,input,output\n0,100,-5\n", "an answer has -5 tokens, but it must have 0 or"),
    ],
)
def test_what_keeps_a_file_from_being_a_trace_is_named(
    data: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_trace(str(path), known_models=[], granularity=16)
    assert words in str(caught.value) and str(path) in str(caught.value)

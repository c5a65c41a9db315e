"""CSV files with columns of any names, and conversations in Parquet."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmsim.config.errors import InputError
from llmsim.workload import load_dataset
from llmsim.workload.formats import read_trace

NS = 1000
SAMPLES = Path(__file__).parent / "samples"


def arrivals_ns(path: Path, options: str = "") -> list[int]:
    return (
        load_dataset(f"trace:{path}{options}", known_models=(), granularity=0).arrival_ps // NS
    ).tolist()


def test_columns_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("when (ms),in,out,session_id\n5,10,20,a\n7.5,30,40,\n")
    made = load_dataset(
        f"trace:{path},columns=when (ms)|in|out,unit=ms", known_models=(), granularity=0
    )
    assert made.arrival_ps.tolist() == [0, 2_500_000 * NS]
    assert made.input_tokens.tolist() == [10, 30]
    assert made.output_tokens.tolist() == [20, 40]
    assert made.session_id == ["a", ""]
    untimed = load_dataset(f"trace:{path},columns=|in|out", known_models=(), granularity=0)
    assert untimed.arrival_ps.tolist() == [0, 0]
    assert any("no arrivals are named" in note for note in untimed.notes)


@pytest.mark.parametrize(
    ("name", "values", "expected_ns", "unit"),
    [
        ("arrival_time_ms", ("3", "5"), 2_000_000, None),
        ("timestamp_ns", ("1700000000000000001", "1700000000000000004"), 3, None),
        ("timestamp", ("1700000000", "1700000002.5"), 2_500_000_000, "s"),
        ("timestamp", ("1700000000123", "1700000000125"), 2_000_000, "ms"),
        ("timestamp", ("1700000000000001", "1700000000000003"), 2_000, "us"),
        ("timestamp", ("1700000000000000001", "1700000000000000003"), 2, "ns"),
        (
            "created_at",
            ("2024-05-10 00:00:00.009930+00:00", "2024-05-10T00:00:01.009930Z"),
            10**9,
            None,
        ),
    ],
)
def test_units(
    tmp_path: Path, name: str, values: tuple[str, str], expected_ns: int, unit: str | None
) -> None:
    path = tmp_path / "t"
    path.write_text(f"{name},Prompt_Tokens,completion_tokens\n{values[0]},1,2\n{values[1]},3,4\n")
    trace = read_trace(path, known_models=(), granularity=0)
    assert trace.format == "csv"
    assert trace.workload.arrival_ps.tolist() == [0, expected_ns * NS]
    said = [note for note in trace.workload.notes if "taken to be in" in note]
    assert said == (
        [] if unit is None else [f'{path}: "{name}" is taken to be in {unit}; unit= says otherwise']
    )


@pytest.mark.parametrize("names", ["arrival,input,output", "arrival_s,ISL,OSL"])
def test_the_words_of_a_newcomer_are_known(tmp_path: Path, names: str) -> None:
    path = tmp_path / "t"
    path.write_text(f"{names}\n0.5,7,2\n2.0,9,4\n")
    trace = read_trace(path, known_models=(), granularity=0)
    assert trace.format == "csv" and trace.workload.arrival_ps.tolist() == [0, 1_500_000_000 * NS]
    assert trace.workload.input_tokens.tolist() == [7, 9]
    assert trace.workload.output_tokens.tolist() == [2, 4]
    path.write_text("time,input,output\n0,Who are you?,me\n")
    with pytest.raises(InputError, match=r'"input" is "Who are you.", but must be an integer'):
        read_trace(path, known_models=(), granularity=0)


def test_a_unit_that_is_given_holds(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("timestamp,input_tokens,output_tokens\n0,1,2\n3,3,4\n")
    assert arrivals_ns(path) == [0, 3 * 10**9]
    assert arrivals_ns(path, ",unit=us") == [0, 3000]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a,b,c\n1,2,3\n", "", "'trace:FILE,columns=ARRIVAL|PROMPT|ANSWER', in quotes, names them"),
        ("a,b,c\n1,2,3\n", ",columns=a|b|d", ':1:1: the column "d" is missing'),
        ("a,b,c\n1,2,3\n", ",columns=a|b", "must be three names of columns"),
        ("a,b,c\n1,2,3\nx,2,3\n", ",columns=a|b|c", ':3:1: "a" is "x", but must be a time'),
        (
            "a,b,c\n2024-01-01,2,3\n",
            ",columns=a|b|c",
            ':2:1: "a" is "2024-01-01", but must be a date and time',
        ),
        (
            "arrival,input,output\n0,2,3\n5208041632,2,3\n",
            "",
            "a time of at most 4611686018 s; 'trace:FILE,unit=ns', in quotes, names another unit",
        ),
        ("a,b,c\nnan,2,3\n", ",columns=a|b|c", ':2:1: "a" is "nan", but must be a time'),
        ("a,b,c\n1,2.5,3\n", ",columns=a|b|c", ':2:3: "b" is "2.5", but must be an integer'),
        ("a,b,c\n1,1,360,3\n", ",columns=a|b|c", ":2:1: 4 fields, but the header names 3"),
        ('{"a": 1}\n', ",columns=a|b|c,format=csv", ":1:1: not a CSV"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n",
            ",unit=ms",
            '"unit" is for a CSV or JSON Lines with names of its own, but this is read as azure; '
            "format=csv reads it as such",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, options: str, said: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        arrivals_ns(path, options)
    assert said in str(error.value)


def test_a_comma_at_the_end_of_a_row_is_no_field(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("timestamp,input_tokens,output_tokens\n0,1,2,\n3,3,4, ,\n")
    assert arrivals_ns(path) == [0, 3 * 10**9]


def test_conversations_in_parquet(tmp_path: Path) -> None:
    said = [
        [("user", "0123456789"), ("assistant", "abcd"), ("user", "efgh"), ("assistant", "i")],
        [("user", "alone")],
    ]
    turns = [[{"role": role, "content": text} for role, text in each] for each in said]
    table = pa.table(
        {"conversation_id": ["x", "y"], "model": ["m", "n"], "conversation": turns, "turn": [2, 1]}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet", known_models=(), granularity=16)
    assert trace.format == "sharegpt"
    assert trace.workload.input_tokens.tolist() == [3, 5]
    assert trace.workload.output_tokens.tolist() == [1, 1]
    assert trace.workload.session_id == ["x", "x"]
    pq.write_table(pa.table({"conversation": ["text", "alone"]}), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match=r":1:1: not a conversation"):
        read_trace(tmp_path / "bad.parquet", known_models=(), granularity=16)

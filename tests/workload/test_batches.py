"""Batches say what one line or one value at a time says: same workload, same notes, same errors at
the same place.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmsim.config.errors import InputError
from llmsim.workload.formats import batches, documents, read_trace, rows, times
from llmsim.workload.formats.table import Table
from llmsim.workload.options import TraceOptions

COLUMNS = (
    "arrival_ps",
    "input_tokens",
    "output_tokens",
    "model",
    "next_call",
    "tool_delay_ps",
    "key_offsets",
    "keys",
)


def told(path: Path, **options: Any) -> list[object]:
    """All that reading a trace gives: its columns, labels and notes, or its error."""
    try:
        made = read_trace(
            path, known_models=(), granularity=16, options=TraceOptions(**options)
        ).workload
    except InputError as error:
        return [str(error)]
    columns = [getattr(made, name).tolist() for name in COLUMNS]
    return [*columns, made.session_id, made.request_id, made.models, made.granularity, made.notes]


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches every batch off."""
    monkeypatch.setattr(rows, "lines_of", lambda *_: None)
    monkeypatch.setattr(documents, "lines_of", lambda *_: None)
    monkeypatch.setattr(batches.Elements, "_first_key", lambda self: b"")
    monkeypatch.setattr(Table, "extend", lambda *_: False)


def agree(path: Path, chunk: int, **options: Any) -> list[object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "CHUNK_BYTES", chunk)
        found = told(path, **options)
    with pytest.MonkeyPatch.context() as patch:
        one_by_one(patch)
        assert told(path, **options) == found
    return found


count = st.integers(0, 5000)
ids = st.lists(st.integers(0, 9), max_size=4)
texts = st.text(st.sampled_from('ab é{}[],"\\\n:'), max_size=12)
iso = st.sampled_from(
    [
        "2025-01-02T03:04:05Z",
        "2025-01-02T03:04:06.25Z",
        "2025-01-02 03:04:07.123456789",
        "2025-01-02T05:04:05+02:00",
    ]
)
events = st.fixed_dictionaries({"timestamp": iso | st.none() | st.just(1735787045.5)})
tools = st.fixed_dictionaries({"tool_wall_latency_ms": st.floats(0, 1e5)})
turns = st.fixed_dictionaries(
    {"from": st.sampled_from(["human", "gpt", "GPT", "tool"]), "value": texts}
)
ROWS: dict[str, Callable[[], st.SearchStrategy[dict[str, Any]]]] = {
    "mooncake": lambda: st.fixed_dictionaries(
        {
            "timestamp": st.integers(0, 9999) | st.floats(0, 1e6),
            "input_length": count,
            "output_length": count,
        },
        optional={
            "hash_ids": ids,
            "model": st.sampled_from(["m", "n"]),
            "request_id": texts,
            "extra": texts,
        },
    ),
    "bailian": lambda: st.fixed_dictionaries(
        {
            "chat_id": st.integers(0, 9),
            "parent_chat_id": st.integers(-1, 9),
            "timestamp": st.floats(0, 1e6),
            "input_length": count,
            "output_length": count,
            "hash_ids": ids | st.lists(texts, max_size=2),
        }
    ),
    "aiperf": lambda: st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries(
                {"request_start_ns": st.integers(0, 1 << 60)},
                optional={"turn_index": st.just(0), "x_correlation_id": texts},
            ),
            "metrics": st.fixed_dictionaries(
                {},
                optional={
                    name: st.fixed_dictionaries({"value": count})
                    for name in ("input_sequence_length", "output_sequence_length")
                },
            ),
        }
    ),
    "tracelab": lambda: st.fixed_dictionaries(
        {
            "session_id": st.sampled_from(["a", "b"]),
            "round_index": st.integers(0, 5),
            "output_tokens": count,
            "prefix_tokens": count,
            "newly_append_tokens": count,
        },
        optional={"timing_events": st.lists(events), "tools": st.lists(tools), "model": texts},
    ),
}
calls = st.fixed_dictionaries(
    {"t": st.floats(0, 100), "in": count, "out": count},
    optional={
        "hash_ids": ids,
        "api_time": st.floats(0, 9),
        "think_time": st.floats(0, 9),
        "model": texts,
    },
)
agents = st.fixed_dictionaries({"t": st.floats(0, 100), "requests": st.lists(calls, min_size=1)})
CONVERSATIONS = {
    "weka": st.fixed_dictionaries(
        {"block_size": st.just(64), "requests": st.lists(calls | agents, max_size=4)},
        optional={"id": texts},
    ),
    "sharegpt": st.fixed_dictionaries(
        {"id": texts | st.integers() | st.none(), "conversations": st.lists(turns, max_size=5)}
    ),
}
LAYOUTS: dict[str, Callable[[list[Any]], str]] = {
    "lines": lambda made: "".join(json.dumps(each) + "\n" for each in made),
    "no last newline": lambda made: "\n".join(
        json.dumps(each, ensure_ascii=False) for each in made
    ),
    "windows": lambda made: "\ufeff" + "\r\n\r\n".join(json.dumps(each) for each in made),
    "list": lambda made: json.dumps(made, ensure_ascii=False),
    "list, a line each": lambda made: (
        "[\n" + ",\n".join(json.dumps(each) for each in made) + "\n]\n"
    ),
    "indented": lambda made: json.dumps(made, indent=2),
}
quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quick
@given(data=st.data(), name=st.sampled_from(sorted(ROWS)), chunk=st.integers(1, 400))
def test_lines(data: st.DataObject, name: str, chunk: int, tmp_path: Path) -> None:
    made = data.draw(st.lists(ROWS[name](), min_size=1, max_size=12))
    layout = data.draw(st.sampled_from(["lines", "no last newline", "windows"]))
    path = tmp_path / "trace"
    path.write_text(LAYOUTS[layout](made), encoding="utf-8")
    options = {
        "format": name,
        "limit": data.draw(st.integers(0, 3)),
        "failures": data.draw(FAILURES),
    }
    agree(path, chunk, **options)


FAILURES = st.sampled_from(["drop", "keep"])


@quick
@given(data=st.data(), name=st.sampled_from(sorted(CONVERSATIONS)), chunk=st.integers(1, 400))
def test_documents(data: st.DataObject, name: str, chunk: int, tmp_path: Path) -> None:
    made = data.draw(st.lists(CONVERSATIONS[name], min_size=1, max_size=6))
    path = tmp_path / "trace"
    path.write_text(LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))](made), encoding="utf-8")
    options = {
        "format": name,
        "limit": data.draw(st.integers(0, 3)),
        "failures": data.draw(FAILURES),
    }
    if data.draw(st.booleans()):
        options["turns"] = "first"
    agree(path, chunk, **options)


GOOD = {"block_size": 64, "requests": [{"t": 0, "in": 3, "out": 2}]}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize(
    ("index", "fault", "said"),
    [
        (
            7,
            {"block_size": 16, "requests": [{"t": 0, "in": 3, "out": 2}]},
            '"block_size" is 16, but 64 before',
        ),
        (4, {"block_size": 64, "requests": 5}, "not a conversation: "),
        (
            6,
            {"block_size": 64, "requests": [{"t": 0, "in": 2_000_000_000, "out": 2}]},
            "2000000000 tokens, but at most",
        ),
    ],
)
@pytest.mark.parametrize("chunk", [30, 200, 1 << 20])
def test_a_fault_is_said_where_it_stands(
    layout: str, index: int, fault: dict[str, Any], said: str, chunk: int, tmp_path: Path
) -> None:
    made = [GOOD] * index + [fault] + [GOOD] * 3
    path = tmp_path / "trace"
    path.write_text(text := LAYOUTS[layout](made), encoding="utf-8")
    (message,) = agree(path, chunk, format="weka")
    assert said in str(message)
    line = int(str(message).removeprefix(f"{path}:").split(":")[0])
    begins = [
        at
        for at in range(len(text))
        if text.startswith('{"block_size"', at) or text.startswith('{\n    "b', at)
    ]
    assert line == text.count("\n", 0, begins[index]) + 1


def test_batches_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layout that tools write is read in batches to its end, so that the tests above compare
    two ways.
    """
    monkeypatch.setattr(documents, "_values", None)
    monkeypatch.setattr(batches, "CHUNK_BYTES", 300)
    path = tmp_path / "trace"
    for layout in ("lines", "list", "list, a line each", "indented"):
        path.write_text(LAYOUTS[layout]([GOOD] * 20), encoding="utf-8")
        assert len(read_trace(path, known_models=(), granularity=16).workload) == 20


@given(
    st.lists(
        st.tuples(
            st.datetimes().map(lambda moment: moment.replace(microsecond=0).isoformat()),
            st.sampled_from(["", ".5", ".123456789", ".0000001"]),
            st.sampled_from(["", "Z", "+05:30", "-11:00"]),
        ),
        min_size=1,
    )
)
@settings(max_examples=50, deadline=None)
def test_columns_of_times(parts: list[tuple[str, str, str]]) -> None:
    kept = [each for each in parts if "1700" < each[0] < "2250"]
    written = ["".join(each) for each in kept]
    shapes = {(len(fraction), len(zone)) for _, fraction, zone in kept}
    found = times.all_timestamps_ns(written)
    if len({sum(shape) for shape in shapes}) < len(
        shapes
    ):  # as long as each other, but not alike: read one by one
        assert found is None
    else:
        assert found is not None and found.tolist() == [
            times.timestamp_ns(text, {}) for text in written
        ]


@pytest.mark.parametrize(
    "text",
    [
        "2023-02-29T00:00:00",
        "2023-01-01T24:00:00",
        "2023-01-01T00:00:60",
        "2023-1-1T00:00:00",
        "20230101T000000",
        "2023-01-01T00:00:00.",
        "2023-01-01T00:00:00,5",
        "2023-01-01T00:00:00+0100",
        "2023-01-01T00:00:0\u0661",
        "now",
        "",
    ],
)
def test_odd_times_are_left_to_the_other_reader(text: str) -> None:
    assert times.all_timestamps_ns(["2023-01-01T00:00:00", text]) is None


def test_repeats_of_repeats_name_the_first(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rounds = [(0, 32), (32, 32), (64, 32), (16, 80)]
    path.write_text(
        "".join(
            json.dumps(
                {
                    "session_id": "s",
                    "round_index": index,
                    "prefix_tokens": prefix,
                    "newly_append_tokens": new,
                    "output_tokens": 16,
                }
            )
            + "\n"
            for index, (prefix, new) in enumerate(rounds)
        )
    )
    made = read_trace(path, known_models=(), granularity=16).workload
    keys = [part.tolist() for part in np.split(made.keys, made.key_offsets[1:-1])]
    assert keys == [
        [1, 2, 3],
        [1, 2, 6, 7, 8],
        [1, 2, 6, 7, 13, 14, 15],
        [1, 17, 18, 19, 20, 21, 22],
    ]

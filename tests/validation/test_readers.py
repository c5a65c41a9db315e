"""Every kind of recording is told by its content and read as the same run."""

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_logs import rows_of, run_arguments, write_engine_log

from llmsim.cli import run_main
from llmsim.config.errors import InputError
from llmsim.validation import Recording, read_recording
from llmsim.validation.compare.compare import compare


def bench_json(rows: list[dict[str, str]]) -> dict[str, Any]:
    itls = [[itl / 1e9 for itl in ast.literal_eval(row["ITL"])] for row in rows]
    return {
        "duration": 9.0,
        "input_lens": [int(row["input"]) for row in rows],
        "output_lens": [int(row["output"]) for row in rows],
        "ttfts": [int(row["TTFT"]) / 1e9 for row in rows],
        "itls": itls,
        "start_times": [77 + int(row["arrival"]) / 1e9 for row in rows],
        "generated_texts": [""] * len(rows),
        "errors": [""] * len(rows),
    }


def aiperf_lines(rows: list[dict[str, str]]) -> str:
    lines = []
    for row in rows:
        start = 1_700_000_000_000_000_000 + int(row["arrival"])
        metrics = {
            "input_sequence_length": {"value": int(row["input"]), "unit": "tokens"},
            "output_sequence_length": {"value": int(row["output"]), "unit": "tokens"},
            "time_to_first_token": {"value": int(row["TTFT"]) / 1e6, "unit": "ms"},
            "request_latency": {"value": int(row["latency"]) / 1e6, "unit": "ms"},
            "inter_chunk_latency": {
                "value": [itl / 1e6 for itl in ast.literal_eval(row["ITL"])],
                "unit": "ms",
            },
        }
        metadata = {
            "session_num": int(row["request id"]),
            "request_start_ns": start,
            "benchmark_phase": "profiling",
        }
        lines.append(json.dumps({"metadata": metadata, "metrics": metrics, "error": None}))
    lines.insert(
        0, json.dumps({"metadata": {"session_num": 0, "benchmark_phase": "warmup"}, "metrics": {}})
    )
    return "\n".join(lines)


@pytest.fixture(params=["run folder", "parquet", "engine log", "bench", "aiperf"])
def other(request: pytest.FixtureRequest, run: Path, tmp_path: Path) -> Recording:
    rows = rows_of(run / "out.csv")
    path = tmp_path / "x.unknown"
    if request.param == "run folder":
        path = run / "run"
    elif request.param == "parquet":
        path.write_bytes((run / "run" / "requests.parquet").read_bytes())
    elif request.param == "engine log":
        write_engine_log(rows, path)
    elif request.param == "bench":
        path.write_text(json.dumps(bench_json(rows), indent=1), encoding="utf-8")
    else:
        path.write_text(aiperf_lines(rows), encoding="utf-8")
    return read_recording(path)


def test_all_kinds_say_the_same(run: Path, other: Recording) -> None:
    found = compare(other, read_recording(run / "out.csv"), skip_seconds=0)
    assert found.sound and len(found.pairs.real) == 60
    assert all(abs(error) < 1e-3 for error in found.errors().values()), found.errors()
    assert ("mean_itl" in found.errors()) == (other.kind != "vLLM engine log")


def test_failed_requests_are_left_out_and_said(run: Path, tmp_path: Path) -> None:
    data = bench_json(rows_of(run / "out.csv"))
    data["errors"][7] = "timed out"
    (tmp_path / "b.json").write_text(json.dumps(data), encoding="utf-8")
    real = read_recording(tmp_path / "b.json")
    assert len(real) == 59 and "7" not in real.request_id
    found = compare(real, read_recording(run / "out.csv"))
    unsound = {finding.code for finding in found.findings if finding.unsound}
    assert "failed" in unsound and "counts" not in unsound


def with_a_failure(kind: str, run: Path, path: Path) -> Path:
    """The log of a run whose seventh request failed."""
    rows = rows_of(run / "out.csv")
    if kind == "engine log":
        *lines, _ = write_engine_log(rows, path).read_text(encoding="utf-8").split("\n")
        lines[7] = json.dumps(json.loads(lines[7]) | {"first_token_ts": None})
        path.write_text("\n".join(lines), encoding="utf-8")
    elif kind == "bench":
        data = bench_json(rows)
        data["errors"][7] = "timed out"
        path.write_text(json.dumps(data), encoding="utf-8")
    else:
        warmup, *lines = aiperf_lines(rows).split("\n")
        lines[7] = json.dumps(json.loads(lines[7]) | {"metrics": None, "error": {"code": 500}})
        path.write_text("\n".join([warmup, *lines]), encoding="utf-8")
    return path


def arrivals_of(recording: Recording) -> dict[str, float]:
    return dict(zip(recording.request_id, recording.arrival_s.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["engine log", "bench", "aiperf"])
def test_a_request_that_failed_arrives(kind: str, run: Path, tmp_path: Path) -> None:
    """The server had to do with it, so that a simulation at the log's arrivals has it, too."""
    real = read_recording(with_a_failure(kind, run, tmp_path / "log.json"))
    arrivals = arrivals_of(read_recording(run / "out.csv"))
    assert real.failed.arrival_s == pytest.approx([arrivals["7"]], abs=1e-6)
    arguments = run_arguments("--arrivals", tmp_path / "log.json", "--output", tmp_path / "o.csv")
    assert run_main(arguments) == 0
    simulated = read_recording(tmp_path / "o.csv")
    assert arrivals_of(simulated) == pytest.approx(arrivals, abs=1e-6)
    assert len(compare(real, simulated).pairs.real) == 59


def test_a_benchmark_without_start_times_has_no_throughput(run: Path, tmp_path: Path) -> None:
    data = bench_json(rows_of(run / "out.csv"))
    del data["start_times"]
    (tmp_path / "b.json").write_text(json.dumps(data), encoding="utf-8")
    found = compare(read_recording(tmp_path / "b.json"), read_recording(run / "out.csv"))
    assert not found.sound and not found.totals
    assert abs(found.errors()["mean_latency"]) < 1e-6
    assert found.num_paired == 60


def test_clocks_are_aligned_by_the_quickest_way_to_the_queue(tmp_path: Path) -> None:
    lines = [
        {
            "request_id": f"r-{i}",
            "input_toks": 5,
            "output_toks": 3,
            "arrival_time": 1e9 + i,
            "queued_ts": 40 + i + lag,
            "first_token_ts": 41.0 + i,
            "last_token_ts": 43.0 + i,
        }
        for i, lag in enumerate((0.3, 0.1, 0.2))
    ]
    (tmp_path / "l").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    found = read_recording(tmp_path / "l")
    assert np.allclose(found.ttft_s, 0.9, atol=1e-6) and np.allclose(found.tpot_s, 1.0)
    assert not found.findings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "instance id"),
        ('{"x": 1}', "no known log"),
        ('{"x": 1}\n{"y"', "bad:2"),
        ('{"ttfts": [1.0]}', "save-detailed"),
        ('{"ttfts": [1.0], "output_lens": [0], "errors": ["e"]}', "none of its 1"),
        ('{"ttfts": [1.0], "output_lens": [2], "itls": []}\n', ""),
        ('{"request_id": "1", "first_token_ts": 1, "arrival_time": "soon"}', "bad:1: arrival_time"),
        ('{"metadata": {"request_start_ns": 1}, "metrics": {"x": 1}}', "streaming"),
        (
            (
                '{"metadata": {"request_start_ns": 1}, "metrics": {"time_to_first_token": '
                '{"value": 1, "unit": "h"}}}'
            ),
            '"h"',
        ),
    ],
)
def test_errors_say_where(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_text(text, encoding="utf-8")
    if not words:
        assert len(read_recording(path)) == 1
        return
    with pytest.raises(InputError, match=words):
        read_recording(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_recording(tmp_path / "gone")
    with pytest.raises(InputError, match="no run folder"):
        read_recording(tmp_path)


JUNK = st.sampled_from(
    [None, "x", -1, 1.5, float("nan"), float("inf"), [], ["x"], {}, {"value": None}, True, 10**30]
)


def mutated(data: Any, path: list[Any], junk: Any) -> None:
    """Puts junk in one place, or takes the place away."""
    for key in path[:-1]:
        data = data[key]
    if junk == "delete":
        del data[path[-1]]
    else:
        data[path[-1]] = junk


def places(data: Any, above: tuple[Any, ...] = ()) -> list[list[Any]]:
    """Every key and index, and of long lists the first two."""
    found = []
    keys = (
        list(data)
        if isinstance(data, dict)
        else list(range(min(2, len(data))))
        if isinstance(data, list)
        else []
    )
    for key in keys:
        found += [[*above, key], *places(data[key], (*above, key))]
    return found


SMALL = [
    {
        "request id": str(i),
        "input": "10",
        "output": "3",
        "arrival": str(i * 10**9),
        "end_time": str(i * 10**9 + 900),
        "latency": "900",
        "TTFT": "300",
        "ITL": "[300, 300]",
    }
    for i in range(3)
]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=st.sampled_from(["engine", "bench", "aiperf"]),
    junk=st.one_of(JUNK, st.just("delete")),
    data=st.data(),
)
def test_any_defect_is_one_sentence_or_harmless(
    tmp_path: Path, kind: str, junk: Any, data: st.DataObject
) -> None:
    """A value of the wrong kind anywhere: a recording of finite times, or an InputError; never
    another exception.
    """
    log = tmp_path / "log"
    if kind == "bench":
        content: Any = bench_json(SMALL)
    elif kind == "aiperf":
        content = [json.loads(line) for line in aiperf_lines(SMALL).splitlines()]
    else:
        content = [
            json.loads(line) for line in write_engine_log(SMALL, log).read_text().splitlines()
        ]
    mutated(content, data.draw(st.sampled_from(places(content))), junk)
    text = (
        json.dumps(content) if kind == "bench" else "\n".join(json.dumps(line) for line in content)
    )
    log.write_text(text, encoding="utf-8")
    try:
        found = read_recording(log)
    except InputError as error:
        assert str(log) in str(error)
        return
    assert np.isfinite(found.ttft_s).all() and np.isfinite(found.latency_s).all()
    assert (found.output_tokens >= 0).all()


def test_what_has_no_requests_says_what_would_have_worked(tmp_path: Path) -> None:
    for content, expected in (
        ({"duration": 3.0, "mean_ttft_ms": 3.0, "completed": 3}, "--save-detailed"),
        ({"time_to_first_token": {"unit": "ms", "avg": 3.0}}, "profile_export.jsonl"),
        ([1, 2], "a JSON list is no known log"),
        (
            {"experiments": [{"requests": [{"timestamp": 1, "response_timestamps": [2]}]}]},
            "no token counts",
        ),
    ):
        (tmp_path / "x").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(InputError, match=expected):
            read_recording(tmp_path / "x")


def test_an_id_that_occurs_twice_and_tokens_before_their_request_are_named(
    run: Path, tmp_path: Path
) -> None:
    rows = rows_of(run / "out.csv")
    data = bench_json(rows)
    data["ttfts"][3] = -1.0
    (tmp_path / "b.json").write_text(json.dumps(data), encoding="utf-8")
    found = compare(read_recording(tmp_path / "b.json"), read_recording(run / "out.csv"))
    assert "clocks" in {finding.code for finding in found.findings if finding.unsound}
    rows[1]["request id"] = "0"
    with pytest.raises(InputError, match='"bench-0" occurs twice; name each request differently'):
        compare(
            read_recording(write_engine_log(rows, tmp_path / "log")),
            read_recording(run / "out.csv"),
        )

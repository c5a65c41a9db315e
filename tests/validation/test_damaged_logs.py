"""Damaged logs and results of runs: one sentence that names the file, and the line where there is
one.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.targets import bench_result, engine_log, result_csv

from llmsim.config.errors import InputError
from llmsim.validation import read_recording
from llmsim.validation.logs.arrivals import with_recorded_arrivals
from llmsim.validation.logs.means_readers import read_means
from llmsim.workload.dataset import load_dataset


def refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(InputError) as error:
        read_recording(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "value", ["inf", "-inf", "nan", "1e400", "9223372036854775808", "9" * 5000, "", "x", "[1]"]
)
def test_a_time_of_a_result_is_a_number(value: str, tmp_path: Path) -> None:
    damaged = result_csv().replace(b"200000000", value.encode(), 1)
    assert "r.csv:2: TTFT is" in refused(tmp_path / "r.csv", damaged)


@pytest.mark.parametrize(
    "value", ["[" * 9000, "{1}", '{"a": 1}', "[[1], [2]]", "[1e400]", "['a']", "[null]", "[true]"]
)
def test_inter_token_latencies_are_a_list_of_numbers(value: str, tmp_path: Path) -> None:
    quoted = value.replace('"', '""').encode()
    damaged = result_csv().replace(b"[100000000, 100000000, 100000000]", quoted, 1)
    assert "r.csv:2: ITL is" in refused(tmp_path / "r.csv", damaged)


def test_a_long_answer_has_a_long_cell(tmp_path: Path) -> None:
    """Beyond the 128 KiB that Python's csv takes by default."""
    gaps = ", ".join(["100000000"] * 20_000).encode()
    (tmp_path / "r.csv").write_bytes(
        result_csv().replace(b"100000000, 100000000, 100000000", gaps, 1)
    )
    found = read_recording(tmp_path / "r.csv")
    assert found.itl_s is not None and len(found.itl_s) == 20_000 + 3 * 3


@pytest.mark.parametrize(
    "name", ["output_lens", "ttfts", "itls", "input_lens", "start_times", "latencies", "errors"]
)
@pytest.mark.parametrize(
    "value", [[], [1], 3, None, "x", {}, [[]], [1e400] * 4, [10**400] * 4, ["x"] * 4, [None] * 4]
)
def test_every_list_of_a_benchmark_may_be_damaged(name: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps(bench_result() | {name: value}))
    try:
        found = read_recording(path)
    except InputError as error:
        assert str(path) in str(error)
        return
    assert np.isfinite(found.ttft_s).all() and np.isfinite(found.latency_s).all()


def test_texts_may_hold_separators_of_lines_that_are_none_of_json(tmp_path: Path) -> None:
    lines = engine_log().decode().splitlines()
    lines[1] = json.dumps(
        {**json.loads(lines[1]), "request_id": "a\u2028b\x85c"}, ensure_ascii=False
    )
    (tmp_path / "log").write_text("\n".join(lines), encoding="utf-8")
    assert read_recording(tmp_path / "log").request_id[1] == "a\u2028b\x85c"


def test_a_nested_line_is_named(tmp_path: Path) -> None:
    lines = engine_log().splitlines()
    lines[2] = b'{"a": ' + b"[" * 100_000
    assert "log:3: the JSON is nested too deeply" in refused(tmp_path / "log", b"\n".join(lines))
    assert "log:2: byte 0xff" in refused(tmp_path / "log", lines[0] + b"\n\xff")


@pytest.mark.parametrize("value", [float("inf"), 10**400, -1, "x", [1], True])
def test_a_published_mean_is_a_number(value: Any, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps({"mean_ttft_ms": 3.0, "mean_tpot_ms": value}))
    with pytest.raises(InputError, match="mean_tpot_ms is"):
        read_means(tmp_path / "m.json")


def test_arrivals_beyond_a_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        json.dumps(bench_result() | {"start_times": [0.0, 1.0, 2.0, 1e8]})
    )
    workload = load_dataset(
        "synthetic:n=4,rate=1,input=fixed:30,output=fixed:4", known_models=(), granularity=0
    )
    with pytest.raises(InputError, match=r"its arrivals span 1e\+08 s, but a run can last"):
        with_recorded_arrivals(workload, tmp_path / "log")

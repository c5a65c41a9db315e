"""Files: the peer's CSV, Parquet, the run folder, and that they appear whole or not at all."""

import ast
import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from msgspec.structs import replace

from llmsim.columns import LatencyCauses, SeriesColumns, StepColumns
from llmsim.config.errors import InputError
from llmsim.core import Status
from llmsim.export.csv import COLUMNS, write_csv
from llmsim.export.files import atomic_writer, check_writable, check_writable_folder
from llmsim.export.parquet import write_requests
from llmsim.export.run_dir import RunRecord, write_run_dir
from llmsim.results.summary import summary
from llmsim.workload import load_dataset

RECORD = RunRecord(
    argv=["run", "x"],
    seed=7,
    inputs=[],
    config={"tp": 1},
    table_hashes={"g0": "abc"},
    host={"wall_s": 1.5},
)


def rows_of(path):
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def test_csv_has_the_peers_columns_and_adds_up(build, tmp_path):
    results = build(300)
    write_csv(results, tmp_path / "out.csv")
    header = (
        "instance id,request "
        "id,model,input,output,arrival,end_time,latency,queuing_delay,TTFT,TPOT,ITL"
    )
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == header == ",".join(COLUMNS)
    rows = rows_of(tmp_path / "out.csv")
    assert (
        sorted(int(row["request id"]) for row in rows)
        == np.flatnonzero(results.requests.status == Status.FINISHED).tolist()
    )
    order = [(int(row["instance id"]), int(row["end_time"])) for row in rows]
    assert order == sorted(order)
    for row in rows:
        itl = ast.literal_eval(row["ITL"])
        output, latency, ttft = int(row["output"]), int(row["latency"]), int(row["TTFT"])
        assert len(itl) == output - 1
        assert all(type(value) is int for value in itl)
        assert ttft + sum(itl) == latency == int(row["end_time"]) - int(row["arrival"])
        assert (
            row["TPOT"] == ""
            if output == 1
            else abs(int(row["TPOT"]) - (latency - ttft) / (output - 1)) <= 0.5
        )
        index = int(row["request id"])
        exact = results.requests.scheduled_ps[index] - results.workload.arrival_ps[index]
        assert abs(int(row["queuing_delay"]) * 1000 - exact) <= 1000


def test_csv_uses_the_traces_ids(build, tmp_path):
    results = build(20)
    results.workload = replace(results.workload, request_id=[f"r,{row}" for row in range(20)])
    write_csv(results, tmp_path / "out.csv")
    assert all(row["request id"].startswith("r,") for row in rows_of(tmp_path / "out.csv"))


def test_requests_parquet_holds_everything(build, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    results = build(9_000)  # more than one row group
    write_requests(results, tmp_path / "r.parquet")
    table = pq.read_table(tmp_path / "r.parquet")
    assert table.num_rows == 9_000
    finished = results.requests.status == Status.FINISHED
    assert table["finish_ps"].null_count == np.count_nonzero(~finished)
    assert table["status"].to_pylist() == [
        Status(code).name.lower() for code in results.requests.status
    ]
    found = table["ttft_ps"].to_numpy(zero_copy_only=False)[finished]
    assert np.array_equal(
        found, (results.requests.first_token_ps - results.workload.arrival_ps)[finished]
    )
    for row in (0, 8_191, 8_192, 8_999):
        assert table["itl_ps"][row].as_py() == results.itl_of(row).tolist()
    assert table["request_id"][8_500].as_py() == "8500"
    named = [
        f
        for f in table.schema
        if f.name not in ("request_id", "session_id", "group", "model", "status")
    ]
    assert all(f.metadata and f.metadata[b"meaning"] for f in named)
    parts = sum(
        table[column.name].to_numpy(zero_copy_only=False)[finished]
        for column in LatencyCauses.COLUMNS
    )
    assert np.array_equal(parts, table["e2el_ps"].to_numpy(zero_copy_only=False)[finished])
    assert all(
        str(table.schema.field(name).type) == "int64"
        for name in table.schema.names
        if name.endswith("_ps") and name != "itl_ps"
    )


def test_run_folder_is_complete_and_repeatable(build, info, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    trace = tmp_path / "trace"
    trace.write_text("abc")
    for name, wall_s in (("a", 1.0), ("b", 2.0)):
        results = build(50)
        results.steps = {
            column.name: np.arange(5, dtype=column.dtype) for column in StepColumns.COLUMNS
        }
        record = RunRecord(["run"], 7, [trace], {"tp": 1}, {"g0": "abc"}, {"wall_s": wall_s})
        write_run_dir(tmp_path / name, results, summary(results, info), record)
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {
        "manifest.json",
        "summary.json",
        "requests.parquet",
        "steps.parquet",
        "series.parquet",
    }
    for name in names - {"manifest.json"}:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    manifests = [json.loads((tmp_path / folder / "manifest.json").read_text()) for folder in "ab"]
    assert [manifest.pop("host")["wall_s"] for manifest in manifests] == [1.0, 2.0]
    assert manifests[0] == manifests[1]
    (trace_record,) = manifests[0]["inputs"]
    assert trace_record["bytes"] == 3
    assert (
        trace_record["sha256"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    steps, series = (
        pq.read_table(tmp_path / "a" / f"{name}.parquet") for name in ("steps", "series")
    )
    assert steps.schema.names == [column.name for column in StepColumns.COLUMNS]
    assert steps["tokens"].to_pylist() == [0, 1, 2, 3, 4]
    assert series.schema.names == [column.name for column in SeriesColumns.COLUMNS]
    assert (series.num_rows, steps.schema.field("end_ps").metadata[b"unit"]) == (0, b"ps")


def test_nothing_is_left_of_a_failed_write(tmp_path):
    target = tmp_path / "out"
    target.write_text("old")
    with pytest.raises(RuntimeError), atomic_writer(target) as stream:
        stream.write("new")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert target.read_text() == "old"


def test_a_link_is_followed_and_permissions_stay(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    with atomic_writer(tmp_path / "link") as stream:
        stream.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    with atomic_writer(os.devnull) as stream:
        stream.write("gone")
    assert not os.path.isfile(os.devnull)


def test_check_finds_what_is_in_the_way(tmp_path):
    (tmp_path / "file").write_text("x")
    assert check_writable(tmp_path / "new" / "out.csv").parent.is_dir()
    assert check_writable_folder(tmp_path / "run" / "1").is_dir()
    assert check_writable(tmp_path / "file").read_text() == "x"
    assert not [path for path in tmp_path.rglob(".*")]
    for check, path in (
        (check_writable, "."),
        (check_writable, "file/out.csv"),
        (check_writable, "a\0b"),
        (check_writable_folder, "file"),
        (check_writable_folder, "file/run"),
    ):
        with pytest.raises(InputError) as caught:
            check(tmp_path / path)
        assert str(caught.value).startswith(str(tmp_path))


def test_a_dash_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"the output is -, .* give /dev/stdout"):
        check_writable("-")
    with pytest.raises(InputError, match="/dev/stdin is what is piped in"):
        load_dataset("-", known_models=(), granularity=16)
    assert not list(tmp_path.iterdir())


def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o555)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write everywhere")
        for check in (check_writable, check_writable_folder):
            with pytest.raises(InputError, match="cannot be written"):
                check(tmp_path / "x")
    finally:
        tmp_path.chmod(0o755)


def test_an_input_that_is_gone_is_named(build, info, tmp_path):
    results = build(3)
    with pytest.raises(InputError, match="no-such-file"):
        write_run_dir(
            tmp_path / "run",
            results,
            summary(results, info),
            RunRecord([], 0, ["no-such-file"], {}, {}),
        )
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_pyarrow_is_imported_only_where_it_is_used():
    ours = "llmsim.export.run_dir, llmsim.export.csv, llmsim.results.printed.text, llmsim.workload"
    code = f"import {ours}, sys; print({{'pyarrow', 'pandas', 'scipy', 'rich'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"

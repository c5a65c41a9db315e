"""Series that are written while the run goes on: the same files as at once, whatever comes in
between.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.columns import SeriesColumns
from llmsim.config.errors import InputError
from llmsim.export import series_files
from llmsim.export.parquet import write_columns
from llmsim.export.series_files import SeriesFiles
from llmsim.results.series_sink import Columns, KeptSeries

ROOT = Path(__file__).resolve().parents[2]


def rows(first: int, count: int) -> Columns:
    return {
        column.name: np.arange(first, first + count).astype(column.dtype)
        for column in SeriesColumns.COLUMNS
    }


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 25), max_size=8))
def test_the_file_does_not_depend_on_how_the_rows_came(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("series")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(series_files, "ROWS_AT_ONCE", 10)
        written = []
        for name, parts in (("parts", cuts), ("whole", [sum(cuts)])):
            (folder / name).mkdir()
            with SeriesFiles(folder / name, 0) as files:
                at = 0
                for part in parts:
                    files.add("series", rows(at, part))
                    at += part
                files.finish("series")
            written.append((folder / name / "series.parquet").read_bytes())
    assert written[0] == written[1]
    found = pq.read_table(folder / "parts" / "series.parquet")
    assert found["time_ps"].to_pylist() == list(range(sum(cuts)))
    assert [path.name for path in (folder / "parts").iterdir()] == ["series.parquet"]


def test_one_row_group_is_the_file_that_is_written_at_once(tmp_path: Path) -> None:
    write_columns(rows(0, 100), SeriesColumns.COLUMNS, tmp_path / "once.parquet")
    with SeriesFiles(tmp_path, 0) as files:
        files.add("series", rows(0, 60))
        files.add("series", rows(60, 40))
        files.finish("series")
    assert (tmp_path / "series.parquet").read_bytes() == (tmp_path / "once.parquet").read_bytes()


def test_what_is_not_finished_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series_files, "ROWS_AT_ONCE", 10)
    with pytest.raises(InputError, match="stopped"), SeriesFiles(tmp_path, 0) as files:
        files.add("series", rows(0, 35))
        assert len(list(tmp_path.iterdir())) == 1  # growing
        raise InputError("stopped")
    assert list(tmp_path.iterdir()) == []


def test_too_many_rows_are_counted_and_not_kept() -> None:
    kept = KeptSeries(50)
    kept.add("series", rows(0, 30))
    assert len(kept.columns("series")["time_ps"]) == 30 and not kept.too_long("series")
    kept.add("series", rows(30, 30))
    kept.add("series", rows(60, 5))
    assert (
        kept.columns("series") == {} and kept.too_long("series") and kept.num_rows["series"] == 65
    )


def test_days_in_milliseconds_go_to_the_folder_and_not_into_memory(tmp_path: Path) -> None:
    """Two requests, 50 minutes apart: three million rows of two groups, of which memory holds a
    part at a time.
    """
    pytest.importorskip("perfetto", reason="--timeline needs it")
    instance = {"model_name": "meta-llama/Llama-3.2-1B", "hardware": "H100"}
    cluster = {"link_bw": 450, "link_latency": 1000, "nodes": [{"instances": [instance]}]}
    (tmp_path / "c.json").write_text(json.dumps(cluster), encoding="utf-8")
    requests = [
        {"input_toks": 20, "output_toks": 4, "arrival_time_ns": at} for at in (0, 3000 * 10**9)
    ]
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in requests), encoding="utf-8"
    )
    command = [sys.executable, "-m", "llmsim", "run", "--cluster-config", str(tmp_path / "c.json")]
    command += [
        "--dataset",
        str(tmp_path / "t.jsonl"),
        "--cost-source",
        "roofline",
        "--log-interval",
        "0.001",
    ]
    command += [
        "--run-dir",
        str(tmp_path / "run"),
        "--timeline",
        str(tmp_path / "t.pftrace"),
        "--json",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert done.returncode == 2 and json.loads(done.stdout)["completed"] == 2
    assert (
        "--timeline" in done.stderr
        and "3000" in done.stderr
        and "give 0.0015 or more" in done.stderr
    )
    found = pq.ParquetFile(tmp_path / "run" / "series.parquet")
    assert 3_000_000 < found.metadata.num_rows < 3_000_100 and found.metadata.num_row_groups == 3
    assert sum(found.read(columns=["generation_tokens"])["generation_tokens"].to_pylist()) == 8
    assert not (tmp_path / "t.pftrace").exists()
    if before < 200_000:  # else another child of this process was larger
        assert peak_kb < 450_000

"""Throughput series: read with their places, counted from a run, and compared as defined."""

from pathlib import Path

import numpy as np
import pytest

from llmsim.api.preparation.prepare import trial
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InputError
from llmsim.validation.compare.throughput import (
    completed,
    emitted_series,
    read_series,
    series_errors,
    total_throughput,
)

ROOT = Path(__file__).resolve().parents[2]


def test_a_series_is_read_by_its_seconds(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("time_s\tthroughput\n0\t0\n1\t10.5\n3\t4\n")
    assert read_series(path).tolist() == [0, 10.5, 0, 4]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", r":1:1"),
        ("a b\n", r":1:1"),
        ("time_s\tthroughput\n1 x\n", r":2:1"),
        ("time_s\tthroughput\n\n-1\t3\n", r":3:1"),
        ("time_s\tthroughput\n0.5\t3\n", r"whole seconds"),
    ],
)
def test_a_bad_series_says_where(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "t.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=expected):
        read_series(path)


def test_errors_are_of_totals_and_of_seconds() -> None:
    recorded = np.array([0.0, 100.0, 100.0, 0.0])
    assert total_throughput(recorded) == 100.0
    errors = series_errors(np.array([0.0, 50.0, 100.0, 50.0]), recorded)
    assert errors.total == pytest.approx(
        100 * (200 / 3 / 100 - 1)
    ) and errors.series == pytest.approx(50.0)
    assert series_errors(recorded, recorded) == series_errors(np.array([0.0, 100, 100]), recorded)
    with pytest.raises(InputError, match="zero everywhere"):
        series_errors(recorded, np.zeros(3))


def test_a_series_of_whole_seconds_is_completed_by_what_it_lacks() -> None:
    printed = np.array([0.0, 40.0, 30.0, 0.0])
    assert completed(printed, 90).tolist() == [0, 40, 30, 20]
    assert completed(printed, 70) is printed
    with pytest.raises(InputError, match="lacks 31 of 101"):
        completed(printed, 101)


def test_a_run_emits_each_of_its_tokens_once() -> None:
    cluster, trace = (
        ROOT / "cluster_config" / "h100_llama31_8b.json",
        ROOT / "dataset" / "example_10.jsonl",
    )
    results = trial(checked_options(["--cluster-config", str(cluster), "--dataset", str(trace)]))
    series = emitted_series(results)
    assert series.sum() == results.requests.emitted_tokens.sum() and series[0] == 0
    assert len(series) - 1 == -(-int(results.requests.finish_ps.max()) // 10**12)

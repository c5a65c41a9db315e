"""Logs as strangers have them: packed, with failures, in other units, several in one file, in the
wrong order.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from made_logs import rows_of, run_arguments, write_engine_log
from test_readers import bench_json

from llmsim.cli import main, run_main
from llmsim.config.errors import InputError
from llmsim.validation import read_recording
from llmsim.validation.compare.compare import compare


def engine_lines(run: Path, tmp_path: Path) -> list[dict[str, Any]]:
    text = write_engine_log(rows_of(run / "out.csv"), tmp_path / "log.jsonl").read_text(
        encoding="utf-8"
    )
    return [json.loads(line) for line in text.splitlines()]


def written(lines: list[dict[str, Any]], path: Path) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_packed_logs_and_means_are_unpacked(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(run / "out.csv")
    plain = write_engine_log(rows, tmp_path / "log.jsonl")
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    found = compare(read_recording(packed), read_recording(plain), skip_seconds=0)
    assert all(error == 0 for error in found.errors().values())
    packed.write_bytes(gzip.compress(plain.read_bytes())[:200])
    with pytest.raises(InputError, match="damaged or cut short"):
        read_recording(packed)
    (tmp_path / "means.gz").write_bytes(gzip.compress(b'{"mean_tpot_ms": 20.0}'))
    assert main(["validate", str(tmp_path / "means.gz"), str(run / "out.csv")]) == 0
    assert "only means are known" in capsys.readouterr().out


def test_requests_without_tokens_failed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = engine_lines(run, tmp_path)
    lines[7] |= dict.fromkeys(("queued_ts", "first_token_ts", "last_token_ts"))
    lines[9] |= {"last_token_ts": None}
    log = written(lines, tmp_path / "log.jsonl")
    found = compare(read_recording(log), read_recording(run / "out.csv"))
    unsound = {one.code for one in found.findings if one.unsound}
    assert len(found.pairs.real) == 58 and "failed" in unsound and "counts" not in unsound
    assert run_main(run_arguments("--arrivals", log)) == 0
    lines[9]["arrival_time"] = None
    assert run_main(run_arguments("--arrivals", written(lines, log))) == 2
    assert 'request "9" failed, and the log has no arrival' in capsys.readouterr().err
    with pytest.raises(InputError, match="none of its 1 request"):
        read_recording(written([lines[7]], log))


def scaled(line: dict[str, Any], names: tuple[str, ...], factor: float) -> dict[str, Any]:
    return line | {name: line[name] * factor for name in names}


MONOTONIC = ("queued_ts", "first_token_ts", "last_token_ts")


@pytest.mark.parametrize(
    ("names", "factor"),
    [
        (("arrival_time",), 1e3),
        (("arrival_time", *MONOTONIC), 1e3),
        (("arrival_time", *MONOTONIC), 1e9),
        (MONOTONIC, 1e3),
        (MONOTONIC[1:], 1e-3),
    ],
)
def test_stamps_in_other_units_are_refused(
    run: Path, tmp_path: Path, names: tuple[str, ...], factor: float
) -> None:
    lines = [scaled(line, names, factor) for line in engine_lines(run, tmp_path)]
    with pytest.raises(InputError, match="must be in seconds"):
        read_recording(written(lines, tmp_path / "log.jsonl"))


def test_any_origin_of_the_clocks_will_do(run: Path, tmp_path: Path) -> None:
    lines = engine_lines(run, tmp_path)
    for line in lines:
        line["arrival_time"] -= 1_700_000_000
        line |= {name: line[name] + 5e6 for name in MONOTONIC}
    found = compare(
        read_recording(written(lines, tmp_path / "x")),
        read_recording(run / "out.csv"),
        skip_seconds=0,
    )
    assert found.sound and all(abs(error) < 1e-3 for error in found.errors().values())


def test_a_benchmark_in_milliseconds_contradicts_itself(run: Path, tmp_path: Path) -> None:
    data = bench_json(rows_of(run / "out.csv"))
    data["mean_ttft_ms"] = 1e3 * sum(data["ttfts"]) / len(data["ttfts"])
    (tmp_path / "b.json").write_text(json.dumps(data), encoding="utf-8")
    assert compare(read_recording(tmp_path / "b.json"), read_recording(run / "out.csv")).sound
    data["ttfts"] = [1e3 * ttft for ttft in data["ttfts"]]
    (tmp_path / "b.json").write_text(json.dumps(data), encoding="utf-8")
    found = compare(read_recording(tmp_path / "b.json"), read_recording(run / "out.csv"))
    assert "units" in {one.code for one in found.findings if one.unsound}


def test_several_results_in_one_file_and_the_wrong_order(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(run / "out.csv")
    path = written([bench_json(rows), bench_json(rows)], tmp_path / "b.json")
    with pytest.raises(InputError, match="2 results"):
        read_recording(path)
    log = write_engine_log(rows, tmp_path / "log.jsonl")
    assert main(["validate", str(run / "out.csv"), str(log)]) == 2
    assert "the recorded run comes first" in capsys.readouterr().err


def test_a_file_that_is_no_log_is_told_what_logs_there_are(tmp_path: Path) -> None:
    """A cluster file with comments, as `llmsim init` writes it, is no CSV that lacks a column."""
    path = tmp_path / "cluster.json"
    path.write_text('// devices\n{"nodes": []}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"cluster.json:1: the first line is no header of a known"):
        read_recording(path)


def test_a_missing_column_is_called_missing(run: Path, tmp_path: Path) -> None:
    lines = engine_lines(run, tmp_path)
    del lines[3]["queued_ts"]
    with pytest.raises(InputError, match=":4: queued_ts is missing"):
        read_recording(written(lines, tmp_path / "log.jsonl"))

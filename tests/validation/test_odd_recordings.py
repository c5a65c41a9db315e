"""Logs of one request, of equal ids, and of requests that take no time end with one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_logs import run_arguments, simulate

from llmsim.cli import main

NUM = 24
TRACE = f"synthetic:n={NUM},rate=4,input=fixed:100,output=fixed:20,seed=1"
Row = dict[str, Any]


def log_of(path: Path, change: Callable[[int, Row], None], num: int = NUM) -> Path:
    rows = []
    for number in range(num):
        at_s = 0.25 * number
        row: Row = {
            "request_id": f"bench-{number}",
            "input_toks": 100,
            "output_toks": 20,
            "arrival_time": 1.7e9 + at_s,
            "queued_ts": 500 + at_s,
            "first_token_ts": 500.05 + at_s,
            "last_token_ts": 500.4 + at_s,
        }
        change(number, row)
        rows.append(json.dumps(row))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def calibrate(log: Path) -> int:
    return main(["calibrate", str(log), *run_arguments(dataset=TRACE), "--skip-seconds", "0"])


def in_no_time(_number: int, row: Row) -> None:
    row["first_token_ts"] = row["last_token_ts"] = row["queued_ts"]


def the_id_of_the_next(number: int, row: Row) -> None:
    row["request_id"] = "bench-4" if number == 3 else row["request_id"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (in_no_time, "no request takes any time"),
        (the_id_of_the_next, 'the request id "bench-4" occurs twice'),
    ],
)
def test_calibrate_refuses_in_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[int, Row], None],
    said: str,
) -> None:
    assert calibrate(log_of(tmp_path / "log.jsonl", change)) == 2
    found = capsys.readouterr().err
    assert said in found and found.strip().count("\n") == 0 and "nan" not in found


def test_requests_of_a_cold_engine_are_counted_in_the_first_half(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def together(_number: int, row: Row) -> None:
        row["arrival_time"], row["queued_ts"] = 1.7e9, 500.0

    log = log_of(tmp_path / "log.jsonl", together)
    assert main(["calibrate", str(log), *run_arguments(dataset=TRACE)]) == 2
    assert f"{NUM // 2} of the {NUM // 2} requests of the first half" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_a_last_token_in_the_far_future_is_no_internal_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    def far(number: int, row: Row) -> None:
        row["last_token_ts"] = 1e19 if number == 5 else row["last_token_ts"]

    log = log_of(tmp_path / "log.jsonl", far)
    simulate("--run-dir", tmp_path / "run", dataset=TRACE)
    capsys.readouterr()
    other = {
        "validate": lambda: main(["validate", str(log), str(tmp_path / "run")]),
        "calibrate": lambda: calibrate(log),
    }
    assert other[command]() in (0, 3)
    said = capsys.readouterr()
    assert "internal error" not in said.err and "would explain" not in said.out


def test_first_tokens_at_the_end_are_no_limit_of_no_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def at_once(_number: int, row: Row) -> None:
        row["first_token_ts"] = row["last_token_ts"]

    log = log_of(tmp_path / "log.jsonl", at_once)
    simulate("--run-dir", tmp_path / "run", dataset=TRACE)
    capsys.readouterr()
    assert main(["validate", str(log), str(tmp_path / "run")]) == 0
    assert "max_num_seqs may be 0" not in capsys.readouterr().out

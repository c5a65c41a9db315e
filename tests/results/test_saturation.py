"""The note on a load above capacity: never well under it, always at twice it; sessions without
names of tokens.
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from llmsim.cli import main

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
ENGINES = {
    "vllm": (),
    "one at a time": ("--max-num-seqs", "1"),
    "few": ("--max-num-seqs", "16"),
    "no chunks": ("--no-enable-chunked-prefill",),
    "little KV": ("--num-gpu-blocks-override", "900"),
    "static": ("--scheduler", "static", "--max-num-seqs", "32"),
    "sarathi": ("--scheduler", "sarathi", "--max-num-seqs", "64"),
}
LENGTHS = "input=lognormal:220,output=lognormal:60"
NOTE = "the load is above what the cluster serves"


def run(dataset: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict:
    capsys.readouterr()
    arguments = ["run", "--cluster-config", str(CLUSTER), "--dataset", dataset, "--json", *more]
    assert main(arguments) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def notes(found: dict) -> list[str]:
    return [note for note in found["notes"] if note.startswith(NOTE)]


@cache
def _rates() -> dict[str, float]:
    return {}


def capacity_per_s(engine: str, capsys: pytest.CaptureFixture[str]) -> float:
    """Requests per second of a run whose requests are all there at once."""
    if engine not in _rates():
        crowd = run(f"synthetic:n=600,rate=100000,{LENGTHS},seed=9", capsys, *ENGINES[engine])
        _rates()[engine] = crowd["request_throughput"]
    return _rates()[engine]


def trace(engine: str, load: float, seed: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Poisson arrivals that last for many times as long as a request computes."""
    rate = load * capacity_per_s(engine, capsys)
    count = {"one at a time": 300, "vllm": 9000, "no chunks": 9000}.get(engine, 1500)
    return f"synthetic:n={count},rate={rate:.4f},{LENGTHS},seed={seed}"


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_there_is_no_note_well_under_capacity(
    engine: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for load in (0.3, 0.6):
        assert not notes(run(trace(engine, load, seed, capsys), capsys, *ENGINES[engine])), load


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_there_is_one_at_twice_the_capacity(
    engine: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for load in (2.0, 8.0):
        dataset = trace(engine, load, seed, capsys)
        found = notes(run(dataset, capsys, *ENGINES[engine]))
        assert len(found) == 1, load
        said = re.search(r"arrive at ([\d.e+]+)/s and finish at ([\d.e+]+)/s", found[0])
        assert said is not None
        arrived, served = (float(number) for number in said.groups())
        assert arrived == pytest.approx(load * capacity_per_s(engine, capsys), rel=0.2)
        assert served == pytest.approx(capacity_per_s(engine, capsys), rel=0.35)


def test_a_closed_loop_has_no_load_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = trace("few", 8.0, 1, capsys)
    assert not notes(run(dataset, capsys, *ENGINES["few"], "--max-concurrency", "16"))


def session_file(path: Path, *, named: bool) -> str:
    calls, stream = [], list(range(1, 400))
    for turn in range(3):
        end = 100 * (turn + 1)
        call: dict = {"input_toks": end - 20, "output_toks": 20, "tool_duration_ns": 0}
        if named:
            call |= {"input_tok_ids": stream[: end - 20], "output_tok_ids": stream[end - 20 : end]}
        calls.append(call)
    path.write_text(
        json.dumps({"session_id": "a", "arrival_time_ns": 0, "sub_requests": calls}) + "\n"
    )
    return str(path)


def test_sessions_given_by_lengths_alone_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = run(session_file(tmp_path / "bare.jsonl", named=False), capsys)
    assert [
        note
        for note in bare["notes"]
        if note.startswith("2 later calls of sessions are given by lengths alone")
    ]
    assert bare["prefix_cache"]["hit_tokens"] == 0
    named = run(session_file(tmp_path / "named.jsonl", named=True), capsys)
    assert not [note for note in named["notes"] if "lengths alone" in note]
    assert named["prefix_cache"]["hit_tokens"] > 0
    without = run(
        session_file(tmp_path / "bare.jsonl", named=False), capsys, "--no-enable-prefix-caching"
    )
    assert not [note for note in without["notes"] if "lengths alone" in note]

"""One of something is said in the singular: in words of counts, and in what commands print."""

import json
from pathlib import Path

import pytest

import llmsim
from llmsim.cli import main
from llmsim.plurals import counted, grouped, plural

ONE = "synthetic:n=1,rate=1,input=fixed:1,output=fixed:2,seed=1"


def test_words_follow_their_counts() -> None:
    assert [counted(count, "request") for count in (0, 1, 2)] == [
        "0 requests",
        "1 request",
        "2 requests",
    ]
    assert counted(1, "switch", "switches") == "1 switch"
    assert counted(2, "switch", "switches") == "2 switches"
    assert grouped(1, "token") == "1 token" and grouped(2000, "token") == "2,000 tokens"
    assert plural(1, "is", "are") == "is" and plural(0, "is", "are") == "are"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("one") / "run"
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.2-1B", "H100")
    llmsim.run(cluster, ONE, cost_source="roofline").save(made)
    return made


def test_a_run_of_one_request_is_said_in_the_singular(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(folder), str(folder)]) == 0
    assert "1 request pair in 1 pair of runs; 0 of" in capsys.readouterr().out
    assert main(["validate", str(folder), str(folder)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 request: ") and "only 1 request: percentiles say little" in said


def test_a_trace_of_one_session_is_said_in_the_singular(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [{"input_toks": 8, "output_toks": 2, "tool_duration_ns": 5}] * 2
    trace = tmp_path / "one.jsonl"
    trace.write_text(
        json.dumps({"session_id": "a", "arrival_time_ns": 0, "sub_requests": calls}) + "\n",
        encoding="utf-8",
    )
    assert main(["trace", "inspect", str(trace)]) == 0
    assert "2 in 1 session, " in capsys.readouterr().out
    result = llmsim.run(
        llmsim.Cluster.build("meta-llama/Llama-3.2-1B", "H100"), trace, cost_source="roofline"
    )
    [note] = [one for one in result.notes if "given by lengths alone" in one]
    assert note.startswith("1 later call of a session is given by lengths alone: it finds nothing")


def test_the_summary_of_one_request(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    fields = llmsim.Cluster.build("meta-llama/Llama-3.2-1B", "H100").fields()
    path.write_text(json.dumps(fields), encoding="utf-8")
    arguments = ["run", "--cluster-config", str(path), "--dataset", ONE]
    assert main([*arguments, "--cost-source", "roofline"]) == 0
    assert "1 of 1 request in " in capsys.readouterr().out
    assert main([*arguments, "--cost-source", "roofline", "-v"]) == 0
    assert "0 of 1 token hit" in capsys.readouterr().out

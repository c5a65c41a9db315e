"""Classes of requests: targets as they are written, and figures against those of each class
alone.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from results.conftest import make_results

import llmsim
from llmsim.cli import main
from llmsim.config.errors import InputError
from llmsim.core import Results
from llmsim.results.requests.classes import Objectives, classes_block, goodput, parse_objectives
from llmsim.results.requests.goodput import goodput_block
from llmsim.workload.spec_text import parse_synthetic
from llmsim.workload.synthetic.workload import generate

CLUSTER = str(Path(__file__).parents[2] / "cluster_config" / "h100_llama31_8b.json")
MS = 10**9
TARGETS = Objectives({"ttft": 9 * MS}, {"chat": {"ttft": 5 * MS, "e2el": 60 * MS}})


def with_classes(results: Results, names: list[str]) -> Results:
    return dataclasses.replace(results, workload=replace(results.workload, slo_class=names))


def alone(results: Results, wanted: str) -> Results:
    """A run's requests of one class, and no others."""
    workload = results.workload
    assert workload.slo_class is not None
    rows = np.flatnonzero(np.array(workload.slo_class) == wanted)
    columns = {name: column[rows] for name, column in vars(results.requests).items()}
    times = {"arrival_ps": workload.arrival_ps[rows], "input_tokens": workload.input_tokens[rows]}
    return dataclasses.replace(
        results,
        workload=replace(workload, **times, slo_class=[wanted] * len(rows)),
        requests=type(results.requests)(**columns),
    )


def test_a_class_has_the_figures_of_its_requests_alone() -> None:
    names = [("chat", "batch", "")[row % 3] for row in range(90)]
    results = with_classes(make_results(90, seed=4), names)
    block = classes_block(results, TARGETS)
    assert list(block) == ["batch", "chat"]
    for name, figures in block.items():
        (expected,) = classes_block(alone(results, name), TARGETS).values()
        spans = {"request_throughput", "output_throughput", "goodput"}  # those of the whole run
        assert {k: v for k, v in figures.items() if k not in spans} == {
            k: v for k, v in expected.items() if k not in spans
        }
        assert figures["goodput"]["good"] == expected["goodput"]["good"]
        assert figures["goodput"]["shares"] == expected["goodput"]["shares"]
        assert figures["requests"] == 30


def test_goodput_counts_each_request_by_its_class() -> None:
    names = [("chat", "batch", "")[row % 3] for row in range(90)]
    results = with_classes(make_results(90, seed=5), names)
    both = goodput(results, TARGETS)
    one_class = goodput(results, Objectives({}, TARGETS.classes_ps))
    assert both is not None and one_class is not None
    chat = goodput_block(alone(results, "chat"), TARGETS.classes_ps["chat"])
    others = [goodput_block(alone(results, name), {"ttft": 9 * MS}) for name in ("batch", "")]
    assert chat is not None and 0 < chat["good"] < 30
    assert both["good"] == chat["good"] + sum(one["good"] for one in others if one)
    assert both["share"] == pytest.approx(both["good"] / 90, abs=1e-6)
    assert one_class["good"] == chat["good"]
    assert one_class["share"] == pytest.approx(chat["good"] / 30, abs=1e-6)
    assert goodput(results, Objectives({"ttft": 9 * MS})) == goodput_block(
        results, {"ttft": 9 * MS}
    )


def test_targets_are_written_by_class() -> None:
    found = parse_objectives(["chat=ttft:5,tpot:1; batch=e2el:60000", "ttft:7"])
    assert found.targets_ps == {"ttft": 7 * MS}
    assert found.classes_ps == {
        "chat": {"ttft": 5 * MS, "tpot": MS},
        "batch": {"e2el": 60_000 * MS},
    }
    declared = Objectives(found.targets_ps, {"chat": {"ttft": MS}}).over({"batch": {"tpot": 2}})
    assert declared.of("batch") == {"tpot": 2} and declared.of("x") == {"ttft": 7 * MS}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("chat=", "--goodput chat is empty"),
        ("=ttft:5", '"" is no name of a class'),
        ("a b=ttft:5", '"a b" is no name'),
        ("chat=ttft:5;chat=tpot:5", "the class chat is given twice"),
        ("chat=attft:5", 'chat: "attft:5" has no known latency'),
        ("ttft=500,tpot=30", '"ttft=500" has no colon; write NAME:MILLISECONDS'),
        ("attft:5;chat=ttft:5", "attft counts sessions"),
        ("chat=ttft:0", "chat: "),
    ],
)
def test_targets_that_cannot_be(text: str, named: str) -> None:
    with pytest.raises(InputError, match="--goodput") as error:
        parse_objectives([text], known=("ttft", "tpot", "e2el", "attft"))
    assert named in str(error.value)


def test_a_class_that_no_request_has_is_refused() -> None:
    TARGETS.check({"chat", ""}, "--goodput")
    with pytest.raises(InputError, match='"chta" \\(did you mean "chat"'):
        Objectives({}, {"chta": {"ttft": 1}}).check({"chat"}, "--goodput")


def test_classes_of_a_synthetic_load() -> None:
    text = "synthetic:n=4000,rate=10,classes=chat:7|batch:3,input=fixed:20|uniform:90-99,output=5"
    spec = parse_synthetic(text)
    assert parse_synthetic(spec.text) == spec
    whole, first = generate(spec), generate(spec, limit=700)
    assert whole.slo_class is not None and first.slo_class == whole.slo_class[:700]
    assert first.input_tokens.tolist() == whole.input_tokens[:700].tolist()
    chat = np.array(whole.slo_class) == "chat"
    assert chat.mean() == pytest.approx(0.7, abs=0.03)
    assert set(whole.input_tokens[chat].tolist()) == {20}
    assert set(whole.input_tokens[~chat].tolist()) == set(range(90, 100))
    plain = generate(parse_synthetic("synthetic:n=4000,rate=10,input=fixed:20,output=5"))
    assert plain.slo_class is None and plain.arrival_ps.tolist() == whole.arrival_ps.tolist()


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("classes=a:1|a:2,input=5", "names a class twice"),
        ("classes=a:0,input=5", "the share '0'"),
        ("classes=a,input=5", "the share ''"),
        ("classes=:1,input=5", "has no name in ':1'"),
        ("classes=a:1|b:1,input=5|6|7", '"input" has 3 distributions, and "classes" has 2'),
        ("input=5|6", '"input" has 2 distributions, and "classes" has 0'),
    ],
)
def test_classes_that_cannot_be_drawn(part: str, named: str) -> None:
    with pytest.raises(InputError) as error:
        parse_synthetic(f"synthetic:n=5,rate=1,{part},output=5")
    assert named in str(error.value)


def lines(tmp_path: Path) -> str:
    session = {"arrival_time_ns": 5, "slo_class": "batch", "sub_requests": []}
    calls = [{"input_toks": 90, "output_toks": 9}, {"input_toks": 99, "output_toks": 9}]
    session["sub_requests"] = [calls[0], {**calls[1], "slo_class": "chat"}]
    plain = {"arrival_time_ns": 9, "input_toks": 30, "output_toks": 7}
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, (session, plain))))
    return str(path)


def test_a_run_by_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, run_dir, csv = lines(tmp_path), tmp_path / "run", tmp_path / "out.csv"
    words = ["run", "--cluster-config", CLUSTER, "--dataset", trace]
    words += ["--run-dir", str(run_dir), "--output", str(csv), "--json"]
    assert main([*words, "--goodput", "batch=ttft:5000"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["classes"]["batch"]["goodput"]["share"] == 1.0
    assert summary["classes"]["chat"]["goodput"] is None
    assert summary["goodput"]["good"] == 1 and summary["goodput"]["share"] == 1.0
    frame = llmsim.run(CLUSTER, trace).requests
    shown = ["batch", "chat", None]
    assert [name if isinstance(name, str) else None for name in frame["slo_class"]] == shown
    first, *rest = csv.read_text().splitlines()
    assert first.endswith("ITL,SLO class")
    assert sorted(line.rpartition(",")[2] for line in rest) == ["", "batch", "chat"]
    converted = tmp_path / "again.jsonl"
    assert main(["trace", "convert", trace, str(converted)]) == 0
    again = llmsim.run(CLUSTER, str(converted)).requests
    assert again["slo_class"].equals(frame["slo_class"])
    assert main(["report", str(run_dir), "-o", str(tmp_path / "r.html")]) == 0
    assert "batch: TTFT within 5000 ms" in (tmp_path / "r.html").read_text()


def test_targets_of_the_cluster_file(tmp_path: Path) -> None:
    fields: dict[str, Any] = json.loads(Path(CLUSTER).read_text())
    fields["slo_classes"] = {"batch": {"ttft_ms": 5000}, "chat": {"e2el_ms": 1e-6}, "x": {}}
    with pytest.raises(InputError, match=r"slo_classes\.x.*states no target"):
        llmsim.run(fields, lines(tmp_path))
    fields["slo_classes"].pop("x")
    found = llmsim.run(fields, lines(tmp_path)).summary["classes"]
    assert [found[name]["goodput"]["share"] for name in ("batch", "chat")] == [1.0, 0.0]
    fields["slo_classes"]["night"] = {"ttft_ms": 1}
    (note,) = [one for one in llmsim.run(fields, lines(tmp_path)).notes if "slo_classes" in one]
    assert note.endswith(
        'slo_classes.night changes nothing: no request of the trace has slo_class "night"'
    )
    found = llmsim.run(fields, lines(tmp_path), goodput=["chat=e2el:60000"]).summary["classes"]
    assert [found[name]["goodput"]["share"] for name in ("batch", "chat")] == [1.0, 1.0]
    trace = tmp_path / "bad.jsonl"
    trace.write_text('{"input_toks": 1, "output_toks": 1, "arrival_time_ns": 0, "slo_class": ""}')
    with pytest.raises(InputError, match=r'bad\.jsonl:1:59: "slo_class" is ""'):
        llmsim.run(CLUSTER, str(trace))

"""Searches over a model's deployments: nothing that matters is pruned or dropped, rates and
capacities are those of runs, and a search that is killed goes on.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmsim.cli import main
from llmsim.cli.run.point import ended
from llmsim.config.errors import InputError
from llmsim.search.apply import load_base, run_of
from llmsim.search.point import Asked
from llmsim.search.prune import Pruner
from llmsim.search.rates import at_rate, own_rate
from llmsim.search.space import Space, load_space
from llmsim.sizing.bounds import COMPUTE, MEMORY, TPOT, TTFT
from llmsim.sizing.measure import Bench

Json = dict[str, Any]
FILE: Json = {
    "model": "Qwen/Qwen3-8B",
    "hardware": "H100",
    "gpus": 8,
    "split_step": 2,
    "tp": [1, 2],
    "pp": [1],
    "dataset": "synthetic:n=160,rate=1,input=lognormal:400,output=lognormal:40,seed=5",
    "options": {"--cost-source": "roofline", "--disable-term": ["launches", "kv_reads"]},
    "vary": {"--max-num-seqs": [16, 64], "rate": [20, 80, 320]},
    "maximise": ["output_throughput"],
    "minimise": ["p95_tpot_ms"],
    "require": {"p95_ttft_ms": {"at_most": 300}},
    "halving": {"requests": [40, 160], "margin": 0.2},
}


def written(folder: Path, **fields: Any) -> Path:
    path = folder / "s.yaml"
    kept = {name: value for name, value in {**FILE, **fields}.items() if value is not None}
    path.write_text(yaml.safe_dump(kept, sort_keys=False), encoding="utf-8")
    return path


def space(folder: Path, **fields: Any) -> Space:
    return load_space(written(folder, **fields))


def searched(path: Path, *more: str) -> Json:
    out = path.parent / "out"
    assert main(["search", str(path), "-o", str(out), "-j", "1", *more]) == 0
    found: Json = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return found


def run(folder: Path, asked: Space, point: Json) -> Any:
    """The run of a point, in this process."""
    found = run_of(load_base(asked), point)
    figures = ("p95_ttft_ms",)
    return ended(Bench(), Asked(found.cluster, str(folder / "c.json"), found.words, figures))


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Json]:
    path = written(tmp_path_factory.mktemp("halved"))
    return path, searched(path)


def test_the_front_is_that_of_running_every_point_whole(
    halved: tuple[Path, Json], tmp_path: Path
) -> None:
    path, found = halved
    whole = searched(written(tmp_path, halving={"requests": [160], "bounds": False}))

    def front(result: Json, architecture: str) -> list[Json]:
        trials = [result["trials"][i] for i in result["fronts"][architecture]]
        return [{"point": one["point"], "values": one["values"]} for one in trials]

    for architecture in ("colocated", "pd"):
        assert front(found, architecture) == front(whole, architecture) != []
    first, last = found["rungs"]
    drawn = first["points"] + sum(first["pruned"].values())
    assert first["requests"] == 40 and last["points"] - last["stopped"] < first["points"] < drawn
    assert whole["rungs"][0]["pruned"] == {} and whole["rungs"][0]["stopped"] == 0
    assert found["candidates"] == drawn + sum(found["pruned"].values())
    best = found["pareto"][0]
    text = (path.parent / "out" / best["folder"] / "cluster.json").read_text(encoding="utf-8")
    roles = {
        instance.get("pd_type")
        for node in json.loads(text)["nodes"]
        for instance in node["instances"]
    }
    assert roles == ({"prefill", "decode"} if "prefill" in best["point"]["deployment"] else {None})


def test_the_same_call_runs_nothing_again(
    halved: tuple[Path, Json], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise AssertionError("a point was run again")

    path, found = halved
    monkeypatch.setattr(subprocess, "Popen", nothing)
    capsys.readouterr()
    assert searched(path) == found
    shown = capsys.readouterr().out
    assert (
        f"{found['candidates']} candidates, " in shown and "points run with 160 requests" in shown
    )


def test_a_search_that_is_killed_loses_nothing(halved: tuple[Path, Json], tmp_path: Path) -> None:
    path = written(tmp_path)
    journal = tmp_path / "out" / "trials.jsonl"
    command = [sys.executable, "-m", "llmsim", "search", str(path), "-o", str(tmp_path / "out")]
    for lines in (3, 12):
        process = subprocess.Popen([*command, "-j", "2"], stdout=subprocess.DEVNULL)
        while process.poll() is None and (
            not journal.exists() or journal.read_bytes().count(b"\n") < lines
        ):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert journal.read_bytes().count(b"\n") >= lines
    assert {**searched(path), "space": ""} == {**halved[1], "space": ""}


SLOW = {"p95_ttft_ms": {"at_most": 20}, "p99_tpot_ms": {"at_most": 4}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": "meta-llama/Llama-3.1-70B"}, MEMORY),
        ({"require": SLOW}, TPOT),
        ({"require": SLOW, "dataset": FILE["dataset"].replace(":400", ":3000")}, TTFT),
        (
            {"vary": {"rate": [20, 4000]}, "require": SLOW | {"p99_tpot_ms": {"at_most": 99}}},
            COMPUTE,
        ),
    ],
)
def test_a_pruned_point_is_no_answer(fields: Json, reason: str, tmp_path: Path) -> None:
    asked = space(tmp_path, **fields)
    pruner = Pruner(asked)
    kept, pruned = pruner.kept(), [asked.at(int(place)) for place in pruner.pruned(reason)]
    assert pruner.counts.total() == asked.size - len(kept)
    assert len(pruned) == pruner.counts[reason] > 0 and pruner.examples[reason]
    for point in (pruned[0], pruned[-1]):
        found = run(tmp_path, asked, point)
        if reason == MEMORY:
            assert found.verdict and "does not fit" in found.said
            continue
        require = asked.file.require.items()
        assert any(found.summary[name] > bound.at_most for name, bound in require)


def test_a_rate_is_that_of_the_dataset(tmp_path: Path) -> None:
    asked = space(tmp_path)
    (deployment, *_) = asked.plans
    found = run(tmp_path, asked, {"deployment": deployment, "rate": 80})
    text = FILE["dataset"].replace("rate=1", "rate=80")
    point = {"deployment": deployment, "--dataset": text}
    assert found.summary["duration"] == run(tmp_path, asked, point).summary["duration"]
    assert at_rate("trace:a,b.jsonl,rate=3,seed=2", 5.0) == "trace:a,b.jsonl,seed=2,rate=5.0"
    trace = str(Path(__file__).resolve().parents[2] / "dataset" / "chat_h100_300.jsonl")
    doubled = at_rate(trace, 2 * own_rate(trace))
    assert own_rate(doubled) == pytest.approx(2 * own_rate(trace))
    with pytest.raises(InputError, match="has a speedup"):
        at_rate(f"trace:{trace},speedup=2", 5.0)


def test_a_capacity_is_between_a_rate_that_is_within_the_bounds_and_one_that_is_not(
    tmp_path: Path,
) -> None:
    load = {"rate": {"from": 1, "to": 2000}, "until": {"p95_ttft_ms": {"at_most": 100}}}
    fields = {"vary": {}, "load": load, "halving": None, "architecture": "colocated", "gpus": 2}
    wanted = {"maximise": ["capacity_rps_per_device", "capacity_rps_per_usd_per_hour"]}
    path = written(tmp_path, **fields, **wanted, minimise=[], require={})
    found = searched(path)
    asked = load_space(path)
    assert len(found["trials"]) == 2
    for trial in found["trials"]:
        rate = trial["values"]["capacity_rps_per_device"] * 2
        at, beyond = (
            run(tmp_path, asked, {**trial["point"], "rate": r}) for r in (rate, rate * 1.15)
        )
        assert at.summary["p95_ttft_ms"] <= 100 < beyond.summary["p95_ttft_ms"]
        dollars = at.summary["cost"]["price_per_hour"]
        assert trial["values"]["capacity_rps_per_usd_per_hour"] == pytest.approx(rate / dollars)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cluster": "c.json"}, "names cluster and model and hardware and gpus; give either"),
        ({"gpus": 0}, "gpus is 0; it must be from 1 to 65536"),
        ({"gpus": 7, "tp": [2]}, "no layout of Qwen/Qwen3-8B has exactly 7 devices"),
        ({"architecture": ["colocate"]}, 'architecture is "colocate" (did you mean'),
        ({"vary": {"replicas": [1]}}, "vary names replicas; beside a model"),
        ({"halving": {"requests": [5, 5]}}, "halving.requests is [5, 5]; give ascending"),
        ({"load": {"rate": {"from": 1, "to": 9}, "until": "x"}}, "vary and load both name rate"),
        (
            {"vary": {}, "load": {"rate": {"from": 1, "to": 9}, "until": "x"}},
            'load.until is "x"; give bounds, or vidur',
        ),
        ({"hardware": "H1000"}, "H1000"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(fields: Json, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        space(tmp_path, **fields)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def labels(asked: Space, architecture: str) -> set[str]:
    return {one.label for one in asked.plans.values() if one.architecture == architecture}


AFD: Json = {
    "gpus": 4,
    "architecture": ["colocated", "pd", "afd"],
    "split_step": 1,
    "ffn": [1, 2],
    "vary": {"rate": [80]},
    "require": {"p95_ttft_ms": {"at_most": 2000}},
}


def test_attention_and_ffn_apart_are_an_architecture(tmp_path: Path) -> None:
    asked = space(tmp_path, **AFD)
    assert labels(asked, "afd") == {
        "2 x (attention TP1, FFN TP1)",
        "1 x (attention TP2, FFN TP2)",
        "1 x (attention DP2, FFN TP2)",
        "1 x TP1 prefill + 1 x (attention TP1, FFN TP2) decode",
        "1 x TP1 prefill + 1 x (attention TP2, FFN TP1) decode",
        "1 x TP1 prefill + 1 x (attention DP2, FFN TP1) decode",
        "2 x TP1 prefill + 1 x (attention TP1, FFN TP1) decode",
        "1 x TP2 prefill + 1 x (attention TP1, FFN TP1) decode",
    }
    assert labels(asked, "colocated") and labels(asked, "pd")
    assert not labels(space(tmp_path, **{**AFD, "pp": [2]}), "afd")


def test_the_front_of_afd_is_that_of_an_exhaustive_loop(tmp_path: Path) -> None:
    """No pruning, no rungs and no workers in the loop; only the rule of the front is shared."""
    asked = space(tmp_path, **{**AFD, "architecture": ["afd"]})
    whole = []
    for point in asked.grid():
        figures = run(tmp_path, asked, point).summary
        if figures["p95_ttft_ms"] <= 2000:
            whole.append((point, figures["output_throughput"], figures["p95_tpot_ms"]))
    front = [
        point
        for point, tokens, tpot in whole
        if not any(
            more >= tokens and less <= tpot and (more, less) != (tokens, tpot)
            for _, more, less in whole
        )
    ]
    picture = tmp_path / "front.svg"
    path = written(tmp_path, **{**AFD, "architecture": ["afd"]})
    found = searched(path, "--plot", str(picture))
    assert all(point["deployment"] in picture.read_text("utf-8") for point in front)
    points = [found["trials"][i]["point"] for i in found["fronts"]["afd"]]
    assert sorted(map(str, points)) == sorted(map(str, front)) and 1 <= len(front) < len(whole)
    folder = tmp_path / "out" / found["pareto"][0]["folder"]
    text = (folder / "cluster.json").read_text(encoding="utf-8")
    roles = {one["pd_type"] for node in json.loads(text)["nodes"] for one in node["instances"]}
    assert {"attention", "ffn"} <= roles


def test_a_front_of_one_objective_is_no_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, **AFD, minimise=[])
    command = ["search", str(path), "-o", str(tmp_path / "out"), "--plot", str(tmp_path / "f.png")]
    assert main(command) == 2
    assert "has one objective, output_throughput; a picture" in capsys.readouterr().err
    assert not (tmp_path / "f.png").exists() and not (tmp_path / "out" / "result.json").exists()


def test_experts_that_do_not_fit_the_ffn_devices_are_pruned(tmp_path: Path) -> None:
    """57 GB of experts do not fit one device of 40 GB, while two hold them."""
    mixture = {"model": "Qwen/Qwen3-30B-A3B", "hardware": "A100-40GB-SXM", "architecture": "afd"}
    asked = space(tmp_path, **{**AFD, **mixture, "require": None})
    pruner = Pruner(asked)
    kept = {str(asked.at(int(place))["deployment"]) for place in pruner.kept()}
    pruned = set(asked.plans) - kept
    small = {label for label in asked.plans if "FFN TP1" in label}
    whole = {label for label in asked.plans if "TP1 prefill" in label}
    assert pruned == small | whole and set(pruner.counts) == {MEMORY}
    assert set(asked.plans) - pruned


def test_ffn_without_afd_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ffn goes with the architecture afd"):
        space(tmp_path, architecture=["colocated"], ffn=[1])


def test_attention_and_ffn_over_nodes(tmp_path: Path) -> None:
    """Two attention instances and one FFN instance of two devices need three nodes of two."""
    asked = space(
        tmp_path,
        **{
            **AFD,
            "gpus": 6,
            "devices_per_node": 2,
            "architecture": ["afd"],
            "tp": [2],
            "ffn": [2],
            "attention_instances": [2],
            "afd_micro_batches": [1, 3],
        },
    )
    assert set(asked.plans) == {
        f"1 x (2 attention {one}, FFN TP2, {lanes} lanes)"
        for one in ("TP2", "DP2", "TP2 SP")
        for lanes in (1, 3)
    }
    for plan in asked.plans.values():
        nodes = plan.fields()["nodes"]
        roles = [[one["pd_type"] for one in node["instances"]] for node in nodes]
        assert roles == [["attention"], ["attention"], ["ffn"]]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention_instances": [0]}, "attention_instances has 0; give 1 to 1024"),
        ({"ffn_instances": [1, 5000]}, "ffn_instances has 5000; give 1 to 1024"),
        ({"afd_micro_batches": [17]}, "afd_micro_batches has 17; give 1 to 16"),
        ({"ffn_instances": 2}, "ffn_instances"),
        ({"afd_micro_batches": ["2"]}, "afd_micro_batches"),
        ({"architecture": ["pd"], "ffn": [], "ffn_instances": [2]}, "ffn_instances goes with"),
    ],
)
def test_what_units_cannot_be(tmp_path: Path, keys: Json, said: str) -> None:
    with pytest.raises(InputError) as caught:
        space(tmp_path, **{**AFD, **keys})
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"require": {"p99_tpot_ms": {"at_most": 0.01}}},
            "all 84 points were pruned without a run, 84 because of: TPOT below the speed of ",
        ),
        (
            {"model": "meta-llama/Llama-3.1-70B", "gpus": 1, "vary": {}},
            "; give more gpus, or hardware with more memory; the counts are in ",
        ),
    ],
)
def test_a_search_of_which_nothing_runs_says_why(
    fields: Json, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, **fields)
    assert main(["search", str(path), "-o", str(tmp_path / "out"), "-j", "1"]) == 3
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and len(error) < 500

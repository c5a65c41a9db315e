"""Searches: every point of a small space, deterministic choice in a large one, resumed, and nothing dropped."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_space import cluster, space

from llmsim.cli import main
from llmsim.search import study
from llmsim.search.space import Space
from llmsim.search.trials import Trial

Json = dict[str, Any]


def trial(point: Json, **values: float) -> Trial:
    return Trial(point, "feasible", "", values, "")


def quadratic(points: Sequence[Json]) -> list[Trial]:
    """Best at block size 320; above 400 nothing runs."""
    found = []
    for point in points:
        size = point["engine.block_size"]
        if size > 400:
            found.append(Trial(point, "infeasible", "too large", {}, ""))
        else:
            found.append(trial(point, devices=(size - 320) ** 2 + (0 if point["--scheduler"] == "b" else 5000)))
    return found


def large(folder: Path, **fields: Any) -> Space:
    vary = {"engine.block_size": {"from": 1, "to": 1000}, "--scheduler": ["a", "b", "c"]}
    return space(folder, vary=vary, **fields)


def test_of_a_large_space_the_same_points_are_chosen_and_they_get_better(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="spaces too large to try all of need it")
    asked = large(tmp_path)
    first = study.search(asked, quadratic, 96, seed=3)
    assert first == study.search(asked, quadratic, 96, seed=3)
    assert [one.point for one in first] != [one.point for one in study.search(asked, quadratic, 96, seed=4)]
    assert len({json.dumps(one.point) for one in first}) == len(first)
    assert {one.state for one in first} == {"feasible", "infeasible"}
    tried = [one.values["devices"] for one in first if one.state == "feasible"]
    third = len(tried) // 3
    assert sum(tried[-third:]) < sum(tried[:third]) / 2
    (best, *_) = study.best(asked, first)
    assert first[best].point["--scheduler"] == "b" and first[best].values["devices"] == min(tried)


def test_requirements_and_several_objectives_in_a_large_space(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="spaces too large to try all of need it")
    asked = large(tmp_path, minimise=["devices", "mean_ttft_ms"], require={"devices": {"at_least": 100}})

    def two(points: Sequence[Json]) -> list[Trial]:
        sizes = [point["engine.block_size"] for point in points]
        return [
            Trial(point, "feasible" if size >= 100 else "short", "", {"devices": size, "mean_ttft_ms": 5000 / size}, "")
            for point, size in zip(points, sizes, strict=True)
        ]

    found = study.search(asked, two, 64, seed=0)
    assert found == study.search(asked, two, 64, seed=0)
    front = study.best(asked, found)
    assert len(front) > 3 and all(found[i].state == "feasible" for i in front)


def test_any_number_between_two(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="ranges without steps need it")
    asked = space(tmp_path, vary={"engine.gpu_memory_utilization": {"from": 0.5, "to": 0.9}})
    found = study.search(
        asked, lambda points: [trial(p, devices=abs(p["engine.gpu_memory_utilization"] - 0.7)) for p in points], 40, 1
    )
    assert all(0.5 <= one.point["engine.gpu_memory_utilization"] <= 0.9 for one in found)
    assert found[study.best(asked, found)[0]].values["devices"] < 0.02


def test_without_optuna_a_large_space_says_what_would_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        Exception, match=r"3000 points, --trials is 10: give --trials.*pip install \"llmsim\[search\]\""
    ):
        study.search(large(tmp_path), quadratic, 10, 0)


def written(folder: Path, **fields: Any) -> Path:
    """A search of four points on disk: two that run, of which one misses the target, and two that cannot."""
    (folder / "c.json").write_text(json.dumps(cluster()), encoding="utf-8")
    search = {
        "cluster": "c.json",
        "dataset": "synthetic:n=40,rate=80,input=fixed:3000,output=fixed:20,seed=1",
        "options": {"--cost-source": "roofline", "--goodput": "ttft:100,tpot:40"},
        "vary": {"replicas": [1, 4], "nodes[0].instances[0].tp_size": [1, 3]},
        "minimise": ["devices"],
        "require": {"goodput.share": {"at_least": 0.9}},
    }
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(search | fields, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    assert main(["search", str(written(folder)), "-o", str(folder / "out"), "-j", "2"]) == 0
    return folder


def result(folder: Path) -> Json:
    found: Json = json.loads((folder / "out" / "result.json").read_text(encoding="utf-8"))
    return found


def test_every_point_is_there_with_its_reason(searched: Path) -> None:
    found = result(searched)
    states = {(t["point"]["replicas"], t["point"]["nodes[0].instances[0].tp_size"]): t for t in found["trials"]}
    assert len(states) == 4 and found["tried"] == "all"
    assert states[4, 1]["state"] == "feasible" and states[4, 1]["values"]["devices"] == 4
    assert states[1, 1]["state"] == "short" and "at least 0.9 is required" in states[1, 1]["reason"]
    for replicas in (1, 4):
        assert states[replicas, 3]["state"] == "infeasible" and "tp must divide" in states[replicas, 3]["reason"]
    assert [found["trials"][one["trial"]]["point"] for one in found["pareto"]] == [states[4, 1]["point"]]


def test_a_point_is_the_run_that_its_cluster_file_gives(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = next(t for t in result(searched)["trials"] if t["state"] == "short")
    words = ["run", "--cluster-config", str(searched / "out" / one["folder"] / "cluster.json"), "--json"]
    words += ["--cost-source=roofline", "--goodput=ttft:100,tpot:40"]
    words += ["--dataset=synthetic:n=40,rate=80,input=fixed:3000,output=fixed:20,seed=1"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["goodput"]["share"] == one["values"]["goodput.share"] < 0.9


def test_the_same_call_runs_nothing_again(
    searched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (searched / "out" / "result.json").read_bytes()
    journal = searched / "out" / "trials.jsonl"
    lines = journal.read_text(encoding="utf-8")
    journal.write_text(lines + '{"point": {"repl', encoding="utf-8")  # killed while it wrote

    def nothing(*_: object, **__: object) -> None:
        raise AssertionError("a point was run again")

    monkeypatch.setattr(subprocess, "Popen", nothing)
    assert main(["search", str(searched / "s.yaml"), "-o", str(searched / "out")]) == 0
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 6 and table[2].startswith("| best | 4 | 1 | 4 | ")
    assert (searched / "out" / "result.json").read_bytes() == before
    assert journal.read_text(encoding="utf-8").count("\n") == lines.count("\n")


def test_another_search_does_not_mix_with_it(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = searched / "other"
    folder.mkdir()
    path = written(folder, require={"goodput.share": {"at_least": 0.5}})
    assert main(["search", str(path), "-o", str(searched / "out")]) == 2
    assert "is of another search" in capsys.readouterr().err


def test_no_answer_is_said_with_an_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, vary={"nodes[0].instances[0].tp_size": [3]})
    assert main(["search", str(path), "-o", str(tmp_path / "out"), "-j", "1"]) == 3
    captured = capsys.readouterr()
    assert "none of 1 points is an answer: 1 cannot run, 0 miss a requirement; for instance" in captured.err
    assert captured.err.count("\n") == 1 and "tp must divide" in captured.out


def test_an_unknown_figure_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, vary={"replicas": [1]}, minimise=["p95_tttf_ms"])
    assert main(["search", str(path), "-o", str(tmp_path / "out"), "-j", "1"]) == 2
    assert '"p95_tttf_ms" is no figure of a run (did you mean "p95_ttft_ms"?)' in capsys.readouterr().err

"""Searches: every point of a small space, deterministic choice in a large one, resumed, and nothing
dropped.
"""

import contextlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from package import PRESETS
from test_space import cluster, space

from llmsim.cli import main
from llmsim.config.errors import InputError, InvariantError
from llmsim.search import study
from llmsim.search.journal import Trial
from llmsim.search.space import Space, load_space
from llmsim.sizing.workers.forks import fork_worker

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
            found.append(
                trial(
                    point, devices=(size - 320) ** 2 + (0 if point["--scheduler"] == "b" else 5000)
                )
            )
    return found


def large(folder: Path, **fields: Any) -> Space:
    vary = {"engine.block_size": {"from": 1, "to": 1000}, "--scheduler": ["a", "b", "c"]}
    return space(folder, vary=vary, **fields)


def test_of_a_large_space_the_same_points_are_chosen_and_they_get_better(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="spaces too large to try all of need it")
    asked = large(tmp_path)
    first = study.search(asked, quadratic, 96, seed=3)
    assert first == study.search(asked, quadratic, 96, seed=3)
    assert [one.point for one in first] != [
        one.point for one in study.search(asked, quadratic, 96, seed=4)
    ]
    assert len({json.dumps(one.point) for one in first}) == len(first)
    assert {one.state for one in first} == {"feasible", "infeasible"}
    tried = [one.values["devices"] for one in first if one.state == "feasible"]
    third = len(tried) // 3
    assert sum(tried[-third:]) < sum(tried[:third]) / 2
    (best, *_) = study.best(asked, first)
    assert first[best].point["--scheduler"] == "b" and first[best].values["devices"] == min(tried)


def test_requirements_and_several_objectives_in_a_large_space(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="spaces too large to try all of need it")
    asked = large(
        tmp_path, minimise=["devices", "mean_ttft_ms"], require={"devices": {"at_least": 100}}
    )

    def two(points: Sequence[Json]) -> list[Trial]:
        sizes = [point["engine.block_size"] for point in points]
        return [
            Trial(
                point,
                "feasible" if size >= 100 else "short",
                "",
                {"devices": size, "mean_ttft_ms": 5000 / size},
                "",
            )
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
        asked,
        lambda points: [
            trial(p, devices=abs(p["engine.gpu_memory_utilization"] - 0.7)) for p in points
        ],
        40,
        1,
    )
    assert all(0.5 <= one.point["engine.gpu_memory_utilization"] <= 0.9 for one in found)
    assert found[study.best(asked, found)[0]].values["devices"] < 0.02


def test_without_optuna_a_large_space_says_what_would_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        Exception,
        match=r"3000 points, --trials is 10: give --trials.*pip install \"llmsim\[search\]\"",
    ):
        study.search(large(tmp_path), quadratic, 10, 0)


def written(folder: Path, **fields: Any) -> Path:
    """A search of four points on disk: two that run, of which one misses the target, and two that
    cannot.
    """
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


def test_points_with_too_many_devices_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmsim.search.trials import Trials

    def refuse(*_: object) -> object:
        raise AssertionError("this point is run")

    path = written(tmp_path)
    document = yaml.safe_load(path.read_text())
    document["require"] = {"devices": {"at_most": 0.5}}
    path.write_text(json.dumps(document))
    monkeypatch.setattr(Trials, "_run", refuse)
    assert main(["search", str(path), "-o", str(tmp_path / "out"), "-j", "1"]) == 3
    trials = json.loads((tmp_path / "out" / "result.json").read_text())["trials"]
    sized = [one for one in trials if one["values"]]
    assert sized and all("it was not run" in one["reason"] for one in sized)


def result(folder: Path) -> Json:
    found: Json = json.loads((folder / "out" / "result.json").read_text(encoding="utf-8"))
    return found


def test_every_point_is_there_with_its_reason(searched: Path) -> None:
    found = result(searched)
    states = {
        (t["point"]["replicas"], t["point"]["nodes[0].instances[0].tp_size"]): t
        for t in found["trials"]
    }
    assert len(states) == 4 and found["tried"] == "all"
    assert states[4, 1]["state"] == "feasible" and states[4, 1]["values"]["devices"] == 4
    assert states[1, 1]["state"] == "short" and "at least 0.9 is required" in states[1, 1]["reason"]
    for replicas in (1, 4):
        assert (
            states[replicas, 3]["state"] == "infeasible"
            and "tp must divide" in states[replicas, 3]["reason"]
        )
    assert [found["trials"][one["trial"]]["point"] for one in found["pareto"]] == [
        states[4, 1]["point"]
    ]


def test_a_point_is_the_run_that_its_cluster_file_gives(
    searched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = next(t for t in result(searched)["trials"] if t["state"] == "short")
    words = [
        "run",
        "--cluster-config",
        str(searched / "out" / one["folder"] / "cluster.json"),
        "--json",
    ]
    words += ["--cost-source=roofline", "--goodput=ttft:100,tpot:40"]
    words += ["--dataset=synthetic:n=40,rate=80,input=fixed:3000,output=fixed:20,seed=1"]
    assert main(words) == 0
    assert (
        json.loads(capsys.readouterr().out)["goodput"]["share"]
        == one["values"]["goodput.share"]
        < 0.9
    )


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


def test_another_search_does_not_mix_with_it(
    searched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = searched / "other"
    folder.mkdir()
    path = written(folder, require={"goodput.share": {"at_least": 0.5}})
    assert main(["search", str(path), "-o", str(searched / "out")]) == 2
    assert "is of another search" in capsys.readouterr().err


def test_no_answer_is_said_with_an_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, vary={"nodes[0].instances[0].tp_size": [3]})
    assert main(["search", str(path), "-o", str(tmp_path / "out"), "-j", "1"]) == 3
    captured = capsys.readouterr()
    assert (
        "none of 1 point is an answer: 1 cannot run, 0 miss a requirement; for instance"
        in captured.err
    )
    assert captured.err.count("\n") == 1 and "tp must divide" in captured.out


def test_an_unknown_option_is_refused_before_any_point_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, vary={"--max-num-sekqs": [1, 2]})
    assert main(["search", str(path), "-o", str(tmp_path / "out"), "-j", "1"]) == 2
    captured = capsys.readouterr()
    assert 'llmsim run (did you mean "--max-num-seqs"?)' in captured.err and not captured.out


def test_goodput_needs_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first point that ran ends the search: no other one would have the figure."""
    without = {"--cost-source": "roofline"}
    path = written(tmp_path, vary={"replicas": [1, 2, 3]}, options=without)
    assert main(["search", str(path), "-o", str(tmp_path / "out"), "-j", "1"]) == 2
    captured = capsys.readouterr()
    assert '"goodput.share" has no targets to meet; say "--goodput"' in captured.err
    path = written(tmp_path, vary={"replicas": [4]})
    assert main(["search", str(path), "-o", str(tmp_path / "met"), "-j", "1"]) == 0


def test_american_spellings_mean_the_same(tmp_path: Path) -> None:
    fields = yaml.safe_load(written(tmp_path).read_text(encoding="utf-8"))
    del fields["minimise"]
    other = tmp_path / "other.yaml"
    other.write_text(
        yaml.safe_dump(fields | {"minimize": ["devices"], "maximize": ["output_throughput"]})
    )
    file = load_space(other).file
    assert (file.minimise, file.maximise) == (["devices"], ["output_throughput"])
    other.write_text(yaml.safe_dump(fields | {"minimize": ["devices"], "minimise": ["devices"]}))
    with pytest.raises(InputError, match="minimize is given, and so is minimise"):
        load_space(other)


def test_vllms_names_and_underscores_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    fields = {"model": "Qwen/Qwen3-8B", "hardware": "H100", "gpus": [2], "minimise": ["devices"]}
    fields |= {"dataset": "synthetic:n=2", "vary": {"--max_num_seqs": [8, 16]}}
    fields |= {"tensor_parallel_size": [1, 2], "pipeline_parallel_size": [1]}
    path.write_text(yaml.safe_dump(fields | {"options": {"--cost_source": "roofline"}}))
    file = load_space(path).file
    assert (file.tp, file.pp) == ([1, 2], [1])
    assert (list(file.vary), list(file.options)) == (["--max-num-seqs"], ["--cost-source"])
    path.write_text(yaml.safe_dump(fields | {"tp": [4]}))
    with pytest.raises(InputError, match="tp is given, and so is tensor_parallel_size"):
        load_space(path)


def test_an_unknown_figure_names_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, vary={"replicas": [1]}, minimise=["p95_tttf_ms"])
    assert main(["search", str(path), "-o", str(tmp_path / "out"), "-j", "1"]) == 2
    assert (
        's.yaml: minimise[0]: "p95_tttf_ms" is no figure of a run (did you mean "p95_ttft_ms"?)'
        in capsys.readouterr().err
    )


def blackbox(folder: Path, step_us: int) -> None:
    (folder / "bb.json").write_text(json.dumps({"beta": [step_us, 1, 100]}), encoding="utf-8")


def searched_again(path: Path, *more: str) -> tuple[int, Json]:
    """Exit code and result of the same call."""
    out = path.parent / "out"
    code = main(["search", str(path), "-o", str(out), "-j", "1", *more])
    return code, json.loads((out / "result.json").read_text(encoding="utf-8"))


def figures(result: Json) -> list[float]:
    return [trial["values"]["mean_tpot_ms"] for trial in result["trials"]]


def small(folder: Path, **fields: Any) -> Path:
    """Two points that run, whose cluster, model, trace and coefficients are files."""
    preset = PRESETS / "models" / "meta-llama" / "Llama-3.1-8B.json"
    (folder / "config.json").write_text(preset.read_text(encoding="utf-8"), encoding="utf-8")
    document = cluster()
    document["nodes"][0]["instances"][0]["model_name"] = str(folder / "config.json")
    (folder / "c.json").write_text(json.dumps(document), encoding="utf-8")
    rows = [
        {"input_toks": 100, "output_toks": 20, "arrival_time_ns": row * 10**8} for row in range(8)
    ]
    (folder / "t.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
    )
    blackbox(folder, 10_000)
    search = {
        "cluster": "c.json",
        "dataset": str(folder / "t.jsonl"),
        "options": {"--cost-source": f"blackbox:{folder / 'bb.json'}"},
        "vary": {"--max-num-seqs": [1, 64]},
        "minimise": ["mean_tpot_ms"],
    }
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(search | fields, sort_keys=False), encoding="utf-8")
    return path


CHANGES = {
    "bb.json": lambda text: text.replace("10000", "20000"),
    "t.jsonl": lambda text: text.replace('"output_toks": 20', '"output_toks": 40'),
    "config.json": lambda text: text.replace('"num_hidden_layers": 32', '"num_hidden_layers": 16'),
    "c.json": lambda text: text.replace('"H100"', '"H200"'),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_answer_does_not_outlive_the_files_that_it_rests_on(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small(tmp_path)
    assert searched_again(path)[0] == 0
    (tmp_path / "out" / "trials.jsonl").rename(tmp_path / "first.jsonl")
    changed = CHANGES[name]((tmp_path / name).read_text(encoding="utf-8"))
    assert changed != (tmp_path / name).read_text(encoding="utf-8")
    (tmp_path / name).write_text(changed, encoding="utf-8")
    fresh = searched_again(path)
    (tmp_path / "first.jsonl").rename(tmp_path / "out" / "trials.jsonl")
    capsys.readouterr()
    assert searched_again(path) == fresh
    if name != "c.json":  # that one is another text of every run
        assert f"{name} has changed: 2 earlier answers do not count" in capsys.readouterr().err


def test_an_answer_counts_for_the_code_that_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from llmsim.search import journal

    path = small(tmp_path)
    assert searched_again(path)[0] == 0
    monkeypatch.setattr(journal, "code_hash", lambda: "another")
    capsys.readouterr()
    assert searched_again(path)[0] == 0
    assert (
        "the code of llmsim or of a library has changed: 2 earlier answers"
        in capsys.readouterr().err
    )


def test_a_file_that_changes_while_the_search_runs_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from llmsim.cli.run.counted import Counted

    path = small(tmp_path)
    monkeypatch.setattr(Counted, "done", lambda *_: blackbox(tmp_path, 30_000))
    assert main(["search", str(path), "-o", str(tmp_path / "out"), "-j", "1"]) == 2
    assert "bb.json changed while the search ran" in capsys.readouterr().err
    monkeypatch.undo()
    code, result = searched_again(path)
    assert code == 0 and all(one > 30 for one in figures(result))


class Failing:
    """Replaces a search's processes by commands that fail, the first `times` of each search."""

    def __init__(self, script: str, times: int) -> None:
        self.script, self.left, self.started = script, times, 0

    def __call__(self) -> Any:
        self.started += 1
        if not self.left:
            return fork_worker()
        self.left -= 1
        return Command(self.script)


class Command:
    """A process that is no worker."""

    def __init__(self, script: str) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.tasks, self.answers = self._process.stdin, self._process.stdout

    def end(self) -> int:
        with contextlib.suppress(OSError):
            self._process.communicate()
        return self._process.wait()


FAILURES = {
    "kill -9 $$": "its run was killed (signal 9)",
    "kill -11 $$": "its run was ended by signal 11",
    "exit 3": "its run ended without a complete answer (exit code 3)",
    "echo '{'": "its run ended without a complete answer (exit code 0)",
}


DEFECTS: dict[type[Exception], str] = {
    RuntimeError: "its run ended with code 1: internal error: RuntimeError('boom')",
    MemoryError: "its run ended with code 3: out of memory",
    InvariantError: "its run ended with code 4: boom",
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_no_verdict(
    defect: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmsim.cli.run.point import ended
    from llmsim.search.point import Asked
    from llmsim.sizing.measure import Bench

    def fails(*_: object) -> object:
        raise defect("boom")

    text = json.dumps(cluster())
    words = ("--dataset=synthetic:n=2,rate=1,input=fixed:10,output=fixed:2",)
    asked = Asked(text, str(tmp_path / "cluster.json"), words, ("devices",))
    whole = ended(Bench(), asked)
    assert whole.code == 0 and whole.summary is not None and whole.summary["completed"] == 2
    monkeypatch.setattr("llmsim.simulation.run.simulate", fails)
    found = ended(Bench(), asked)
    assert found.summary is None and not found.verdict and DEFECTS[defect] in found.failure


@pytest.mark.parametrize("script", FAILURES)
def test_a_failed_run_is_no_verdict(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small(tmp_path, vary={"--max-num-seqs": [64]})
    monkeypatch.setattr("llmsim.sizing.workers.forks.fork_worker", failing := Failing(script, 2))
    code, result = searched_again(path)
    assert code == 1 and failing.started == 2
    error = capsys.readouterr().err
    assert (
        "1 of 1 point has no answer, after two runs of each" in error and FAILURES[script] in error
    )
    assert error.count("\n") == 1 and [one["state"] for one in result["trials"]] == ["failed"]
    assert searched_again(path)[0] == 0 and failing.started == 3  # nothing of it was journalled
    assert searched_again(path)[0] == 0 and failing.started == 3


def test_a_run_that_fails_once_is_run_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path)
    monkeypatch.setattr(
        "llmsim.sizing.workers.forks.fork_worker", failing := Failing("kill -9 $$", 1)
    )
    code, result = searched_again(path)
    assert code == 0 and failing.started in (2, 3)  # one or both of two workers, and another
    assert {one["state"] for one in result["trials"]} == {"feasible"}


def test_bad_input_is_a_verdict_and_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value out of its range, one that the parser refuses, and one that does not fit."""
    path = small(tmp_path, vary={"--gpu-memory-utilization": [0.9, 7, "much", 0.01]})
    code, result = searched_again(path)
    assert code == 0
    assert [one["state"] for one in result["trials"]] == [
        "feasible",
        "infeasible",
        "infeasible",
        "infeasible",
    ]
    monkeypatch.setattr("llmsim.sizing.workers.forks.fork_worker", failing := Failing("exit 1", 9))
    assert searched_again(path) == (0, result) and failing.started == 0


def test_what_an_error_of_the_machine_is() -> None:
    import errno

    from llmsim.cli.run.inputs_report import how_it_ended
    from llmsim.config.errors import InfeasibleError, InputError

    def ended(error: BaseException, cause: BaseException | None) -> str:
        try:
            try:
                if cause is not None:
                    raise cause
            except BaseException:
                raise error from None
            raise error
        except BaseException as caught:
            return how_it_ended(caught)

    assert ended(InputError("cannot be read"), OSError(errno.EMFILE, "")) == "failed"
    assert ended(InputError("cannot be read"), OSError(errno.ENOENT, "")) == "bad_input"
    assert ended(InfeasibleError("does not fit"), None) == "does_not_fit"
    assert ended(MemoryError(), None) == ended(RuntimeError(), None) == "failed"


@pytest.mark.parametrize(
    "options",
    [
        {"--request-routing-policy": "subprocess:getoutput:cmd=touch pwned"},
        {"--decode-routing-policy": "os:system:command=touch pwned"},
        {"--cost-source": "os:system"},
        {"--queue-order": "os:system"},
        {"--preemption-victim": "os:system"},
        {"--cache-eviction": "os:system"},
        {"--admission": "os:system"},
        {"--scheduler": "os:system"},
        {"--expert-routing-policy": "os:system"},
        {"--allow-plugins": True, "--queue-order": "os:system"},
        {"--request-routing-policy=subprocess:getoutput:cmd=touch pwned": True},
        {"--output=pwned": True},
        {"--run-dir": "pwned"},
    ],
)
@pytest.mark.parametrize("where", ["options", "vary"])
def test_a_file_runs_no_code_and_writes_no_file(
    options: Json,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = (
        {"options": options}
        if where == "options"
        else {"vary": {name: [one] for name, one in options.items()}}
    )
    path = small(tmp_path, **chosen)
    if where == "options":
        path = small(tmp_path, vary={"replicas": [1]}, **chosen)
    assert main(["search", str(path), "-o", "out", "-j", "1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "s.yaml" in error
    refused = ("plug-in that a file names; give --allow-plugins", "option", "changes nothing")
    assert any(said in error for said in refused)
    assert not (tmp_path / "pwned").exists() and not (tmp_path / "pwned=True").exists()


def test_a_plugin_of_a_file_runs_where_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shortest_first.py").write_text(
        "class Shortest:\n    def key(self, request): return request.tokens\n", encoding="utf-8"
    )
    path = small(
        tmp_path, vary={"replicas": [1]}, options={"--queue-order": "shortest_first:Shortest"}
    )
    assert searched_again(path, "--allow-plugins")[0] == 0
    names = {
        one["path"]
        for line in (tmp_path / "out" / "trials.jsonl").read_text(encoding="utf-8").splitlines()
        for one in json.loads(line).get("files", [])
    }
    assert str(tmp_path / "shortest_first.py") in names


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_journal_costs_runs_and_nothing_else(
    seed: int, searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that are cut, of other types, or no text at all are no answers; an answer is whole or
    not there.
    """
    import random
    import shutil

    from llmsim.search.apply import load_base
    from llmsim.search.journal import Journal
    from llmsim.search.space import load_space

    draw = random.Random(seed)
    shutil.copy(searched / "out" / "trials.jsonl", path := tmp_path / "trials.jsonl")
    head, *lines = path.read_bytes().splitlines()
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(lines))
        cut = draw.randrange(len(lines[at]) + 1)
        lines[at] = draw.choice(
            [
                lines[at][:cut],
                b"[]",
                b"null",
                b"\xff\xfe",
                lines[at].replace(b'"', b"1", 3),
                b"[" * 100_000,
                lines[at].replace(b"feasible", b"7"),
                lines[at][:cut] + b"\xfe" + lines[at][cut + 1 :],
            ]
        )
    path.write_bytes(b"\n".join([head, *lines]))
    base = load_base(load_space(searched / "s.yaml"))
    known = {key: answer.trial for key, answer in Journal(path, base)._known.items()}
    whole = {
        key: answer.trial
        for key, answer in Journal(searched / "out" / "trials.jsonl", base)._known.items()
    }
    assert known.keys() <= whole.keys()

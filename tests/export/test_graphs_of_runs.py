"""`llmsim run --graphs`: the chosen steps of a run as files, with an index."""

import json
from pathlib import Path
from typing import Any

import networkx
import pyarrow.parquet as pq
import pytest
from shallow import shallow

import llmsim
from llmsim.cli import main
from llmsim.rounds.selection import parse_selection

ROOT = Path(__file__).resolve().parents[2]
PD = str(ROOT / "cluster_config" / "h100_llama31_8b_pd_2p1d.json")
TRACE = "synthetic:n=12,rate=80,input=lognormal:800:max=2000,output=fixed:12,seed=3"
RUN = ["run", "--cluster-config", PD, "--dataset", TRACE, "--cost-source", "roofline", "--json"]


def index(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "index.parquet").to_pylist()
    return rows


def test_the_slowest_of_each_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--graphs", f"{tmp_path}/g:slowest=2", "--run-dir", f"{tmp_path}/run"]) == 0
    rows = index(tmp_path / "g")
    steps = pq.read_table(tmp_path / "run" / "steps.parquet").to_pylist()
    for group in range(3):
        lengths = sorted(
            step["end_ps"] - step["start_ps"] for step in steps if step["group"] == group
        )
        mine = [row for row in rows if row["group"] == group]
        assert sorted(row["end_ps"] - row["start_ps"] for row in mine) == lengths[-2:]
        for row in mine:
            graph = json.loads((tmp_path / "g" / str(row["file"])).read_text())
            assert graph["duration_ps"] == row["graph_ps"] and graph["group"] == group
            assert sum(item["tokens"] for item in graph["items"]) == row["tokens"]
    capsys.readouterr()


def test_steps_of_a_request_and_equal_steps_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its prompt on a prefill instance, and each of its tokens on the decode instance."""
    assert main([*RUN, "--graphs", f"{tmp_path}/g:request=4,format=dot"]) == 0
    rows = index(tmp_path / "g")
    assert sum(row["group"] == 2 for row in rows) == 12
    assert sum(row["group"] in (0, 1) for row in rows) >= 1
    assert {path.suffix for path in (tmp_path / "g").iterdir()} == {".dot", ".parquet"}
    equal = "synthetic:n=2,rate=0.5,input=fixed:64,output=fixed:4,seed=1"
    run = [*RUN[:4], equal, *RUN[5:], "--graphs", f"{tmp_path}/h:group=2"]
    assert main(run) == 0
    rows = index(tmp_path / "h")
    assert len(rows) == 8 and len({row["file"] for row in rows}) == 4
    capsys.readouterr()


def test_steps_that_the_horizon_cuts_off_have_no_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two groups whose weights come from one pool: their steps have no times until they end."""
    bundled = ROOT / "cluster_config" / "cxl_two_groups.json"
    trace = "synthetic:n=4,rate=50,input=fixed:64,output=fixed:9,seed=1"
    run = ["run", "--cluster-config", str(bundled), "--dataset", trace, "--cost-source", "roofline"]
    more = ["--horizon", "1", "--run-dir", f"{tmp_path}/run", "--graphs", f"{tmp_path}/g"]
    assert main([*run, *more]) == 0
    steps = pq.read_table(tmp_path / "run" / "steps.parquet").to_pylist()
    ended = [step for step in steps if step["end_ps"] >= 0]
    assert len(ended) < len(steps), "a step is cut off"
    assert all(step["start_ps"] == -1 for step in steps if step["end_ps"] == -1)
    rows = index(tmp_path / "g")
    times = sorted((row["start_ps"], row["end_ps"]) for row in rows)
    assert times == sorted((step["start_ps"], step["end_ps"]) for step in ended)
    capsys.readouterr()


def test_steps_of_dummies_make_the_energy_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two members in lock-step, with one request of one of them."""
    document = json.loads(
        (ROOT / "cluster_config" / "single_node_moe_dp_ep_instance.json").read_text()
    )
    bundled = ROOT / "cluster_config" / "single_node_power_instance.json"
    power = json.loads(bundled.read_text())["nodes"][0]["power"]
    document["nodes"][0]["power"] = {**power, "npu": {"H100": power["npu"]["A6000"]}}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(shallow(document, tmp_path)))
    trace = "synthetic:n=1,rate=5,input=fixed:64,output=fixed:3,seed=1"
    run = ["run", "--cluster-config", str(path), "--dataset", trace, "--cost-source", "roofline"]
    assert main([*run, "--json", "--graphs", f"{tmp_path}/g:dummies=yes"]) == 0
    rows = index(tmp_path / "g")
    ran = llmsim.run(path, trace, cost_source="roofline")
    for group in range(len(ran.groups)):
        mine = [row for row in rows if row["group"] == group]
        assert [row["step"] for row in mine] == list(range(len(mine)))
        worked = [row for row in mine if row["iteration"] is not None]
        assert [row["iteration"] for row in worked] == list(range(len(worked)))
        assert all(row["tokens"] == 0 for row in mine if row["iteration"] is None)
        assert len(worked) < len(mine)
        energy = ran._results.energy.groups[group]
        expected_aj = energy.active_aj + energy.traffic_aj
        assert sum(int(row["energy_aj"]) for row in mine) == expected_aj > 0
    assert main([*run, "--json", "--graphs", f"{tmp_path}/h"]) == 0
    assert all(row["iteration"] is not None for row in index(tmp_path / "h"))
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("g:slowest=0", 'slowest is "0"; it must be a number from 1'),
        ("g:slowest=2,every=3", "every and slowest exclude each other"),
        ("g:format=svg", 'format is "svg"; it may be json, et, dot, graphml'),
        ("g:speed=2", '"speed=2" is no choice'),
        ("g:step=5-3", 'step is "5-3"'),
        ("g:group=3", "group is 3; the cluster has the groups 0 to 2"),
        ("g:request=99", 'request is "99"; it may be a number from 0 to 11'),
        (":every=2", "it needs a folder"),
    ],
)
def test_wrong_choices_are_found_before_the_run(
    text: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--graphs", text]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "g").exists() or not any((tmp_path / "g").iterdir())


def test_ffn_groups_are_in_the_graphs_of_attention_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apart = ["--cluster-config", str(ROOT / "cluster_config" / "h100_qwen3_235b_afd.json")]
    given = [*apart, "--dataset", "synthetic:n=2,rate=5,input=40,output=3,seed=1"]
    given += ["--cost-source", "roofline"]
    step = ["graph", "step", "--graph", str(tmp_path / "x.dot")]
    assert main([*step, *given, "--group", "3"]) == 2
    assert "group 3 computes FFNs for attention groups" in capsys.readouterr().err
    assert main(["run", *given, "--graphs", f"{tmp_path / 'g'}:group=3"]) == 2
    assert "choose one of these, such as group 1" in capsys.readouterr().err
    assert main([*step, *given, "--group", "1"]) == 0
    assert "rows to FFN" in (tmp_path / "x.dot").read_text(encoding="utf-8")


def test_texts_of_choices() -> None:
    assert parse_selection("a:b").folder == Path("a:b")
    chosen = parse_selection("C:/graphs:step=3-5,format=et")
    assert (str(chosen.folder), chosen.steps, chosen.form) == ("C:/graphs", (3, 4, 5), "et")


def test_a_step_in_networkx() -> None:
    result = llmsim.run(PD, TRACE, cost_source="roofline")
    graph = result.graph(group=0, step=0)
    assert networkx.is_directed_acyclic_graph(graph)
    kinds = {data["kind"] for _, data in graph.nodes(data=True)}
    assert {"compute", "attention", "kv_send"} <= kinds
    ends = max(
        data["start_us"] + data["duration_us"]
        for _, data in graph.nodes(data=True)
        if not data["kind"].startswith("kv_")
    )
    steps = result.steps
    first = steps[steps["group"] == 0].iloc[0]
    assert ends == pytest.approx((first["end_ps"] - first["start_ps"]) / 1e6)
    with pytest.raises(llmsim.InputError, match="group is 7; it may be from 0 to 2"):
        result.graph(group=7)


@pytest.mark.parametrize("choice", [["--slowest"], ["--at", "0.2"], ["--request", "3"]])
def test_one_step_by_what_it_did(
    choice: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*RUN[1:-1], "--group", "2", "--graph", str(tmp_path / "g.json"), *choice]
    assert main(["graph", "step", *given]) == 0
    assert json.loads((tmp_path / "g.json").read_text())["group"] == 2
    assert main(["graph", "step", *given, "--iteration", "1"]) == 2
    assert f"--iteration and {choice[0]} exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize("time", ["nan", "inf", "-1"])
def test_a_time_that_is_none_is_refused(
    time: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*RUN[1:-1], "--graph", str(tmp_path / "g.json"), f"--at={time}"]
    assert main(["graph", "step", *given]) == 2
    assert f"--at is {time}; it must be from 0 to" in capsys.readouterr().err

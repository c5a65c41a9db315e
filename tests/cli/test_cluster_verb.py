"""`llmsim cluster`: what it writes runs, splits over nodes, and is refused in one sentence where it
could not.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from package import PRESETS

from llmsim.cli import main

ROOT = Path(__file__).resolve().parents[2]
TRACE = str(ROOT / "dataset" / "example_10.jsonl")


def written(path: Path, *arguments: object) -> dict[str, Any]:
    assert main(["cluster", *map(str, arguments), "--output", str(path)]) == 0
    cluster: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return cluster


@pytest.mark.parametrize("device", ["H200", "l4", "MI300X", "TPU-v6e", "Xeon-8592+"])
def test_it_runs_as_it_is(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "c.json"
    written(path, "Qwen/Qwen3-8B", device)
    capsys.readouterr()
    given = [
        "--cluster-config",
        str(path),
        "--dataset",
        TRACE,
        "--cost-source",
        "roofline",
        "--goodput",
        "ttft:1e6",
    ]
    assert main(["run", *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["completed"], found["goodput"]["share"]) == (10, 1.0)


def test_instances_fill_nodes(tmp_path: Path) -> None:
    cluster = written(
        tmp_path / "c.json", "meta-llama/Llama-3.1-70B", "H200", "--tp", 2, "--pp", 2, "-n", 5
    )
    assert [len(node["instances"]) for node in cluster["nodes"]] == [2, 2, 1]
    instance = cluster["nodes"][0]["instances"][0]
    assert (instance["tp_size"], instance["pp_size"], instance["npu_mem"]["mem_size"]) == (
        2,
        2,
        139.801,
    )
    small = written(tmp_path / "d.json", "Qwen/Qwen3-8B", "H200", "-n", 3, "--devices-per-node", 1)
    assert len(small["nodes"]) == 3


def test_experts_are_cut_unless_they_are_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `ep_size` a file means what LLMServingSim's do, and a note says so."""
    path = tmp_path / "c.json"
    given = [
        "run",
        "--cluster-config",
        str(path),
        "--dataset",
        TRACE,
        "--cost-source",
        "roofline",
        "--json",
    ]
    tpot = []
    for arguments, size in (([], 1), (["--ep", 2], 2)):
        cluster = written(path, "Qwen/Qwen3-30B-A3B", "H200", "--tp", 2, *arguments)
        assert cluster["nodes"][0]["instances"][0]["ep_size"] == size
        capsys.readouterr()
        assert main(given) == 0
        found = json.loads(capsys.readouterr().out)
        tpot.append(found["mean_tpot_ms"])
        assert not any("no ep_size is given" in note for note in found["notes"])
    assert tpot[0] != tpot[1]
    del cluster["nodes"][0]["instances"][0]["ep_size"]
    path.write_text(json.dumps(cluster), encoding="utf-8")
    assert main(given) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mean_tpot_ms"] == tpot[1]
    assert any(
        "spread over the 2 ranks of an instance, since no ep_size is given" in note
        for note in found["notes"]
    )
    dense = written(path, "Qwen/Qwen3-8B", "H200", "--tp", 2)
    assert "ep_size" not in dense["nodes"][0]["instances"][0]


def test_paths_hold_wherever_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = (PRESETS / "models/Qwen/Qwen3-8B.json").read_text(encoding="utf-8")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(model, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "deep" / "c.json", "mine", "H200")
    given = [
        "--cluster-config",
        "deep/c.json",
        "--dataset",
        TRACE,
        "--cost-source",
        "roofline",
        "--json",
    ]
    assert main(["run", *given]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Qwen/Qwen3-8", "H200"], 'did you mean "Qwen/Qwen3-8B"'),
        (["Qwen/Qwen3-8B", "H2001"], 'did you mean "H200"'),
        (["Qwen/Qwen3-8B", "H200", "--tp", "3"], "tp must divide"),
        (["Qwen/Qwen3-8B", "H200", "--pp", "11"], "needs 11 devices"),
        (["Qwen/Qwen3-8B", "H200", "--pp", "40", "--devices-per-node", "64"], "36 layers"),
        (["Qwen/Qwen3-8B", "H200", "-n", "0"], "--instances"),
        (["Qwen/Qwen3-8B", "H200", "--ep", "2"], "--ep is 2; Qwen/Qwen3-8B has no experts"),
        (["Qwen/Qwen3-30B-A3B", "H200", "--tp", "2", "--ep", "3"], "ep must divide tp"),
        (["Qwen/Qwen3-8B", "H200", "-o", "."], "folder"),
        (["Qwen/Qwen3-8B", "H200", "-o", ""], "the path is empty"),
    ],
)
def test_what_cannot_be(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1

"""Files of a run folder that somebody edited are bad input, and what runs write has the shapes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import main
from llmsim.results.record_shapes import MANIFEST, SUMMARY, misfit

ROOT = Path(__file__).resolve().parents[2]
LOAD = "synthetic:n=12,rate=10,input=fixed:100,output=fixed:5,seed=1"
CLUSTERS = (
    "h100_llama31_8b",
    "h100_llama31_8b_pd",
    "single_node_power_instance",
    "h100_pcie_switch_prefix_pool",
    "h100_qwen3_30b_a3b_pd",
    "h100_qwen3_235b_afd",
    "tpu_v6e_slice",
)


def run_folder(cluster: str, folder: Path) -> Path:
    path = ROOT / "cluster_config" / f"{cluster}.json"
    options = ["--goodput", "ttft:500,tpot:30", "--run-dir", str(folder)]
    assert main(["run", "--cluster-config", str(path), "--dataset", LOAD, *options]) == 0
    return folder


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_what_runs_write_has_the_shapes(cluster: str, tmp_path: Path) -> None:
    pytest.importorskip("aiconfigurator_core", reason="most clusters take the silicon database")
    folder = run_folder(cluster, tmp_path / "run")
    for name, shape in (("summary.json", SUMMARY), ("manifest.json", MANIFEST)):
        assert misfit(json.loads((folder / name).read_text()), shape, "") is None


EDITS: list[tuple[str, tuple[Any, ...], Any, str]] = [
    ("summary.json", ("duration",), [1], "duration is [1]; expected a number"),
    ("summary.json", ("duration",), True, "duration is true; expected a number"),
    ("summary.json", ("duration",), 1e308, "duration is 1e+308; expected a number of at most"),
    ("summary.json", ("duration",), float("nan"), "expected a number of at most 1e+100"),
    ("summary.json", ("goodput",), [], "goodput is []; expected an object"),
    ("summary.json", ("goodput", "targets_ms", "ttft"), None, "ttft is null; expected a number"),
    ("summary.json", ("kv_cache", 0, "group"), "0", 'kv_cache[0].group is "0"; expected a whole'),
    ("summary.json", ("notes",), {}, "notes is {}; expected a list"),
    ("summary.json", ("sources", "operators", 0, "share"), [], "share is []; expected a number"),
    ("manifest.json", ("host",), 1, "host is 1; expected an object"),
    ("manifest.json", ("run", "options"), None, "run.options is null; expected an object"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder("h100_llama31_8b", tmp_path_factory.mktemp("runs") / "good")


@pytest.mark.parametrize(("name", "place", "value", "sentence"), EDITS)
def test_an_edited_file_is_named_with_its_field(
    name: str,
    place: tuple[Any, ...],
    value: Any,
    sentence: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edited = shutil.copytree(folder, tmp_path / "edited")
    record = json.loads((edited / name).read_text())
    part = record
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (edited / name).write_text(json.dumps(record))
    for command in (["report", str(edited), "-o", str(tmp_path / "r.html")], ["why", str(edited)]):
        assert main(command) == 2
        said = capsys.readouterr().err.strip()
        assert sentence in said and str(edited / name) in said and "\n" not in said


def test_a_missing_key_is_named_by_its_reader(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = shutil.copytree(folder, tmp_path / "edited")
    record = json.loads((edited / "summary.json").read_text())
    del record["goodput"]
    (edited / "summary.json").write_text(json.dumps(record))
    assert main(["report", str(edited), "-o", str(tmp_path / "r.html")]) == 2
    assert '"goodput"' in capsys.readouterr().err

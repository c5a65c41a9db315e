"""Names that no output could hold are refused before the run; a folder with such a name is no
obstacle.
"""

import json
import os
from pathlib import Path

import pytest

from llmsim.cli import run_main

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_llama31_8b.json"
LOAD = "--dataset=synthetic:n=5,rate=10,input=fixed:50,output=fixed:5,seed=1"


@pytest.mark.parametrize(
    "option", ["--output", "--run-dir", "--timeline", "--dataset", "--input-files", "--arrivals"]
)
def test_a_name_of_the_command_line_that_is_not_utf8(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--cluster-config={CLUSTER}", LOAD, "--cost-source=roofline"]
    assert run_main([*words, f"{option}={tmp_path}/x\udcff"]) == 2
    error = capsys.readouterr().err
    assert "is not UTF-8 text" in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("half", ["\\ud800", "\\udcff", "\\uD83D x \\uDE00", 'say \\"\\udc00'])
def test_half_a_character_in_a_cluster_file(
    half: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CLUSTER.read_text(encoding="utf-8").replace('"One H100', f'"{half} One H100', 1)
    text = text if half in text else text.replace("{", f'{{"description": "{half}",', 1)
    (tmp_path / "c.json").write_text(text, encoding="utf-8")
    assert (
        run_main(
            [f"--cluster-config={tmp_path / 'c.json'}", LOAD, "--run-dir", str(tmp_path / "out")]
        )
        == 2
    )
    assert "half of a character; expected whole characters" in capsys.readouterr().err
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_whole_characters_and_odd_folders_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(CLUSTER.read_text(encoding="utf-8"))
    document["description"] = "caf\u00e9 \U0001f600"
    folder = tmp_path / os.fsdecode(b"odd\xff")
    folder.mkdir()
    (folder / "c.json").write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.chdir(folder)
    words = [
        "--cluster-config=c.json",
        LOAD,
        "--cost-source=roofline",
        "--run-dir=out",
        "--input-files=files.json",
    ]
    assert run_main(words) == 0, capsys.readouterr().err
    assert json.loads((folder / "files.json").read_text(encoding="utf-8"))["ended"] == "answered"
    assert json.loads((folder / "out" / "manifest.json").read_text(encoding="utf-8"))["files"]

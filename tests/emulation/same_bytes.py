"""Two emulations of one command."""

import json
from pathlib import Path

import pytest

from llmsim.cli import main


def check_same_bytes(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both take the steps of the run, and clients get the same bytes."""
    folders = [folder / "one", folder / "other"]
    for each in folders:
        assert main([*words, "--json", "--run-dir", str(each)]) == 0
        manifest = json.loads(capsys.readouterr().out)
        assert (manifest["same_as_run"], manifest["deterministic"]) == (True, True)
    for name in ("client.json", "requests.parquet"):
        one, other = ((each / name).read_bytes() for each in folders)
        assert one == other

"""What tests of layouts have in common: links between nodes, and how a cluster file is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import main

LINKS = {"link_bw": [450, 450, 50], "link_latency": [1000, 1000, 2000]}


def assert_refused(
    document: dict[str, Any],
    load: str,
    said: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run of the cluster file ends in one sentence that names the file and says this."""
    path = folder / "cluster.json"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    assert main(["run", "--cluster-config", str(path), "--dataset", load]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1, printed.err
    assert str(path) in printed.err and said in printed.err, printed.err

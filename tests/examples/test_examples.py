"""Every example cluster runs, its invariants hold, and the page of examples says what it gives."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.examples import EXAMPLES, PAGE, ROOT, TRACE, Example, row
from llmsim.cli import run_main
from tests.shared_data import SHARED, shared

ARTIFACT = sorted(SHARED.glob("artifact/cluster_config/*.json"))
STALE = 0.05
"""Figures of the page may be this far off before it has to be made again."""


def summary(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The summary of a run; skips what a later version runs."""
    capsys.readouterr()
    code = run_main([*arguments, "--json"])
    captured = capsys.readouterr()
    if code == 2 and "in this version" in captured.err:
        pytest.skip(captured.err.strip())
    assert code == 0, captured.err
    found: dict[str, Any] = json.loads(captured.out)
    return found


def page_rows(example: Example) -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith(f"| {example.file} |")
    ]
    return [
        cells
        for cells in rows
        if cells[1] == example.what or cells[1].startswith(f"{example.what}:")
    ]


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda example: f"{example.file}-{len(example.options)}"
)
def test_an_example_runs_and_gives_what_the_page_says(
    example: Example, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (said,) = page_rows(example)
    found = summary(capsys, *example.arguments)
    assert found["completed"] == 10 and found["total_output_tokens"] == (
        768 if example.dataset == TRACE else 770
    )
    assert set(found["invariants"].values()) == {"ok"}
    if "in this version" in said[1]:
        pytest.skip("the page is from before this example ran: python -m bench.examples")
    now = [cell.strip() for cell in row(example, found).strip("|").split("|")]
    for before, after in zip(said[2:], now[2:], strict=True):
        assert (before == "-") == (after == "-")
        if after != "-":
            assert float(after) == pytest.approx(float(before), rel=STALE), (
                "make it again: python -m bench.examples"
            )


@pytest.mark.parametrize(
    "path", ARTIFACT or [None], ids=lambda path: path.stem if path else "absent"
)
def test_the_published_clusters_run_unchanged(
    path: Path | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if path is None:
        shared("artifact/cluster_config")
    options = ["--cost-source", "roofline"]
    if path is not None and "pim" in path.stem:
        options.append("--enable-attn-offloading")
    found = summary(capsys, "--cluster-config", str(path), "--dataset", str(ROOT / TRACE), *options)
    assert found["completed"] == 10
    assert set(found["invariants"].values()) == {"ok"}


def test_every_cluster_file_of_an_example_is_there_and_has_an_example() -> None:
    files = {path.stem for path in (ROOT / "cluster_config").glob("*.json")}
    named = {example.file for example in EXAMPLES}
    assert named == files
    described = (ROOT / "cluster_config" / "README.md").read_text(encoding="utf-8")
    assert all(f"| {name}.json |" in described for name in files)

"""A digest covers every figure, every value and every name of a run folder."""

import json
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from replay.digest import digests
from replay.runs import ROOT, RUNS

SUMMARY = {"duration": 1.5, "notes": ["a note"]}
TABLE = {"start_ps": [1, 2], "end_ps": [3, None]}


def folder(
    path: Path, summary: dict[str, object], table: dict[str, list[int | None]]
) -> dict[str, str]:
    (path / "summary.json").write_text(json.dumps(summary))
    parquet.write_table(arrow.table(table), path / "steps.parquet")
    return digests(path)


@pytest.mark.parametrize(
    ("changed", "summary", "table"),
    [
        ("figures", {"duration": 1.6, "notes": ["a note"]}, TABLE),
        ("figures", {"length": 1.5, "notes": ["a note"]}, TABLE),
        ("notes", {"duration": 1.5, "notes": ["another note"]}, TABLE),
        ("steps", SUMMARY, {"start_ps": [1, 2], "end_ps": [3, 4]}),
        ("steps", SUMMARY, {"begin_ps": [1, 2], "end_ps": [3, None]}),
        ("steps", SUMMARY, {"end_ps": [3, None], "start_ps": [1, 2]}),
    ],
)
def test_what_changes_is_one_part(
    changed: str, summary: dict[str, object], table: dict[str, list[int | None]], tmp_path: Path
) -> None:
    before, after = folder(tmp_path, SUMMARY, TABLE), folder(tmp_path, summary, table)
    assert {part for part in before if before[part] != after[part]} == {changed}


def test_every_run_has_committed_digests() -> None:
    committed = json.loads((ROOT / "tests" / "replay" / "digests.json").read_text(encoding="utf-8"))
    names = [run.name for run in RUNS]
    assert len(set(names)) == len(names)
    assert committed.keys() == set(names)
    assert all(
        {"figures", "notes", "requests", "steps", "series"} <= committed[name].keys()
        for name in names
    )

"""`python -m replay`, from tests/: runs every entry of `runs.py` and compares it with the committed
digests.

`--accept` replaces the committed digests by those of this tree, and keeps its outputs under
build/replay/accepted, so that a later difference is shown by key and column. A change of structure
accepts nothing. A change of results accepts in the commit that makes it, with the reason.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

from llmsim.cli import run_main
from replay.digest import columns, digests
from replay.runs import ROOT, RUNS, Run

LIST = Path(__file__).parent / "digests.json"
OUTPUTS = ROOT / "build" / "replay"


def replay(run: Run, folder: Path) -> dict[str, str]:
    """Digests of the parts of one run, whose outputs are left in `folder`; with its sentence where
    it failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = run_main([*run.options, "--run-dir", str(folder)])
    parts = digests(folder) if (folder / "manifest.json").exists() else {}
    return parts if code == 0 else {**parts, "exit": str(code), "said": errors.getvalue().strip()}


def differences(accepted: Path, now: Path, parts: list[str]) -> list[str]:
    """Keys of the summary and columns of the tables that differ between two outputs of one run."""
    if not (accepted / "summary.json").exists():
        return [
            "no outputs of the accepted tree are kept; run --accept there to see keys and columns"
        ]
    found = []
    if {"figures", "notes"} & set(parts):
        before, after = (
            json.loads((folder / "summary.json").read_text()) for folder in (accepted, now)
        )
        changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        found += [
            f"summary.{key}: {before.get(key)!r} -> {after.get(key)!r}"[:300] for key in changed
        ]
    for part in sorted(set(parts) - {"figures", "notes"}):
        before, after = (
            {name: (kind, values) for name, kind, values in columns(folder / f"{part}.parquet")}
            for folder in (accepted, now)
        )
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        found.append(f"{part}: columns {', '.join(changed) or '(their order)'}")
    return found


def _compare(runs: list[Run]) -> int:
    committed = json.loads(LIST.read_text(encoding="utf-8"))
    failed = 0
    for run in runs:
        now, wanted = OUTPUTS / "now" / run.name, committed.get(run.name, {})
        found = replay(run, now)
        parts = sorted(part for part in {**found, **wanted} if found.get(part) != wanted.get(part))
        if not parts:
            continue
        failed += 1
        print(f"{run.name}: {', '.join(parts)} differ")
        if "exit" in found:
            print(f"    exit {found['exit']}: {found['said']}")
        tables = [
            part
            for part in parts
            if part in found and part in wanted and part not in ("exit", "said")
        ]
        if tables:
            lines = differences(OUTPUTS / "accepted" / run.name, now, tables)
            print(*(f"    {line}" for line in lines), sep="\n")
    gone = sorted(committed.keys() - {run.name for run in RUNS})
    if gone:
        print(f"digests without a run: {', '.join(gone)}")
    print(f"{len(runs) - failed} passed, {failed + len(gone)} failed")
    return 1 if failed or gone else 0


def _accept(runs: list[Run]) -> int:
    found = json.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else {}
    found |= {run.name: replay(run, OUTPUTS / "accepted" / run.name) for run in runs}
    kept = {run.name: found[run.name] for run in RUNS if run.name in found}
    LIST.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"{len(runs)} runs accepted")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m replay", description="Compares runs with their committed digests."
    )
    parser.add_argument(
        "--accept", action="store_true", help="replace the committed digests by those of this tree"
    )
    parser.add_argument("--only", default="", help="runs whose name contains this text")
    options = parser.parse_args()
    os.chdir(ROOT)
    runs = [run for run in RUNS if options.only in run.name]
    return _accept(runs) if options.accept else _compare(runs)


if __name__ == "__main__":
    sys.exit(main())

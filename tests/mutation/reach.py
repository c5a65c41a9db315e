"""Which tests run a line: noted once by running all of them, and kept under build/mutation.

Of Python it knows the functions that each test called, of C++ the lines at which a basic block began. The notes of a
test file stand until it changes, whatever else does; `make mutate MAP=new` makes all of them again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutation.python_operators import functions_of
from mutation.workplace import ROOT, Workplace, remove

PROBE = ROOT / "tests" / "mutation" / "reach_probe.cpp"
NOT_MAPPED = ("tests/engine/", "tests/profiler/", "tests/mutation/")
"""Tests of the standalone engine and of the profiler, which run nothing that is mutated."""
LIMIT_S = 1800
LINES_BEFORE = 3
"""So many lines at or before a mutant of C++ are looked up: a block's own line is only where it begins."""


@dataclass
class Reach:
    """The tests that passed, with their processor time, and what each ran."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    tests: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    """Of each file, for each line (of Python: the first line of a function) the tests that ran it."""

    def add(self, row: dict[str, Any]) -> None:
        if row["passed"]:
            self.cpu_s[row["test"]] = row["cpu_s"]
            for path, line in row["lines"]:
                self.tests[path][line].add(row["test"])

    def of_line(self, path: str, line: int, source: str) -> list[str]:
        """The tests that run a line, the fastest first."""
        lines = self.tests.get(path, {})
        found = self._of_python(lines, line, source) if path.endswith(".py") else self._of_cpp(lines, line)
        return sorted(found, key=lambda test: (self.cpu_s[test], test))

    @staticmethod
    def _of_python(lines: dict[int, set[str]], line: int, source: str) -> set[str]:
        """Those of the innermost function around the line; outside of any, those of the whole file."""
        around = [first for first, last in functions_of(source) if first <= line <= last and first in lines]
        inside_any = any(first <= line <= last for first, last in functions_of(source))
        if inside_any:
            return lines[max(around)] if around else set()
        return set().union(*lines.values())

    @staticmethod
    def _of_cpp(lines: dict[int, set[str]], line: int) -> set[str]:
        known = sorted(lines)
        at = bisect_right(known, line)
        return set().union(*(lines[each] for each in known[max(at - LINES_BEFORE, 0) : at + (at == 0)]))


def reach_of_tests(how: str) -> Reach:
    """The map: "kept" as it is, "updated" for test files that are new or have changed, or "new" for all of them."""
    path = ROOT / "build" / "mutation" / "reach.jsonl"
    if how == "new":
        path.unlink(missing_ok=True)
    files = {name: _hash(ROOT / name) for name in _test_files()}
    rows = [row for row in _rows(path) if how == "kept" or files.get(row["file"]) == row["hash"]]
    missing = [] if how == "kept" else sorted(set(files) - {row["file"] for row in rows})
    for folder in sorted({str(Path(name).parent) for name in missing}):
        below = [name for name in missing if str(Path(name).parent) == folder]
        print(f"Noting which lines each test of {folder} runs", flush=True)
        rows += [{**row, "hash": files[row["file"]]} for row in _measured(below)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reach = Reach()
    for row in rows:
        reach.add(row)
    return reach


def _test_files() -> list[str]:
    found = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    return [name for name in found if not name.startswith(NOT_MAPPED)]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _measured(files: Sequence[str]) -> list[dict[str, Any]]:
    """Runs test files in a copy whose native module notes its basic blocks; a row for each test."""
    probe = ROOT / "build" / "mutation" / "reach_probe.o"
    probe.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["c++", "-O2", "-fPIC", "-c", str(PROBE), "-o", str(probe)], check=True)
    flags = "-DCMAKE_CXX_FLAGS_DEBUG=-g1 -fsanitize-coverage=trace-pc"
    place = Workplace("reach", [flags, f"-DCMAKE_MODULE_LINKER_FLAGS={probe}"])
    with place.taken():
        place.build()
        output, reached = place.folder / "rows.jsonl", place.folder / "reached"
        output.unlink(missing_ok=True)
        remove(reached)
        reached.mkdir()
        place.test(
            ["-p", "mutation.reach_plugin", *files], LIMIT_S, place.native, LLMSIM_REACH_OUTPUT=str(output),
            LLMSIM_REACHED=str(reached),
        )  # fmt: skip
        rows = _rows(output)
        lines = _lines_of_blocks(place, set().union(*(row["native"] for row in rows)))
    unknown = {"test": "", "cpu_s": 0, "passed": False, "lines": []}
    found = [{**unknown, "file": name} for name in files]
    for row in rows:
        of_blocks = {lines[block] for block in row["native"] if block in lines}
        of_functions = {(path, line) for path, line in row["python"]}
        reached_lines = sorted(of_blocks | of_functions)
        kept = {name: row[name] for name in ("test", "cpu_s", "passed")}
        found.append({**kept, "file": row["test"].partition("::")[0], "lines": reached_lines})
    return found


def _lines_of_blocks(place: Workplace, blocks: Iterable[int]) -> dict[int, tuple[str, int]]:
    """File and line of each offset: of the innermost function in the tree's own sources, where others are inlined."""
    offsets = sorted(blocks)
    asked = "".join(f"{offset - 1:x}\n" for offset in offsets)  # the call's own address, not the one after it
    command = ["addr2line", "-a", "-i", "-e", str(place.native)]
    answers = subprocess.run(command, input=asked, check=True, capture_output=True, text=True).stdout.splitlines()
    found: dict[int, tuple[str, int]] = {}
    offset = 0
    for answer in answers:
        if answer.startswith("0x"):
            offset = int(answer, 16) + 1
            continue
        path, _, line = answer.partition(" ")[0].rpartition(":")
        file = Path(os.path.normpath(path))
        if offset not in found and line.isdigit() and file.is_relative_to(place.tree):
            found[offset] = (str(file.relative_to(place.tree)), int(line))
    return found

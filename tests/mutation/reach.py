"""Which tests run a line: noted once by running all of them, and kept under build/mutation.

Of Python it knows the functions that each test called, of C++ the lines at which a basic block
began. The notes of a test file stand until it changes, whatever else does; `make mutate MAP=new`
makes all of them again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from mutation.python_operators import functions_of
from mutation.workplace import ROOT, Workplace, remove

PROBE = ROOT / "tests" / "mutation" / "reach_probe.cpp"
MAPPED_FOR = {
    "tests/engine/": "astra-sim",
    "tests/profiler/": "profiler",
    "tests/mutation/": "tests/mutation",
}
"""Folders of tests that run nothing else, or too little for the time that they take, and what they
are noted for.
"""
LIMIT_S = 1800
LINES_BEFORE = 3
"""So many lines at or before a mutant of C++ are looked up: a block's own line is only where it
begins.
"""


@dataclass
class Reach:
    """The tests that passed, with their processor time, and what each ran."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    tests: list[str] = field(default_factory=list)
    lines: dict[str, dict[int, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    """Of each file, for each line (of Python: the first line of a function) a bit for each test
    that ran it.
    """

    def add(self, row: Mapping[str, Any]) -> None:
        if not row["passed"]:
            return
        bit = 1 << len(self.tests)
        self.tests.append(row["test"])
        self.cpu_s[row["test"]] = row["cpu_s"]
        for path, lines in row["lines"].items():
            for line in lines:
                self.lines[path][line] |= bit

    def of_line(self, path: str, line: int, source: str) -> list[str]:
        """The tests that run a line, the fastest first."""
        lines = self.lines.get(path, {})
        bits = (
            self._of_python(lines, line, source)
            if path.endswith(".py")
            else self._of_cpp(lines, line)
        )
        found = [test for index, test in enumerate(self.tests) if bits >> index & 1]
        return sorted(found, key=lambda test: (self.cpu_s[test], test))

    @staticmethod
    def _of_python(lines: Mapping[int, int], line: int, source: str) -> int:
        """Those of the innermost function around the line; outside of any, those of
        the whole file.
        """
        around = [first for first, last in functions_of(source) if first <= line <= last]
        if not around:
            return reduce(or_, lines.values(), 0)
        return lines.get(max(around), 0)

    @staticmethod
    def _of_cpp(lines: Mapping[int, int], line: int) -> int:
        known = sorted(lines)
        at = bisect_right(known, line)
        return reduce(
            or_, (lines[each] for each in known[max(at - LINES_BEFORE, 0) : at + (at == 0)]), 0
        )


def reach_of_tests(how: str, roots: Sequence[str]) -> Reach:
    """What the tests of some folders of sources reach.

    `how`: "kept" as it is, "updated" for test files that are new or have changed, or "new" for all
    of them.
    """
    path = ROOT / "build" / "mutation" / "reach.jsonl"
    if how == "new":
        path.unlink(missing_ok=True)
    files = {name: _hash(ROOT / name) for name in _test_files(roots)}
    wanted = {} if how == "kept" else files
    found = [line for line in _lines(path) if _is_present(json.loads(line), wanted)]
    missing = (
        [] if how == "kept" else sorted(set(files) - {json.loads(line)["file"] for line in found})
    )
    for folder in sorted({str(Path(name).parent) for name in missing}):
        below = [name for name in missing if str(Path(name).parent) == folder]
        print(f"Noting which lines each test of {folder} runs", flush=True)
        found += [json.dumps({**row, "hash": files[row["file"]]}) for row in _measured(below)]
        path.write_text("".join(line + "\n" for line in found))
    reach = Reach()
    for line in found:
        reach.add(json.loads(line))
    return reach


def _is_present(row: Mapping[str, Any], files: Mapping[str, str]) -> bool:
    """Whether the test file of a row is there as it was; one that is not asked for stays."""
    return (ROOT / row["file"]).is_file() and files.get(row["file"], row["hash"]) == row["hash"]


def _test_files(roots: Sequence[str]) -> list[str]:
    left_out = tuple(
        folder
        for folder, source in MAPPED_FOR.items()
        if not any(root.startswith(source) for root in roots)
    )
    found = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    return [name for name in found if not name.startswith(left_out)]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


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
            ["-p", "mutation.reach_plugin", *files],
            LIMIT_S,
            place.native,
            LLMSIM_REACH_OUTPUT=str(output),
            LLMSIM_REACHED=str(reached),
        )
        rows = [json.loads(line) for line in _lines(output)]
        lines = _lines_of_blocks(place, set().union(*(row["native"] for row in rows)))
    unknown = {"test": "", "cpu_s": 0, "passed": False, "lines": {}}
    found: list[dict[str, Any]] = [{**unknown, "file": name} for name in files]
    for row in rows:
        reached_lines: dict[str, set[int]] = defaultdict(set)
        for path, line in (
            *row["python"],
            *(lines[block] for block in row["native"] if block in lines),
        ):
            reached_lines[path].add(line)
        kept = {name: row[name] for name in ("test", "cpu_s", "passed")}
        by_path = {path: sorted(each) for path, each in reached_lines.items()}
        found.append({**kept, "file": row["test"].partition("::")[0], "lines": by_path})
    return found


def _lines_of_blocks(place: Workplace, blocks: Iterable[int]) -> dict[int, tuple[str, int]]:
    """File and line of each offset: of the innermost function in the tree's own sources, where
    others are inlined.
    """
    offsets = sorted(blocks)
    asked = "".join(
        f"{offset - 1:x}\n" for offset in offsets
    )  # the call's own address, not the one after it
    command = ["addr2line", "-a", "-i", "-e", str(place.native)]
    answers = subprocess.run(
        command, input=asked, check=True, capture_output=True, text=True
    ).stdout.splitlines()
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

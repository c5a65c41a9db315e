"""A pytest plug-in that writes, test by test, what the test ran of the tree, how long it took and
whether it passed.

What a fixture of a whole module ran counts for every test of that module: it runs wherever one of
them does.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "inside"))
import reach_probe

Reached = reach_probe.Reached


def cpu_s() -> float:
    """Processor time of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class ReachPlugin:
    def __init__(self, output: Path, folder: Path):
        self.output = output
        self.folder = folder
        self.current: Reached = (set(), set())
        self.shared: dict[str, Reached] = defaultdict(lambda: (set(), set()))
        self.passed: dict[str, bool] = {}
        self.module = ""

    def _add_to(self, reached: Reached) -> None:
        found = [reach_probe.collect()]
        for path in self.folder.glob("*.json"):
            python, native = json.loads(path.read_text())
            found.append(({(file, line) for file, line in python}, set(native)))
            path.unlink()
        for python, native in found:
            reached[0].update(python)
            reached[1].update(native)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, None, None]:
        if fixturedef.scope == "function":
            yield
            return
        self._add_to(self.current)
        yield
        self._add_to(self.shared[self.module])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, None, None]:
        module = item.nodeid.partition("::")[0]
        if module != self.module:
            self.module = module
            cache = tempfile.mkdtemp(prefix="llmsim-reach-")
            shutil.rmtree(os.environ.get("LLMSIM_CACHE", cache), ignore_errors=True)
            os.environ["LLMSIM_CACHE"] = cache
        self.current = (set(), set())
        reach_probe.collect()
        before_s = cpu_s()
        yield
        used_s = cpu_s() - before_s
        self._add_to(self.current)
        python, native = (self.current[kind] | self.shared[module][kind] for kind in (0, 1))
        row = {
            "test": item.nodeid,
            "cpu_s": round(used_s, 3),
            "passed": self.passed.get(item.nodeid, False),
            "python": sorted(python),
            "native": sorted(native),
        }
        with self.output.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that was skipped, or that failed in any of its three phases, says nothing about a
        mutant.
        """
        self.passed[report.nodeid] = self.passed.get(report.nodeid, True) and report.passed


def pytest_configure(config: pytest.Config) -> None:
    output, folder = (Path(os.environ[name]) for name in ("LLMSIM_REACH_OUTPUT", "LLMSIM_REACHED"))
    config.pluginmanager.register(ReachPlugin(output, folder), "reach")

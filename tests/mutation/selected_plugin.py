"""A pytest plug-in that runs given tests in a given order, and writes which was the last to begin
and which failed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


class SelectedPlugin:
    def __init__(self, order: list[str], output: Path):
        self.place = {test: index for index, test in enumerate(order)}
        self.output = output

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        wanted = sorted(
            (item for item in items if item.nodeid in self.place),
            key=lambda item: self.place[item.nodeid],
        )
        config.hook.pytest_deselected(
            items=[item for item in items if item.nodeid not in self.place]
        )
        items[:] = wanted

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.output.write_text(json.dumps({"begun": nodeid, "failed": None}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.output.write_text(json.dumps({"begun": report.nodeid, "failed": report.nodeid}))


def pytest_configure(config: pytest.Config) -> None:
    order = json.loads(Path(os.environ["LLMSIM_TESTS"]).read_text())
    config.pluginmanager.register(
        SelectedPlugin(order, Path(os.environ["LLMSIM_TESTS_OUTCOME"])), "selected"
    )

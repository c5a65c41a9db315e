"""A small simulated run whose results stand in for a real server's log."""

from pathlib import Path

import pytest
from made_logs import simulate


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with out.csv and the run folder `run`."""
    folder = tmp_path_factory.mktemp("recorded")
    simulate("--output", folder / "out.csv", "--run-dir", folder / "run")
    return folder

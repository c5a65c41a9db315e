"""The engine's own tests in C++: built beside the command, each run as one test here."""

import subprocess
from pathlib import Path

import pytest
from processes import HANGS_S

from engine.command import REPOSITORY, build_target

PROGRAMS = sorted(path.stem for path in (REPOSITORY / "astra-sim" / "tests").glob("*_test.cpp"))


@pytest.fixture(scope="session")
def programs() -> Path:
    return build_target("engine_tests")


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 12


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(programs: Path, name: str) -> None:
    done = subprocess.run([programs / name], capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

"""The engine's own tests in C++: built beside the command, each run as one test here."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import HANGS_S

from engine.command import REPOSITORY, build_target

PROGRAMS = sorted(path.stem for path in (REPOSITORY / "astra-sim" / "tests").rglob("*_test.cpp"))


@pytest.fixture(scope="session")
def programs() -> Path:
    return build_target("engine_tests")


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 12


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(programs: Path, name: str) -> None:
    done = subprocess.run(
        [programs / name], capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    """It compiles as it is printed, against the library alone, and prints what the page says."""
    page = (REPOSITORY / "astra-sim" / "README.md").read_text(encoding="utf-8")
    found = re.search(
        r"```cpp\n(.*?)```\n\nprints (\d+) .*? and (\d+) for every device", page, re.DOTALL
    )
    assert found is not None
    (tmp_path / "main.cpp").write_text(found[1], encoding="utf-8")
    library = build_target("astra_engine") / "libastra_engine.a"
    compiler = shutil.which("c++") or "g++"
    sources = [f"-I{REPOSITORY / 'astra-sim'}", str(tmp_path / "main.cpp"), str(library)]
    built = subprocess.run(
        [compiler, "-std=gnu++20", "-o", str(tmp_path / "main"), *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    done = subprocess.run(
        [tmp_path / "main"], capture_output=True, text=True, timeout=HANGS_S, check=True
    )
    assert done.stdout.split() == [found[2], found[3]] * 8

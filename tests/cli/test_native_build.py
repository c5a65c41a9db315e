"""A checkout without a native module of its own, or with one of other sources, says so in one
sentence.
"""

import importlib.machinery
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from package import package_sources

from llmsim import _native, native_build
from llmsim.native_build import PARTS, sources_sha256, why_stale

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_paths()["purelib"])


def checkout(folder: Path, *, sources: bool = False) -> Path:
    """The Python of the package, and its native sources where they are asked for."""
    root = folder / "checkout"
    shutil.copytree(
        package_sources(),
        root / "llmsim",
        ignore=shutil.ignore_patterns("native", "__pycache__", "*.so"),
    )
    shutil.copy(ROOT / "main.py", root)
    for part in PARTS if sources else ():
        shutil.copytree(ROOT / part, root / part)
    return root


def installed(folder: Path) -> Path:
    """What `pip install .` leaves of the native module."""
    package = folder / "site" / "llmsim"
    package.mkdir(parents=True)
    shutil.copy(
        str(_native.__file__), package / f"_native{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    )
    return package.parent


def libraries(folder: Path) -> Path:
    """The installed libraries without llmsim."""
    found = folder / "libraries"
    found.mkdir()
    for entry in SITE.iterdir():
        if "llmsim" not in entry.name:
            (found / entry.name).symlink_to(entry)
    return found


def started(root: Path, *path: Path, program: tuple[str, ...] = ("main.py", "--help")) -> Any:
    """Without `site`, so that the editable installation of these tests is not found."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "LLMSIM_CACHE": str(root / "cache"),
    }
    command = [sys.executable, "-S", *program]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=300
    )


PROGRAMS = (("main.py", "--help"), ("-m", "llmsim", "--version"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_checkout_without_a_native_module_says_what_to_do(
    tmp_path: Path, program: tuple[str, ...]
) -> None:
    done = started(checkout(tmp_path), libraries(tmp_path), program=program)
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert (
        "the native module of llmsim is not built for Python" in done.stderr
        and "`make run`" in done.stderr
    )


@pytest.mark.parametrize("sources", [False, True])
def test_a_checkout_takes_the_native_module_of_an_installed_copy(
    tmp_path: Path, sources: bool
) -> None:
    root, site, deps = checkout(tmp_path, sources=sources), installed(tmp_path), libraries(tmp_path)
    for program in PROGRAMS:
        done = started(root, site, deps, program=program)
        assert done.returncode == 0, done.stderr


def test_the_native_module_of_an_installed_copy_of_other_sources_is_refused(tmp_path: Path) -> None:
    """Also where it is newer than the sources, as it is of a later installation."""
    root, deps = checkout(tmp_path, sources=True), libraries(tmp_path)
    source = next((root / PARTS[0]).rglob("*.cpp"))
    source.write_text(source.read_text(encoding="utf-8") + "// changed\n", encoding="utf-8")
    done = started(root, installed(tmp_path), deps)
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    assert (
        "was built from other sources than those in" in done.stderr and "`make run`" in done.stderr
    )


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    done = started(checkout(tmp_path), installed(tmp_path))
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    assert "the Python package numpy is not installed for" in done.stderr


@pytest.fixture
def built(tmp_path: Path) -> tuple[Path, Any]:
    """A small checkout, and a module that was built from it a minute later."""
    for part in PARTS:
        (tmp_path / part / "inner").mkdir(parents=True)
        (tmp_path / part / "inner" / "a.cpp").write_text("int a;\n", encoding="utf-8")
        (tmp_path / part / "b.h").write_text("int b;\n", encoding="utf-8")
    module = tmp_path / "_native.so"
    module.write_bytes(b"")
    later = time.time() + 60
    os.utime(module, (later, later))
    return tmp_path, SimpleNamespace(__file__=str(module), sources_sha256=sources_sha256(tmp_path))


def test_a_module_of_these_sources_is_taken(built: tuple[Path, Any]) -> None:
    root, module = built
    assert why_stale(module, root) == ""
    after = time.time() + 120
    os.utime(
        root / PARTS[1] / "b.h", (after, after)
    )  # the same content, as after `git checkout` there and back
    assert why_stale(module, root) == ""


def changed(path: Path) -> None:
    path.write_text("int c;\n", encoding="utf-8")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "change",
    [
        lambda folder: changed(folder / "inner" / "a.cpp"),
        lambda folder: changed(folder / "new.h"),
        lambda folder: (folder / "inner" / "a.cpp").unlink(),
        lambda folder: (folder / "b.h").rename(folder / "c.h"),
    ],
)
def test_any_change_of_the_sources_is_told(part: str, change: Any, built: tuple[Path, Any]) -> None:
    root, module = built
    change(root / part)
    after = time.time() + 120
    for path in [root / part, *(root / part).rglob("*")]:
        os.utime(path, (after, after))
    assert "was built from other sources" in why_stale(module, root)


def test_an_installed_package_has_no_sources_to_compare(tmp_path: Path) -> None:
    assert why_stale(_native, tmp_path) == ""


def test_the_stamp_is_that_of_the_sources() -> None:
    assert _native.sources_sha256 == sources_sha256(package_sources().parent)


def test_looking_is_cheap() -> None:
    """A twentieth of a second is ten times what it takes: the sources' times are looked at, not
    their contents.
    """
    assert native_build._newest_ns(ROOT) > 0
    best = min(timed(lambda: native_build._newest_ns(ROOT)) for _ in range(5))
    assert best < 0.05


def timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.mark.parametrize("value", ["zzz", "bash_xx", "bash_source", "source_bash", ""])
@pytest.mark.parametrize("name", ["_LLMSIM_COMPLETE", "_MAIN.PY_COMPLETE", "_MAIN_COMPLETE"])
def test_variables_of_shell_completion_change_nothing(name: str, value: str) -> None:
    for program in (["-m", "llmsim", "--version"], ["main.py", "--help"]):
        environment = {**os.environ, name: value}
        done = subprocess.run(
            [sys.executable, *program],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0 and done.stderr == ""

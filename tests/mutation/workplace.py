"""A copy of the tree in which mutants are made, built and tested; the developer's own tree is only
read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutation.forked import forked

ROOT = Path(__file__).resolve().parents[2]
INSIDE = "tests/mutation/inside"


class BuildError(Exception):
    """The native module could not be compiled."""


@dataclass(frozen=True)
class Outcome:
    """How a process of tests ended, which stops at the first failure."""

    status: str
    """"passed", "failed", "crashed" or "out of time"."""
    test: str
    """The first test that failed, or the last that began."""


class Workplace:
    """One copy under build/mutation/<name>, with a native module of its own."""

    def __init__(self, name: str, options: Sequence[str] = ()):
        self.folder = ROOT / "build" / "mutation" / name
        self.tree = self.folder / "tree"
        self._build = self.folder / "native"
        self._options = options

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Brings the copy up to date and keeps other processes out of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._copy()
            yield

    def _copy(self) -> None:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(
            command, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
        for name in wanted:
            write(self.tree / name, (ROOT / name).read_bytes())
        for path in [path for path in self.tree.rglob("*") if path.is_file()]:
            if str(path.relative_to(self.tree)) not in wanted:
                path.unlink()

    def build(self) -> str:
        """Compiles the copy's native module; the hash of the result. Raises BuildError with the
        compiler's words.
        """
        programs = Path(sys.executable).parent
        environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

        def run(*command: str) -> None:
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode != 0:
                raise BuildError(done.stdout + done.stderr)

        self._configure(run)
        run("cmake", "--build", str(self._build), "--parallel", "2", "--target", "_native")
        return hashlib.sha256(self.native.read_bytes()).hexdigest()

    def _configure(self, run: Callable[..., None]) -> None:
        """Asks CMake for a build folder; anew where the options are others than those of the folder
        that is there.
        """
        asked = [sys.executable, "-m", "nanobind", "--cmake_dir"]
        nanobind = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        options = [
            "-G",
            "Ninja",
            "-Wno-dev",
            "-DCMAKE_BUILD_TYPE=Debug",
            "-DCMAKE_CXX_FLAGS=-D_GLIBCXX_ASSERTIONS",
            "-DASTRA_OPTIMIZE=-O1",
            "-DLLMSIM_OPTIMIZE=-O1",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dnanobind_DIR={nanobind}",
            *self._options,
        ]
        stamp = self._build / "options.json"
        if stamp.exists() and json.loads(stamp.read_text()) == options:
            return
        remove(self._build)
        run("cmake", "-S", str(self.tree), "-B", str(self._build), *options)
        stamp.write_text(json.dumps(options))

    @property
    def native(self) -> Path:
        """The native module that was built."""
        return next(self._build.glob("_native*.so"))

    @contextmanager
    def mutated(self, path: str, text: str) -> Iterator[None]:
        """Puts `text` in place of a file of the copy for a while."""
        file = self.tree / path
        original = file.read_bytes()
        write(file, text.encode())
        try:
            yield
        finally:
            write(file, original)

    def test(self, arguments: Sequence[str], limit_s: float, native: Path, **variables: str) -> int:
        """Runs pytest in the copy; its exit code. Each process may use `limit_s` seconds of
        processor time.
        """
        environment = {
            **variables,
            "LLMSIM_TREE": str(self.tree),
            "LLMSIM_NATIVE": str(native),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([str(self.tree / INSIDE), str(self.tree / "tests")]),
            "PYTHONHASHSEED": "0",
        }
        return forked(
            ["-p", "no:cacheprovider", *arguments],
            self.tree,
            environment,
            self.folder / "tests.log",
            limit_s,
        )

    def first_failure(
        self, tests: Sequence[str], limit_s: float, native: Path, cache: Path
    ) -> Outcome:
        """Runs tests in this order until one fails; compiled cost tables are kept in `cache`."""
        order, outcome = self.folder / "tests.json", self.folder / "outcome.json"
        order.write_text(json.dumps(tests))
        outcome.write_text(json.dumps({"begun": None, "failed": None}))
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        code = self.test(
            ["-x", "-p", "mutation.selected_plugin", *files],
            limit_s,
            native,
            LLMSIM_TESTS=str(order),
            LLMSIM_TESTS_OUTCOME=str(outcome),
            LLMSIM_CACHE=str(cache),
        )
        found = json.loads(outcome.read_text())
        begun = found["begun"] or f"collection of {files[0]} and others"
        if code in (0, 5):  # 5: no test was collected
            return Outcome("passed", begun)
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return Outcome("out of time", begun)
        return Outcome("crashed" if code < 0 else "failed", found["failed"] or begun)


def write(path: Path, content: bytes) -> None:
    """Writes a file that differs, and leaves one that does not, so that it is not
    compiled again.
    """
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def remove(folder: Path) -> None:
    """Removes a folder that may not be there."""
    shutil.rmtree(folder, ignore_errors=True)

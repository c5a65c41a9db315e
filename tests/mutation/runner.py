"""Makes mutants, one after the other, and says what became of each."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutation.drawing import equivalents
from mutation.mutant import Mutant
from mutation.python_operators import same_bytecode
from mutation.reach import Reach
from mutation.selection import tests_for
from mutation.workplace import ROOT, BuildError, Outcome, Workplace, remove

LEAST_LIMIT_S = 30.0
LIMIT_OF_MEASURED = 5.0
"""A process of tests may take so many times what its tests took without a mutant; beyond it, it
hangs.
"""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: "killed", "survived", or why it does not count."""

    mutant: Mutant
    status: str
    why: str
    """The test that killed it and how, the reason why it is equivalent, or how many tests it
    survived.
    """
    before: str
    after: str
    diff: str

    @property
    def counts(self) -> bool:
        return self.status in ("killed", "survived")


class Runner:
    """Tests mutants of one language in one copy of the tree."""

    def __init__(self, reach: Reach, is_cpp: bool, budget_s: float):
        self._reach = reach
        self._budget_s = budget_s
        self._is_cpp = is_cpp
        self._place = Workplace("cpp" if is_cpp else "python")
        self._known = {(each.path, each.before, each.after): each.reason for each in equivalents()}
        self._unmutated = ""
        self._original = Path()
        self._sound: set[str] = set()
        self._broken: set[str] = set()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Takes the copy, and builds it without a mutant."""
        with self._place.taken():
            self._original = installed_module()
            if self._is_cpp:
                self._unmutated = self._place.build()
                self._original = self._place.folder / "original.so"
                shutil.copyfile(self._place.native, self._original)
            yield

    def verdict(self, mutant: Mutant) -> Verdict:
        source = (self._place.tree / mutant.path).read_text(encoding="utf-8")
        before, after = mutant.changed_lines(source)

        def judged(status: str, why: str) -> Verdict:
            return Verdict(mutant, status, why, before, after, mutant.diff(source))

        reason = self._known.get((mutant.path, before, after))
        if reason is not None:
            return judged("equivalent", reason)
        mutated = mutant.applied(source)
        if not self._is_cpp and same_bytecode(source, mutated):
            return judged("same code", "its bytecode is that of the original")
        with self._place.mutated(mutant.path, mutated):
            native = self._original
            if self._is_cpp:
                try:
                    compiled = self._place.build()
                except BuildError:
                    return judged("not compiled", "the compiler refuses it")
                if compiled == self._unmutated:
                    return judged(
                        "same code", "the compiler makes of it what it makes of the original"
                    )
                native = self._place.native
            return judged(*self._tested(mutant, source, native))

    def _tested(self, mutant: Mutant, source: str, native: Path) -> tuple[str, str]:
        """Status and reason after the tests. Mutants of C++ share compiled cost tables, of which
        none is theirs.
        """
        if not self._is_cpp:
            remove(self._place.folder / "cache")
        survived = 0
        for tests in tests_for(mutant, source, self._reach, self._budget_s):
            left = [test for test in tests if test not in self._broken]
            while left:
                outcome = self._first_failure(left, native)
                if outcome.status == "passed":
                    survived += len(left)
                    break
                if self._passes_without(outcome.test, left, mutant, source):
                    return "killed", f"{outcome.test} {outcome.status}"
                self._broken.add(outcome.test)
                left = [test for test in left if test not in self._broken]
        return "survived", f"{survived} tests passed" if survived else "no test runs it"

    def _first_failure(self, tests: Sequence[str], native: Path) -> Outcome:
        limit_s = max(
            LEAST_LIMIT_S,
            LIMIT_OF_MEASURED * sum(self._reach.cpu_s.get(test, 0.0) for test in tests),
        )
        return self._place.first_failure(tests, limit_s, native, self._place.folder / "cache")

    def _passes_without(self, test: str, tests: Sequence[str], mutant: Mutant, source: str) -> bool:
        """Whether a test that failed passes without the mutant, here and now; asked once for each
        test.

        Where the modules of the tests cannot be imported, whether all of them pass. Raises
        RuntimeError if not.
        """
        if test in self._sound:
            return True
        known = test in self._reach.cpu_s
        asked = [test] if known else tests
        if self._is_cpp:
            passes = self._first_failure(asked, self._original).status == "passed"
        else:
            remove(self._place.folder / "cache")
            with self._place.mutated(mutant.path, source):
                passes = self._first_failure(asked, self._original).status == "passed"
        if known and passes:
            self._sound.add(test)
        if not known and not passes:
            raise RuntimeError(
                f"the {test} fails without a mutant, too: {self._place.folder / 'tests.log'}"
            )
        return passes


def installed_module() -> Path:
    """The native module of this environment, for mutants of Python."""
    site = (
        Path(sys.prefix)
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )
    found = [*site.glob("llmsim/_native*.so"), *(ROOT / "llmsim").glob("_native*.so")]
    if not found:
        raise FileNotFoundError(f"no native module below {site}: run `make run` first")
    return found[0]

"""Makes mutants, one after the other, and says what became of each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutation.drawing import equivalents
from mutation.mutant import Mutant
from mutation.python_operators import same_bytecode
from mutation.reach import Reach
from mutation.selection import tests_for
from mutation.workplace import ROOT, BuildError, Outcome, Workplace, remove

LEAST_LIMIT_S = 60.0
LIMIT_OF_MEASURED = 5.0
"""A process of tests may take so many times what its tests took without a mutant; beyond it, it hangs."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: "killed", "survived", or why it does not count."""

    mutant: Mutant
    status: str
    why: str
    """The test that killed it and how, the reason why it is equivalent, or how many tests it survived."""
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

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Takes the copy, and builds it without a mutant."""
        with self._place.taken():
            if self._is_cpp:
                self._unmutated = self._place.build()
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
            native = installed_module()
            if self._is_cpp:
                try:
                    compiled = self._place.build()
                except BuildError:
                    return judged("not compiled", "the compiler refuses it")
                if compiled == self._unmutated:
                    return judged("same code", "the compiler makes of it what it makes of the original")
                native = self._place.native
            return judged(*self._tested(mutant, source, native))

    def _tested(self, mutant: Mutant, source: str, native: Path) -> tuple[str, str]:
        """Status and reason after the tests. Mutants of C++ share compiled cost tables, of which none is theirs."""
        cache = self._place.folder / "cache"
        if not self._is_cpp:
            remove(cache)
        survived = 0
        for tests in tests_for(mutant, source, self._reach, self._budget_s):
            limit_s = max(LEAST_LIMIT_S, LIMIT_OF_MEASURED * sum(self._reach.cpu_s[test] for test in tests))
            outcome: Outcome = self._place.first_failure(tests, limit_s, native, cache)
            if outcome.status != "passed":
                return "killed", f"{outcome.test} {outcome.status}"
            survived += len(tests)
        return "survived", f"{survived} tests passed" if survived else "no test runs it"


def installed_module() -> Path:
    """The native module of this environment, for mutants of Python."""
    site = Path(sys.prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    found = [*site.glob("llmsim/_native*.so"), *(ROOT / "llmsim").glob("_native*.so")]
    if not found:
        raise FileNotFoundError(f"no native module below {site}: run `make run` first")
    return found[0]

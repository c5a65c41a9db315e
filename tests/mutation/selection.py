"""Chooses the tests for a mutant: those that run its line, the ones that mirror its file and the
fast ones first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from mutation.mutant import Mutant
from mutation.reach import Reach

BESIDE = 0.3
"""Share of the budget that other tests of those files get: what a cache spared one test, another
has run.
"""
MIRRORS = {"llmsim/native": ("native", "scheduling", "offload", "routing", "disaggregation")}
"""Folders of tests that mirror a folder of sources by another name."""


def tests_for(mutant: Mutant, source: str, reach: Reach, budget_s: float) -> list[list[str]]:
    """Two runs of tests: those that run the mutant's line, then others of the same files. Empty
    where none runs it.

    `budget_s` is the processor time of all, as measured without a mutant; slower tests beyond it
    are left out.
    """
    running = reach.of_line(mutant.path, mutant.line, source)
    files = {_file(test) for test in running}
    others = sorted(
        {test for test in reach.cpu_s if _file(test) in files} - set(running),
        key=reach.cpu_s.__getitem__,
    )

    def mirroring_first(tests: Sequence[str]) -> list[str]:
        return sorted(tests, key=lambda test: not mirrors(_file(test), mutant.path))

    running, beside = mirroring_first(running), mirroring_first(others)
    chosen = [
        _within(running, reach, (1 - BESIDE) * budget_s),
        _within(beside, reach, BESIDE * budget_s),
    ]
    return [_by_file(tests, mutant.path, reach) for tests in chosen if tests]


def _within(tests: Sequence[str], reach: Reach, budget_s: float) -> list[str]:
    """As many of the tests as fit, in their order, and always the first."""
    chosen, used_s = [], 0.0
    for test in tests:
        used_s += reach.cpu_s[test]
        if chosen and used_s > budget_s:
            break
        chosen.append(test)
    return chosen


def _by_file(tests: Sequence[str], path: str, reach: Reach) -> list[str]:
    """The tests file by file, so that what a file's tests share is made once; mirroring and fast
    files first.
    """
    of_file: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        of_file[_file(test)].append(test)
    spent_s = {file: sum(reach.cpu_s[test] for test in listed) for file, listed in of_file.items()}
    order = sorted(of_file, key=lambda file: (not mirrors(file, path), spent_s[file], file))
    return [test for file in order for test in of_file[file]]


def mirrors(test_file: str, path: str) -> bool:
    """Whether a test file lies in the folder that mirrors a source's."""
    parts = path.split("/")
    folders = MIRRORS.get("/".join(parts[:2]), parts[1:2])
    return test_file.split("/")[1] in folders


def _file(test: str) -> str:
    return test.partition("::")[0]

"""`make mutate SEED=n COUNT=m`: draws mutants, tests them, and lists those that no test noticed."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from mutation.drawing import at_line, drawn, mutants_of
from mutation.mutant import Mutant
from mutation.reach import Reach, reach_of_tests
from mutation.report import line_of, summary_of, write_report
from mutation.runner import Runner, Verdict
from mutation.workplace import ROOT, BuildError

ROOTS = ("llmsim/native", "llmsim/lowering", "llmsim/costs", "llmsim/results")


def main() -> int:
    given = _arguments()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that what runs is ended, and the file restored
    try:
        mutants = _mutants(given)
    except (OSError, ValueError) as error:
        print(f"make mutate: {error}", file=sys.stderr)
        return 2
    reach = reach_of_tests(given.map, _roots(given))
    verdicts: list[Verdict] = []
    limit = None if given.at or given.again else given.count
    try:
        for verdict in _tested(mutants, reach, given.budget):
            verdicts.append(verdict)
            print(line_of(verdict), flush=True)
            write_report(_report(given), verdicts)
            if limit is not None and sum(each.counts for each in verdicts) >= limit:
                break
    except (BuildError, RuntimeError) as error:
        print(f"make mutate: {error}", file=sys.stderr)
        return 1
    print(summary_of(verdicts))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=1, help="draws the mutants: the same seed, the same mutants"
    )
    parser.add_argument(
        "--count", type=int, default=20, help="mutants that count, beside those that are equivalent"
    )
    parser.add_argument("--root", nargs="+", default=ROOTS, help="folders, or patterns of files")
    parser.add_argument(
        "--budget", type=float, default=60.0, help="processor seconds of tests for a survivor"
    )
    parser.add_argument(
        "--at", nargs="+", help="every mutant of these lines instead, each as file:line"
    )
    parser.add_argument(
        "--again", help="the survivors of a report, in their present lines, instead"
    )
    parser.add_argument(
        "--map", choices=["updated", "kept", "new"], default="updated", help="of what tests run"
    )
    return parser.parse_args()


def _mutants(given: argparse.Namespace) -> Iterable[Mutant]:
    if given.at:
        return [mutant for place in given.at for mutant in at_line(place)]
    if given.again:
        return list(_survivors(Path(given.again)))
    return drawn(given.root, given.seed)


def _survivors(report: Path) -> Iterator[Mutant]:
    """The mutants that a report calls survivors, as far as the sources still have their lines."""
    for row in json.loads(report.read_text()):
        if row["status"] != "survived" or not (ROOT / row["path"]).is_file():
            continue
        source = (ROOT / row["path"]).read_text(encoding="utf-8")
        alike = [
            each
            for each in mutants_of(row["path"])
            if each.changed_lines(source) == (row["before"], row["after"])
        ]
        if alike:
            yield min(alike, key=lambda each: abs(each.line - row["line"]))
        else:
            print(f"{'gone':<12} {row['path']}:{row['line']} {row['before']}")


def _roots(given: argparse.Namespace) -> Sequence[str]:
    """Where the mutants lie, as far as it decides which tests are noted."""
    return given.at or given.root


def _report(given: argparse.Namespace) -> Path:
    roots = "-".join(re.sub(r"\W+", "_", root.removeprefix("llmsim/")) for root in given.root)
    name = "at" if given.at else "again" if given.again else f"{roots}-{given.seed}-{given.count}"
    return ROOT / "build" / "mutation" / f"{name}.json"


def _tested(mutants: Iterable[Mutant], reach: Reach, budget_s: float) -> Iterator[Verdict]:
    """The verdict of each mutant in its order. The copy of each language is prepared when its first
    mutant comes.
    """
    with ExitStack() as copies:
        runners: dict[bool, Runner] = {}
        for mutant in mutants:
            is_cpp = not mutant.path.endswith(".py")
            if is_cpp not in runners:
                runners[is_cpp] = Runner(reach, is_cpp, budget_s)
                copies.enter_context(runners[is_cpp].prepared())
            yield runners[is_cpp].verdict(mutant)


if __name__ == "__main__":
    sys.exit(main())

"""`make fuzz-strict UPSTREAM=PATH`: random cases of every feature, run by strict rules and by a
stock ASTRA-sim (analytical, congestion aware or unaware). A difference is made smaller and kept as
a folder with the commands of both.

Exit code 0: no difference; 1: a difference; 2: a wrong option.
"""

import os
import random
import shlex
import shutil
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path

from engine.command import REPOSITORY, build_command
from engine.upstream.case import FEATURES, Case, draw
from engine.upstream.compare import Outcome, compare
from engine.upstream.minimise import minimise

KEPT = REPOSITORY / "build" / "fuzz-strict"


def options(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(prog="make fuzz-strict", description=__doc__)
    parser.add_argument("upstream", type=Path, help="the executable of a stock ASTRA-sim")
    parser.add_argument("--ours", type=Path, help="`astra-sim` (default: the installed one)")
    parser.add_argument(
        "--backend", choices=["aware", "unaware"], help="its network (default: by its name)"
    )
    parser.add_argument("--count", type=int, default=1000, help="random cases (1000)")
    parser.add_argument("--seed", type=int, help="the first seed (default: drawn and printed)")
    parser.add_argument("--timeout", type=float, default=20, help="seconds of one run (20)")
    parser.add_argument("--keep", type=Path, default=KEPT, help="folder for differences")
    given = parser.parse_args(arguments)
    if not (given.upstream.is_file() and os.access(given.upstream, os.X_OK)):
        parser.error(f"UPSTREAM is {given.upstream}, which is no executable file")
    if given.count < 1:
        parser.error(f"--count is {given.count}; 1 or more was expected")
    if given.seed is None:
        given.seed = random.SystemRandom().randrange(10**6)
    if given.backend is None:
        unaware = "unaware" in given.upstream.name.lower()
        aware = "aware" in given.upstream.name.lower() and not unaware
        given.backend = "aware" if aware else "unaware"
    return given


def keep(case: Case, folder: Path, given: Namespace, ours: Path) -> None:
    """The folder of a difference; earlier ones of the same name are replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    case.write(folder)
    commands = [
        shlex.join([str(program.absolute()), *case.options()]) for program in (ours, given.upstream)
    ]
    (folder / "commands.sh").write_text("\n".join(commands) + "\n", encoding="utf-8")


def one_case(feature: str, seed: int, given: Namespace, ours: Path) -> tuple[Outcome, str]:
    """A case of the other network counts as equal: its program is not here."""
    with tempfile.TemporaryDirectory() as scratch:
        case = draw(feature, seed, Path(scratch) / "drawn")
        if case.backend != given.backend:
            if given.backend == "aware" and b"," in case.files["network.yml"]:
                return Outcome.EQUAL, "not aware"
            case = replace(case, backend=given.backend)

        def result(candidate: Case) -> tuple[Outcome, str]:
            folder = Path(scratch) / "case"
            shutil.rmtree(folder, ignore_errors=True)
            return compare(ours, given.upstream.absolute(), candidate, folder, given.timeout)

        outcome, said = result(case)
        if outcome is Outcome.DIFFERENT:
            case = minimise(case, lambda smaller: result(smaller)[0] is Outcome.DIFFERENT)
            said = result(case)[1]
            folder = given.keep / f"{feature}-{seed}"
            keep(case, folder, given, ours)
            nodes = sum(map(len, case.traces))
            said += f" ({nodes} nodes and flags {' '.join(case.flags) or 'none'}, in {folder})"
        return outcome, said


def main(arguments: list[str]) -> int:
    """Prints every difference, then the number of each outcome and why upstream broke off."""
    given = options(arguments)
    ours = (given.ours or build_command()).absolute()
    print(f"seeds from {given.seed}, congestion {given.backend}", flush=True)
    outcomes: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    features = list(FEATURES)
    for seed in range(given.seed, given.seed + given.count):
        feature = features[seed % len(features)]
        outcome, said = one_case(feature, seed, given, ours)
        name = said if outcome is Outcome.EQUAL and said else outcome.value
        outcomes[name] += 1
        if outcome is Outcome.DIFFERENT:
            print(f"{feature} {seed}: {said}", flush=True)
        elif outcome is Outcome.UPSTREAM_FAILED:
            failures[said] += 1
    print(", ".join(f"{name}: {count}" for name, count in sorted(outcomes.items())))
    for said, count in failures.most_common(10):
        print(f"upstream failed {count} times: {said}")
    return int(outcomes[Outcome.DIFFERENT.value] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

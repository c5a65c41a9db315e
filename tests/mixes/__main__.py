"""`python -m mixes FIRST COUNT`, from tests/: checks the random runs of seeds FIRST to FIRST +
COUNT - 1.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from mixes.checks import CHANGES, Broken, Doubled, check

TESTS = Path(__file__).resolve().parents[1]
EVERY = 500
"""Seeds between two lines of progress."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mixes", description="Checks random clusters with random options."
    )
    parser.add_argument("first", type=int, help="first seed")
    parser.add_argument("count", type=int, help="number of seeds")
    options = parser.parse_args()
    os.environ["LLMSIM_DEBUG"] = "1"  # what is no known error is raised
    os.chdir(TESTS)
    sys.path.insert(0, str(TESTS))
    doubled: list[Doubled] = []
    refused = broken = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.first, options.first + options.count):
            try:
                found = check(seed, Path(folder))
                refused += found is None
                doubled += [] if found is None else [found]
                if found is not None and found.ratio > 1:
                    print(
                        (
                            f"seed {seed}: {found.ratio:.4f} times the makespan with twice the "
                            f"bandwidth ({found.change})"
                        ),
                        flush=True,
                    )
            except Exception as error:
                broken += 1
                print(
                    f"seed {seed}: {error if isinstance(error, Broken) else repr(error)}",
                    flush=True,
                )
            if (seed - options.first + 1) % EVERY == 0:
                print(
                    f"... seed {seed}: {len(doubled)} ran, {refused} refused, {broken} broken",
                    flush=True,
                )
    _report(doubled, refused, broken)
    return 1 if broken else 0


def _report(doubled: list[Doubled], refused: int, broken: int) -> None:
    print(f"{len(doubled)} ran, {refused} were refused or finished nothing, {broken} are broken")
    print("twice the bandwidth changed:")
    for change in CHANGES:
        ratios = [one.ratio for one in doubled if one.change == change]
        slower = sum(ratio > 1 for ratio in ratios)
        print(
            f"  {change:<9} {len(ratios)} runs, {slower} take longer, at worst "
            f"{max(ratios, default=1):.4f} times"
        )


if __name__ == "__main__":
    sys.exit(main())

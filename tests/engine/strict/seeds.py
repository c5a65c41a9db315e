"""Random cases from the command line: where the fast executor and the slow one differ."""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

Difference = Callable[[int, Path, Path], str]
"""Of a seed, an empty folder and the executable; empty text where the executors agree."""


def compare_seeds(difference: Difference, kind: str, arguments: Sequence[str]) -> int:
    """Prints each difference of FIRST_SEED COUNT EXECUTABLE; 1 where there is one.

    `kind` names the cases in the last line.
    """
    first, count, executable = int(arguments[0]), int(arguments[1]), Path(arguments[2]).absolute()
    found = 0
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            said = difference(seed, Path(folder), executable)
        if said:
            found += 1
            print(said, flush=True)
    print(json.dumps({kind: count, "different": found}))
    return int(found > 0)

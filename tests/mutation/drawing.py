"""Draws mutants by a seed, and knows those that somebody has shown to be equivalent."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation.cpp_operators import CppMutants
from mutation.mutant import Mutant
from mutation.python_operators import PythonMutants
from mutation.workplace import ROOT

EQUIVALENT = Path(__file__).parent / "equivalent.json"


@dataclass(frozen=True)
class Equivalent:
    """A mutant that no test can kill. It is known by its lines, blanks joined: their numbers change
    too often.
    """

    path: str
    before: str
    after: str
    reason: str


def equivalents() -> list[Equivalent]:
    return [Equivalent(**each) for each in json.loads(EQUIVALENT.read_text(encoding="utf-8"))]


def sources(roots: Sequence[str]) -> list[str]:
    """All sources below some folders, or that match a pattern, relative to the tree. Raises
    ValueError for none.
    """
    found: set[str] = set()
    for root in roots:
        below = sorted((ROOT / root).rglob("*") if (ROOT / root).is_dir() else ROOT.glob(root))
        files = {
            str(path.relative_to(ROOT)) for path in below if path.suffix in (".cpp", ".h", ".py")
        }
        if not files:
            raise ValueError(
                f'ROOT: "{root}" holds no source of C++ or Python; "llmsim/native" does'
            )
        found |= files
    return sorted(found)


def mutants_of(path: str) -> list[Mutant]:
    """Every mutant of one file, in the order of its text."""
    source = (ROOT / path).read_text(encoding="utf-8")
    return (
        PythonMutants(path, source).all()
        if path.endswith(".py")
        else CppMutants(path, source).all()
    )


def drawn(roots: Sequence[str], seed: int) -> Iterator[Mutant]:
    """All mutants below some folders in an order that depends on the seed and on the
    sources alone.
    """
    found = [mutant for path in sources(roots) for mutant in mutants_of(path)]
    random.Random(seed).shuffle(found)
    yield from found


def at_line(place: str) -> list[Mutant]:
    """Every mutant of one line, given as "file:line". Raises ValueError for another form."""
    path, _, line = place.rpartition(":")
    if not line.isdigit() or not (ROOT / path).is_file():
        raise ValueError(
            f'AT: "{place}" is no line of a file; write '
            '"llmsim/native/results/latency_breakdown.cpp:81"'
        )
    return [mutant for mutant in mutants_of(path) if mutant.line == int(line)]

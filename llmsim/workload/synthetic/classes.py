"""Classes of the requests of a synthetic workload: which request is in which, and lengths that
differ by class.
"""

import re

import numpy as np
from msgspec import Struct
from numpy.random import PCG64, Generator, SeedSequence

from llmsim.config.errors import InputError
from llmsim.core import Int64
from llmsim.workload.limits import SLO_CLASS
from llmsim.workload.synthetic.distributions import Lengths

EXAMPLE = "chat:0.7|batch:0.3"


class ClassMix(Struct, frozen=True):
    """Names of classes and how many of the lines are in each, in proportion."""

    names: tuple[str, ...]
    weights: tuple[float, ...]

    @property
    def text(self) -> str:
        """The specification that parses back to this mix."""
        return "|".join(
            f"{name}:{weight!r}" for name, weight in zip(self.names, self.weights, strict=True)
        )

    def of_lines(self, random: Generator, n: int) -> Int64:
        """The index of the class of each of n lines; fewer lines are the first ones of more."""
        ends = np.cumsum(self.weights)
        chosen = np.searchsorted(ends, random.random(n) * ends[-1], "right")
        index: Int64 = np.minimum(chosen, len(self.names) - 1).astype(np.int64)
        return index


class ByClass(Struct, frozen=True):
    """Lengths with a distribution for each class, in the order of the mix."""

    parts: tuple[Lengths, ...]

    @property
    def text(self) -> str:
        """The specification that parses back to these distributions."""
        return "|".join(part.text for part in self.parts)


def drawn(
    lengths: Lengths | ByClass, class_of: Int64, random: Generator, seed: int, quantity: int
) -> Int64:
    """A length for each row by the row's class.

    The first class draws from `random`, and every other one from a stream of its own, so that a
    class's lengths do not depend on the others and fewer rows are the first ones of more.
    """
    if not isinstance(lengths, ByClass):
        return lengths.draw(random, len(class_of))
    values = lengths.parts[0].draw(random, len(class_of))
    for index, part in enumerate(lengths.parts[1:], 1):
        stream = Generator(PCG64(SeedSequence(seed, spawn_key=(quantity, index))))
        values = np.where(class_of == index, part.draw(stream, len(class_of)), values)
    return values


def parse_mix(where: str, value: str) -> ClassMix:
    """`chat:0.7|batch:0.3`; weights may have any sum. Raises InputError, beginning with `where`."""
    names: list[str] = []
    weights: list[float] = []
    for part in value.split("|"):
        name, _, weight = part.partition(":")
        if not re.search(SLO_CLASS, name):
            raise InputError(
                f'{where}: "classes" has no name in {part!r:.60}; write NAME:SHARE, as {EXAMPLE}'
            )
        try:
            share = float(weight)
        except ValueError:
            share = 0.0
        if not 1e-9 <= share <= 1e9:
            raise InputError(
                f'{where}: "classes" gives {name} the share {weight!r:.40}, but a number above 0 '
                f"is needed, as {EXAMPLE}"
            )
        names.append(name)
        weights.append(share)
    if len(set(names)) < len(names):
        raise InputError(f'{where}: "classes" names a class twice; give each one share')
    return ClassMix(tuple(names), tuple(weights))

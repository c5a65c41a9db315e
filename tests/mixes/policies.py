"""Policies in Python that a random run may name."""

from collections.abc import Sequence
from typing import Any


class LongestFirst:
    """A queue order: the longest prompt first."""

    def key(self, request: Any) -> int:
        return -int(request.tokens)


class Shortest:
    """A preemption victim: the running request that has computed least."""

    def choose(self, running: Sequence[Any], needy: Any) -> int:
        return min(range(len(running)), key=lambda index: running[index].computed)

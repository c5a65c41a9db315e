"""The first difference between our steps and SGLang's."""

from collections.abc import Sequence
from itertools import zip_longest

from llmsim.scheduling.conformance.cases import Case

_IN_FLIGHT = 3
"""Steps that SGLang may have launched which end after its scheduler does, and its failure."""


def first_difference(ours: Sequence[Case], theirs: Sequence[Case]) -> tuple[int, str]:
    """How many steps are equal, and what then differs; empty where nothing does, up to where SGLang
    aborts a request or fails; where ours ends for lack of memory, SGLang's has to.
    """
    for number, (mine, real) in enumerate(zip_longest(ours, theirs)):
        if real is not None and ("failed" in real or (mine is not None and "aborted" in real)):
            return number, ""
        if mine is not None and "failed" in mine:
            both = any("failed" in step for step in theirs[number : number + _IN_FLIGHT])
            return number, "" if both else f"step {number}: ours ends, as {mine['failed']}"
        if mine is None or real is None:
            return number, f"step {number}: only {'SGLang' if mine is None else 'ours'} goes on"
        for field, value in real.items():
            if mine[field] != value:
                return number, f"step {number}: {field} is {mine[field]}, SGLang's {value}"
    return len(ours), ""


def failure_of(theirs: Sequence[Case]) -> str:
    """The error with which SGLang's scheduler has ended; empty where it came to its end."""
    return next((str(step["failed"]) for step in theirs if "failed" in step), "")

"""The first difference between our steps and SGLang's."""

from collections.abc import Sequence

from llmsim.scheduling.conformance.cases import Case


def first_difference(ours: Sequence[Case], theirs: Sequence[Case]) -> tuple[int, str]:
    """How many steps are equal, and what then differs; empty where nothing does, up to where SGLang
    aborts a request.
    """
    for number, (mine, real) in enumerate(zip(ours, theirs, strict=False)):
        if "aborted" in real:
            return number, ""
        for field, value in real.items():
            if mine[field] != value:
                return number, f"step {number}: {field} is {mine[field]}, SGLang's {value}"
    equal = min(len(ours), len(theirs))
    if len(ours) != len(theirs):
        return equal, f"step {equal}: only {'SGLang' if equal == len(ours) else 'ours'} goes on"
    return equal, ""

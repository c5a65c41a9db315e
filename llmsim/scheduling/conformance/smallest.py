"""Makes a case that differs smaller: fewer requests that still differ."""

from collections.abc import Callable

from llmsim.scheduling.conformance.cases import Case


def smallest(case: Case, differs: Callable[[Case], bool], most_trials: int) -> Case:
    """A case with fewer requests that differs, too: parts of the list are left out, halves first,
    as long as a difference remains. `differs` is called at most so often.
    """
    trials, part = 0, len(case["requests"]) // 2
    while part > 0 and trials < most_trials:
        at = 0
        while at < len(case["requests"]) and trials < most_trials:
            left = case["requests"][:at] + case["requests"][at + part :]
            trials += 1
            if left and differs({**case, "requests": left}):
                case = {**case, "requests": left}
            else:
                at += part
        part //= 2
    return case

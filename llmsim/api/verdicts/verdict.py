"""Whether the results of a run can be trusted, and which requests were not served."""

from collections.abc import Mapping

import numpy as np

from llmsim.config.errors import (
    BackendFailed,
    InfeasibleError,
    InterruptedRun,
    InvariantError,
)
from llmsim.core import BackendUse, GroupInfo, Results, Status
from llmsim.plurals import counted, plural

NAMED = 3
"""How many rejected requests a message names."""


def verdict(results: Results, invariants: Mapping[str, str]) -> int:
    """0 where every request was served.

    Raises InvariantError for a defect of the simulator, InterruptedRun, BackendFailed, and
    InfeasibleError where requests can never run or take KV blocks from each other for ever.
    """
    broken = [f"invariant {name}: {found}" for name, found in invariants.items() if found != "ok"]
    if broken:
        raise InvariantError(
            f"{'; '.join(broken)}; the results were written but cannot be trusted: please report "
            "this"
        )
    if results.interrupted:
        done = int((results.requests.status == Status.FINISHED).sum())
        raise InterruptedRun(
            f"interrupted; {written(done)}, {unwritten(len(results.workload) - done)}"
        )
    if results.backend is not None and results.backend.failure:
        raise BackendFailed(backend_sentence(results, results.backend))
    if results.circular:
        raise InfeasibleError(circular_sentence(results))
    rejected = (results.requests.status == Status.REJECTED).nonzero()[0]
    if len(rejected):
        raise InfeasibleError(_rejection(results, [int(i) for i in rejected]))
    return 0


STEPS = "steps that it has timed are"


def written(done: int) -> str:
    """What is left of a run that has ended early."""
    return f"the {counted(done, 'request')} that had finished {plural(done, 'was', 'were')} written"


def unwritten(left: int) -> str:
    """How many requests are lost with it."""
    return f"{counted(left, 'was', 'were')} not"


def check_backend(results: Results) -> None:
    """Raises BackendFailed where the program that timed the steps has ended the run."""
    if results.backend is not None and results.backend.failure:
        raise BackendFailed(results.backend.failure)


def backend_sentence(results: Results, use: BackendUse) -> str:
    """How the program that timed the steps failed, and what is left of the run."""
    done = int((results.requests.status == Status.FINISHED).sum())
    return (
        f"{use.failure}; {written(done)}, {unwritten(len(results.workload) - done)}, and the "
        f"{counted(use.new_steps, 'step that it has timed is', STEPS)} kept for the "
        "next run"
    )


def circular_sentence(results: Results) -> str:
    """Which requests take KV blocks from each other for ever, and what would let them end."""
    workload, requests = results.workload, results.requests
    open_states = (Status.WAITING, Status.RUNNING, Status.PARKED)
    rows = np.flatnonzero(
        np.isin(requests.status, open_states) & np.isin(requests.group, results.circular)
    )
    names = [
        str(workload.request_id[row] if workload.request_id else row)
        for row in rows[:NAMED].tolist()
    ]
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    groups = ", ".join(map(str, results.circular))
    return (
        f"the requests {', '.join(names)}{more} of group {groups} can never end: they preempt each "
        "other for ever, and none has got further for so long that none will; the others were "
        "simulated; give these requests different priorities or arrival times, give the group "
        "more KV blocks, or leave out --no-reserve-full-isl"
    )


def _rejection(results: Results, rejected: list[int]) -> str:
    """Which requests can never run and why; all others were simulated."""
    workload = results.workload
    named: list[str] = []
    enough: dict[str, int] = {}
    for row in rejected:
        group = results.groups[max(0, int(results.requests.group[row]))]
        tokens = int(workload.input_tokens[row]), int(workload.output_tokens[row])
        limit, remedy, needed = _limit(group, *tokens)
        enough[remedy] = max(enough.get(remedy, 0), needed)
        if len(named) < NAMED:
            named.append(
                f"request {workload.request_id[row] if workload.request_id else row} "
                f"({tokens[0]} prompt + {tokens[1]} output tokens; {limit})"
            )
    more = f" and {len(rejected) - NAMED} more" if len(rejected) > NAMED else ""
    remedies = [f"{remedy} to {needed}" if needed else remedy for remedy, needed in enough.items()]
    others = "" if len(rejected) == len(workload) else "the others were simulated; "
    return (
        f"{len(rejected)} of {counted(len(workload), 'request')} can never run: "
        f"{', '.join(named)}{more}; {others}"
        f"{', '.join(remedies)}, or shorten these requests"
    )


def _limit(group: GroupInfo, prompt_tokens: int, output_tokens: int) -> tuple[str, str, int]:
    """What a request exceeds in its group, what would help beside a shorter request, and to which
    value that has to be raised (0: to none).
    """
    longest, blocks = group.max_model_len, group.num_blocks - 1
    if prompt_tokens < longest:
        return (
            f"group {group.index} has {blocks} KV blocks of {group.block_size} tokens",
            "give the group more memory or a larger tp_size",
            0,
        )
    limit = f"max_model_len of group {group.index} is {longest}"
    if prompt_tokens < group.model_max_len:
        enough = min(prompt_tokens + output_tokens, group.model_max_len)
        return limit, "raise max_model_len", enough
    return (
        f"{limit}, and {group.model_name} goes to {group.model_max_len}",
        "take a model of longer contexts",
        0,
    )

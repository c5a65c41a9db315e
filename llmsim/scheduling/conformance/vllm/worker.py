"""Random cases in the engine's own interpreter: each verdict is one line of JSON.

`python -m llmsim.scheduling.conformance.vllm.worker SEED CASES REQUESTS` compares, and with a
folder as fourth argument it writes what the engine's scheduler did there instead.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.compare import compare, their_groups
from llmsim.scheduling.conformance.connectors import time_digits
from llmsim.scheduling.conformance.random_cases import random_case
from llmsim.scheduling.conformance.seeds import work, write_recording
from llmsim.scheduling.conformance.vllm import live as vllm_live
from llmsim.scheduling.conformance.vllm.live import (
    engine_profile_of,
    live_case,
)

_PS_PER_S = 1e12


def verdicts(seed: int, cases: int, requests: int) -> Iterator[dict[str, Any]]:
    """The engine's version and whose rules are compared, then one verdict for each seed."""
    version = vllm_live.installed_version()
    profile = None if version is None else engine_profile_of(version)
    yield {"version": version, "engine_profile": profile}
    if version is None:
        return
    for number in range(seed, seed + cases):
        yield {"seed": number, **asdict(compare(number, requests))}


def recording(case: Case) -> Case:
    """A case with the steps that the installed engine's scheduler makes of it, up to where it
    stands still.
    """
    case, schedulers = live_case(case)
    ran = their_groups(case, schedulers)
    digits = time_digits(case)
    steps = [step for steps in ran.groups for step in steps]
    still = set[int]().union(*(scheduler.stood_still_ps for scheduler in schedulers))
    if not still:
        return case | {"steps": [_recorded(step, digits) for step in steps]}
    before = [_recorded(step, digits) for step in steps if step["schedule_ps"] < min(still)]
    return case | {"stands_still_at": round(min(still) / _PS_PER_S, digits), "steps": before}


def _recorded(step: Case, digits: int) -> Case:
    fields = ("running", "waiting", "free_blocks", "free_blocks_after", "preempted", "finished")
    end_ps = step["end_ps"] if step["scheduled"] else -0.0
    return {
        "t": round(step["schedule_ps"] / _PS_PER_S, digits),
        "t_end": round(end_ps / _PS_PER_S, digits),
        "sched": step["scheduled"],
        "spec": step["drafts"],
    } | {name: step[name] for name in fields}


def write_recordings(seed: int, cases: int, requests: int, folder: Path) -> None:
    """One file for each seed; the same bytes every time."""
    version = vllm_live.installed_version()
    for number in range(seed, seed + cases):
        case = recording(random_case(number, requests))
        write_recording(case, folder / f"vllm_{version}_{number}.json.gz")


if __name__ == "__main__":
    work(sys.argv[1:], verdicts, write_recordings)

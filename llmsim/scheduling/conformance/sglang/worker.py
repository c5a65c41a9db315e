"""Random cases of SGLang's scheduler in the engine's own interpreter, each verdict a line of JSON.

`python -m llmsim.scheduling.conformance.sglang.worker SEED CASES REQUESTS` compares, and with a
folder as fourth argument it writes what SGLang's scheduler did there instead.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.engine_failure import words_of
from llmsim.scheduling.conformance.seeds import work, write_recording
from llmsim.scheduling.conformance.sglang.compare import failure_of, first_difference
from llmsim.scheduling.conformance.sglang.live import installed_version, their_steps
from llmsim.scheduling.conformance.sglang.loops import dp_ranks
from llmsim.scheduling.conformance.sglang.ours import our_run
from llmsim.scheduling.conformance.sglang.platform import prepare
from llmsim.scheduling.conformance.sglang.random_cases import random_case
from llmsim.scheduling.conformance.smallest import smallest

MOST_TRIALS = 30
"""Runs that make a case smaller, at most; SGLang takes seconds to start for each."""


def verdicts(seed: int, cases: int, requests: int) -> Iterator[dict[str, Any]]:
    """The engine's version, then one verdict for each seed."""
    version = installed_version()
    yield {"version": version, "engine_profile": "sglang-0.5"}
    if version is None:
        return
    prepare()
    for number in range(seed, seed + cases):
        case = random_case(number, requests)
        yield {"seed": number, **_smallest_verdict(case), "options": json.dumps(case["config"])}


def _smallest_verdict(case: Case) -> dict[str, Any]:
    """The verdict; of a case that differs, that of the smallest one found that differs."""
    verdict = _verdict(case)
    if verdict["difference"]:
        case = smallest(case, lambda one: bool(_verdict(one)["difference"]), MOST_TRIALS)
        verdict = _verdict(case)
    return {**verdict, "requests": len(case["requests"])}


def _verdict(case: Case) -> dict[str, Any]:
    """What the comparison says of a case; an error of either scheduler is part of that."""
    try:
        ours = our_run(case)
    except RuntimeError as error:
        said = f"our scheduler ends with an error: {error}"
        return {"steps": 0, "difference": said, "not_comparable": ""}
    theirs = recorded_steps(ours.servers)
    equal, difference = first_difference(ours.steps, theirs)
    failure = "" if difference else failure_of(theirs)
    return {"steps": equal, "difference": difference, "not_comparable": failure}


def recorded_steps(servers: Sequence[Case]) -> list[Case]:
    """The steps of SGLang's schedulers of each server; a scheduler that fails has `failed` last."""
    return [step for server in servers for step in _server_steps(server)]


def _server_steps(case: Case) -> list[Case]:
    """The steps of a server, those of its first rank first."""
    ranks = dp_ranks.with_ranks(case)
    started = [_start(rank, [one for one in ranks if one is not rank]) for rank in ranks]
    dp_ranks.close(ranks)
    return [step for child, written in started for step in _steps_of(child, written)]


def _start(case: Case, others: Sequence[Case]) -> tuple[int, IO[str]]:
    """A process with SGLang's scheduler, of which one can start only one, and the file that it
    writes: a rank that has failed ends, whoever reads it. The others are the server's other ranks.
    """
    written = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (its reader closes it)
    child = os.fork()
    if child == 0:
        dp_ranks.close(others)
        os._exit(_write_steps(case, written))
    return child, written


def _steps_of(child: int, written: IO[str]) -> list[Case]:
    _, status = os.waitpid(child, 0)
    with written:
        written.seek(0)
        text = written.read()
    if status != 0:
        return [{"failed": f"SGLang's process ended with status {status}"}]
    steps: list[Case] = json.loads(text)
    for step in steps:
        if "scheduled" in step:
            step["scheduled"] = [tuple(item) for item in step["scheduled"]]
    return steps


def _write_steps(case: Case, written: IO[str]) -> int:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    steps: list[Case] = []
    try:
        steps.extend(their_steps(case))
    except Exception as error:
        steps.append({"failed": f"SGLang's scheduler ends with {words_of(error)}"})
    written.write(json.dumps(steps))
    written.flush()
    return 0


def write_recordings(seed: int, cases: int, requests: int, folder: Path) -> None:
    """One file for each seed; the same bytes every time."""
    prepare()
    version = installed_version()
    for number in range(seed, seed + cases):
        case = random_case(number, requests)
        steps = recorded_steps(our_run(case).servers)
        failure = failure_of(steps)
        if failure:
            raise SystemExit(f"error: seed {number} gives no recording: {failure}")
        case |= {"engine": f"sglang {version}", "steps": steps}
        write_recording(case, folder / f"sglang_{version}_{number}.json.gz")


if __name__ == "__main__":
    work(sys.argv[1:], verdicts, write_recordings)

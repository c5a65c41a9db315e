"""Random cases of SGLang's scheduler in the engine's own interpreter, each verdict a line of JSON.

`python -m llmsim.scheduling.conformance.sglang.worker SEED CASES REQUESTS` compares, and with a
folder as fourth argument it writes what SGLang's scheduler did there instead.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.seeds import work, write_recording
from llmsim.scheduling.conformance.sglang.compare import first_difference
from llmsim.scheduling.conformance.sglang.dp_ranks import with_ranks
from llmsim.scheduling.conformance.sglang.live import installed_version, their_steps
from llmsim.scheduling.conformance.sglang.ours import our_run
from llmsim.scheduling.conformance.sglang.platform import prepare
from llmsim.scheduling.conformance.sglang.random_cases import random_case


def verdicts(seed: int, cases: int, requests: int) -> Iterator[dict[str, Any]]:
    """The engine's version, then one verdict for each seed."""
    version = installed_version()
    yield {"version": version, "engine_profile": "sglang-0.5"}
    if version is None:
        return
    prepare()
    for number in range(seed, seed + cases):
        case = random_case(number, requests)
        ours = our_run(case)
        equal, difference = first_difference(ours.steps, recorded_steps(ours.servers))
        options = json.dumps(case["config"])
        yield {"seed": number, "steps": equal, "difference": difference, "options": options}


def recorded_steps(servers: Sequence[Case]) -> list[Case]:
    """The steps of SGLang's schedulers of each server."""
    return [step for server in servers for step in _server_steps(server)]


def _server_steps(case: Case) -> list[Case]:
    """The steps of a server, those of its first rank first."""
    started = [_start(rank) for rank in with_ranks(case)]
    return [step for child, read in started for step in _steps_of(child, read)]


def _start(case: Case) -> tuple[int, int]:
    """A process with SGLang's scheduler, of which one can start only one, and where it writes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os._exit(_write_steps(case, write))
    os.close(write)
    return child, read


def _steps_of(child: int, read: int) -> list[Case]:
    with os.fdopen(read, encoding="utf-8") as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise SystemExit(f"SGLang's scheduler ended with an error: {text[-2000:]}")
    steps: list[Case] = json.loads(text)
    for step in steps:
        if "aborted" in step:
            continue
        step["scheduled"] = [tuple(item) for item in step["scheduled"]]
    return steps


def _write_steps(case: Case, write: int) -> int:
    with os.fdopen(write, "w", encoding="utf-8") as stream:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        try:
            stream.write(json.dumps(list(their_steps(case))))
        except BaseException:
            stream.write(traceback.format_exc())
            return 1
    return 0


def write_recordings(seed: int, cases: int, requests: int, folder: Path) -> None:
    """One file for each seed; the same bytes every time."""
    prepare()
    version = installed_version()
    for number in range(seed, seed + cases):
        case = random_case(number, requests)
        steps = recorded_steps(our_run(case).servers)
        case |= {"engine": f"sglang {version}", "steps": steps}
        write_recording(case, folder / f"sglang_{version}_{number}.json.gz")


if __name__ == "__main__":
    work(sys.argv[1:], verdicts, write_recordings)

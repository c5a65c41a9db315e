"""`llmsim conformance`: proves the schedulers step by step against recordings of the real ones."""

import sys
from pathlib import Path
from typing import Annotated

import typer

SCHEDULES_HELP = (
    "Replay recorded schedules (.json or .json.gz, files or folders) and report the first "
    "difference of each. The last line is `N/M cases identical, S steps`; the exit code is 4 "
    "unless all cases are identical."
)
VLLM_HELP = (
    "Compare llmsim's scheduler with the installed vLLM's on random configurations and "
    "workloads. Both run in one loop, and the first difference of each case is reported. The "
    "command needs the extra llmsim[vllm]; it is skipped with exit code 0 if vLLM is missing."
)
DIFFERENT = 4


def schedules(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Names recordings, or folders of recordings.", show_default=False),
    ],
) -> int:
    """One line for each recording; returns the exit code."""
    from llmsim.scheduling.conformance.recorded import find_recordings, replay

    verdicts = []
    for path in find_recordings(paths):
        verdict = replay(path)
        verdicts.append(verdict)
        print(
            f"{path}: {'identical' if verdict.identical else verdict.difference} "
            f"({verdict.steps} steps)"
        )
    identical = sum(verdict.identical for verdict in verdicts)
    steps = sum(verdict.steps for verdict in verdicts)
    print(f"{identical}/{len(verdicts)} cases identical, {steps} steps")
    return 0 if identical == len(verdicts) else DIFFERENT


def vllm(
    requests: Annotated[
        int, typer.Option(min=1, max=100_000, help="Sets the requests of each case.")
    ] = 300,
    seed: Annotated[
        int, typer.Option(min=0, help="Seeds the first case; case i has this seed + i.")
    ] = 0,
    cases: Annotated[
        int, typer.Option(min=1, help="Sets the number of random configurations.")
    ] = 50,
) -> int:
    """One line for each case; returns the exit code."""
    from llmsim.scheduling.conformance.vllm_live import installed_version

    version = installed_version()
    if version is None:
        print("skipped: vLLM is not installed (llmsim[vllm])", file=sys.stderr)
        return 0
    from llmsim.scheduling.conformance.compare import compare

    identical = steps = 0
    for number in range(seed, seed + cases):
        verdict = compare(number, requests)
        identical += not verdict.difference
        steps += verdict.steps
        print(
            (
                f"seed {number}: {verdict.difference or 'identical'} ({verdict.steps} steps) "
                f"{verdict.options}"
            ),
            flush=True,
        )
    print(f"{identical}/{cases} cases identical, {steps} steps, vLLM {version}")
    return 0 if identical == cases else DIFFERENT

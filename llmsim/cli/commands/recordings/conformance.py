"""`llmsim conformance`: proves the schedulers step by step against recordings of the real ones."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

SCHEDULES_HELP = (
    "Replay recorded schedules (.json or .json.gz, files or folders) and report the first "
    "difference of each. The last line is `N/M cases identical, S steps`; the exit code is 4 "
    "unless all cases are identical."
)
VLLM_HELP = (
    "Compare llmsim's scheduler with the installed vLLM's on random configurations and "
    "workloads, or with recordings. Both run in one loop, and the first difference of each case is "
    "reported with few requests; the exit code is then 1. Without --recorded the command needs the "
    "extra llmsim[vllm] or --engine-python; it is skipped with exit code 0 if vLLM is missing."
)
SGLANG_HELP = (
    "Compare the scheduler sglang with SGLang's own on random configurations and workloads, or on "
    "recordings. The first difference of each case is reported; the exit code is then 1. The "
    "command needs SGLang's Python packages here or with --engine-python, but no GPU; it is "
    "skipped with exit code 0 if SGLang is missing."
)
SGLANG_WORKER = "llmsim.scheduling.conformance.sglang.worker"
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


_Requests = Annotated[int, typer.Option(min=1, max=100_000, help="Sets the requests of each case.")]
_Seed = Annotated[int, typer.Option(min=0, help="Seeds the first case; case i has this seed + i.")]
_Cases = Annotated[int, typer.Option(min=1, help="Sets the number of random configurations.")]
_EnginePython = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Names the interpreter that has the engine, instead of this one.",
        show_default=False,
    ),
]
_Recorded = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Replays the engine's recordings of this folder and below it, or one file, instead of "
        "running the engine.",
        show_default=False,
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Prints one JSON object instead of lines.")]


def vllm(
    recorded: _Recorded = None,
    requests: _Requests = 300,
    seed: _Seed = 0,
    cases: _Cases = 50,
    engine_python: _EnginePython = None,
    as_json: _Json = False,
) -> int:
    """One line for each case, or one object; returns the exit code."""
    if recorded is not None:
        from llmsim.scheduling.conformance.recorded import recorded_verdicts

        return _report("vLLM", recorded_verdicts(recorded), cases, as_json=as_json)
    return _report("vLLM", _verdicts(engine_python, seed, cases, requests), cases, as_json=as_json)


def sglang(
    recorded: _Recorded = None,
    requests: _Requests = 300,
    seed: _Seed = 0,
    cases: _Cases = 50,
    engine_python: _EnginePython = None,
    as_json: _Json = False,
) -> int:
    """One line for each case, or one object; returns the exit code."""
    if recorded is not None:
        from llmsim.scheduling.conformance.sglang.recorded import recorded_verdicts

        return _report("SGLang", recorded_verdicts(recorded), cases, as_json=as_json)
    return _report("SGLang", _sglang(engine_python, seed, cases, requests), cases, as_json=as_json)


def _report(name: str, results: Iterator[dict[str, Any]], cases: int, *, as_json: bool) -> int:
    engine = next(results)
    version, first, identical, steps = engine["version"], None, 0, 0
    if version is None:
        print(f"skipped: {name} is not installed{_REMEDIES[name]}", file=sys.stderr)
        return 0
    cases = engine.pop("cases", cases)
    not_comparable: list[dict[str, Any]] = []
    for verdict in results:
        verdict = {"not_comparable": "", **verdict}
        options, reason = verdict["options"], verdict.pop("not_comparable")
        steps += verdict["steps"]
        if reason:
            not_comparable.append({"seed": verdict["seed"], "reason": reason})
        elif not verdict["difference"]:
            identical += 1
        elif first is None:
            first = {**verdict, "options": json.loads(options)}
        if not as_json:
            shown = verdict.get("recording") or f"seed {verdict['seed']}"
            outcome = f"not comparable, {reason}" if reason else verdict["difference"]
            print(
                f"{shown}: {outcome or 'identical'} ({verdict['steps']} steps) {options}",
                flush=True,
            )
    if as_json:
        counts = {"cases": cases, "identical": identical, "steps": steps}
        found = {"first_difference": first, "not_comparable": not_comparable}
        print(json.dumps({**engine, **counts, **found}))
    else:
        apart = f", {len(not_comparable)} not comparable" if not_comparable else ""
        print(f"{identical}/{cases} cases identical{apart}, {steps} steps, {name} {version}")
    return _exit_code(cases, identical, len(not_comparable))


def _exit_code(cases: int, identical: int, not_comparable: int) -> int:
    """No case that could be compared is an error, and not a success."""
    if identical + not_comparable < cases:
        return 1
    return 0 if identical > 0 else 2


_REMEDIES = {"vLLM": " (llmsim[vllm])", "SGLang": "; --engine-python names an interpreter with it"}


def _sglang(
    engine_python: Path | None, seed: int, cases: int, requests: int
) -> Iterator[dict[str, Any]]:
    if engine_python is not None:
        from llmsim.scheduling.conformance.engine_python import verdicts_of

        return verdicts_of(engine_python, seed, cases, requests, SGLANG_WORKER)
    from llmsim.scheduling.conformance.sglang.worker import verdicts

    return verdicts(seed, cases, requests)


def _verdicts(
    engine_python: Path | None, seed: int, cases: int, requests: int
) -> Iterator[dict[str, Any]]:
    if engine_python is not None:
        from llmsim.scheduling.conformance.engine_python import verdicts_of

        return verdicts_of(engine_python, seed, cases, requests)
    from llmsim.scheduling.conformance.vllm.worker import verdicts

    return verdicts(seed, cases, requests)

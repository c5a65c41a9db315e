"""`llmsim conformance`: proves the schedulers step by step against recordings of the real ones."""

from pathlib import Path
from typing import Annotated

import typer

SCHEDULES_HELP = (
    "Replay recorded schedules (.json or .json.gz, files or folders) and report the first difference of each. "
    "Ends with `N/M cases identical, S steps`; exit code 4 unless all are identical."
)
DIFFERENT = 4


def schedules(
    paths: Annotated[list[Path], typer.Argument(help="Recordings, or folders of them.", show_default=False)],
) -> int:
    from llmsim.scheduling.recorded import find_recordings, replay

    verdicts = []
    for path in find_recordings(paths):
        verdict = replay(path)
        verdicts.append(verdict)
        print(f"{path}: {'identical' if verdict.identical else verdict.difference} ({verdict.steps} steps)")
    identical = sum(verdict.identical for verdict in verdicts)
    steps = sum(verdict.steps for verdict in verdicts)
    print(f"{identical}/{len(verdicts)} cases identical, {steps} steps")
    return 0 if identical == len(verdicts) else DIFFERENT

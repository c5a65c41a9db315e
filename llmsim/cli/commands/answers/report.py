"""`llmsim report`: runs as one HTML file."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import InputError, nearest

HELP = (
    "Write a report of one run, or of several side by side: one HTML file with figures, charts, "
    "configuration and sources, which opens without a network. RUN_DIR is a folder of `llmsim run "
    "--run-dir`."
)


AUTO, NONE = "auto", "none"
MOST_REQUESTS = 3000
"""Requests of runs whose changes are tested where nothing is said; more take minutes."""


def command(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR...", help="Names the run folders.", show_default=False),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Writes this HTML file.", parser=given_path, metavar="<path>"
        ),
    ],
    title: Annotated[
        str | None, typer.Option("--title", help="Sets the title of the page.", show_default=False)
    ] = None,
    why: Annotated[
        str,
        typer.Option(
            "--why",
            help="Tests by further runs what would help: ttft, tpot or e2el; none; or auto, which "
            "is ttft for runs of at most 3000 requests.",
        ),
    ] = AUTO,
) -> int:
    """Reads the runs and writes the page; raises InputError."""
    from llmsim.export.files import check_page
    from llmsim.export.html_report.page import write_report

    check_page("--output", output)
    _check_why(why)
    write_report(run_dirs, output, title, lambda folder: _why(folder, why))
    size = output.stat().st_size
    typer.echo(f"{output}: {len(run_dirs)} run{'s' * (len(run_dirs) > 1)}, {size / 1e6:.2f} MB")
    return 0


def _check_why(why: str) -> None:
    from llmsim.api.why.seen import METRICS

    known = (AUTO, NONE, *METRICS)
    if why not in known:
        raise InputError(
            f'--why is "{why}"{nearest(why, known)}; give {", ".join(known)}', field="--why"
        )


def _why(folder: Path, why: str) -> "Mapping[str, Any] | None":
    """What `llmsim why --json` prints of a run, or None where it is not asked for.

    Raises InputError where it is asked for and the run cannot be repeated.
    """
    from llmsim.api.checked.run_inputs import RunInputs
    from llmsim.api.why.answer import why as explain
    from llmsim.config.errors import LlmsimError
    from llmsim.export.benchmark_formats.tables import read_summary

    if why == NONE:
        return None
    summary = read_summary(folder)
    if why == AUTO and summary["workload"]["requests"] > MOST_REQUESTS:
        return None
    try:
        inputs = RunInputs.of_folder(folder)
        with inputs.in_directory(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run of the folder has said it
            return explain(inputs.run(), "ttft" if why == AUTO else why, 99.0).to_dict()
    except (LlmsimError, OSError):
        if why == AUTO:
            return None
        raise

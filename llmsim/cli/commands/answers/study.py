"""`llmsim study`: one question about deployments that several runs answer."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from llmsim.cli.run.command_line import given_path

HETERO_HELP = (
    "Find the roles of a deployment that may take cheaper devices. Each allocation of devices to "
    "roles is simulated, and passes three gates: alignment, latency, cost efficiency "
    "(docs/how-to/heterogeneous.md)."
)


def hetero(
    file: Annotated[
        Path,
        typer.Argument(help="Names the study file (.yaml or .json).", show_default=False),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Prints JSON on stdout instead of a table.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            parser=given_path,
            metavar="<path>",
            help="Draws cost efficiency over spend ratio into this picture (.png, .svg or .pdf).",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Prints the study; InputError for a file that is none. Returns the exit code."""
    from llmsim.api.pictures.files import check_picture
    from llmsim.cli.run.signals import terminable
    from llmsim.export.json import json_text
    from llmsim.study import load_hetero, report, study

    question = load_hetero(file)
    if plot is not None:
        check_picture(plot)
    with terminable():
        found = study(question)
    sys.stdout.write(json_text(found.as_json()) if as_json else report.text(found))
    if plot is not None:
        report.plot(found, plot)
    return 0

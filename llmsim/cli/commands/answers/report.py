"""`llmsim report`: runs as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import InputError

HELP = (
    "Write a report of one run, or of several side by side: one HTML file with figures, charts, "
    "configuration and sources, which opens without a network. RUN_DIR is a folder of `llmsim run "
    "--run-dir`."
)


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
) -> int:
    """Reads the runs and writes the page; raises InputError."""
    from llmsim.export.files import check_writable
    from llmsim.export.html_report.page import write_report

    if output.suffix not in (".html", ".htm"):
        raise InputError(f"--output {output}: the name of a report ends in .html")
    check_writable(output)
    write_report(run_dirs, output, title)
    size = output.stat().st_size
    typer.echo(f"{output}: {len(run_dirs)} run{'s' * (len(run_dirs) > 1)}, {size / 1e6:.2f} MB")
    return 0

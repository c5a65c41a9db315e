"""`llmsim export`: a run in the format of another tool."""

from pathlib import Path
from typing import Annotated

import typer

from llmsim.cli.run.command_line import given_path

HELP = (
    "Write a run in the format of another tool: vllm-bench, aiperf, guidellm, openmetrics, "
    "inference-perf, llmservingsim or mlperf. RUN_DIR is a folder of `llmsim run --run-dir`."
)


def command(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Names the run folder.", show_default=False)
    ],
    form: Annotated[str, typer.Option("--format", help="Chooses the format.", metavar="<str>")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Writes this file; aiperf and inference-perf write two files into a folder.",
            parser=given_path,
            metavar="<path>",
        ),
    ],
) -> int:
    """Reads, writes and names the files; raises InputError."""
    from llmsim.export.benchmark_formats.formats import check_format, export
    from llmsim.export.benchmark_formats.tables import RunTables

    check_format(form)
    for path in export(RunTables.of_folder(run_dir), form, output):
        typer.echo(f"{path}: {form}")
    return 0

"""`llmsim why`: what the slowest requests of a run wait for, and what would help."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmsim.cli.run.command_line import given_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llmsim.api.result import Result

HELP = (
    "Explain a slow percentile of a run: the parts of the slowest requests' latency, the causes, "
    "and the changes that would help. RUN_DIR is a folder of `llmsim run --run-dir`; the run is "
    "run again, and each change is tested by another run."
)

RunDir = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="Names the run folder.", show_default=False)
]
Metric = Annotated[
    str, typer.Option("--metric", help="Chooses the latency: ttft, tpot or e2el.", metavar="<str>")
]
Percentile = Annotated[
    float, typer.Option("--percentile", help="Sets the percentile from which requests are slow.")
]
Request = Annotated[
    str | None,
    typer.Option(
        "--request",
        help="Adds the story of one request, by its name in the trace or its number.",
        show_default=False,
    ),
]
WhatIf = Annotated[
    int | None,
    typer.Option(
        "--what-if",
        help="Tests at most N changes; 0 tests none, so that causes are suspicions alone.",
        show_default=False,
        min=0,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Prints JSON instead of text.")]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Draws the parts and the changes into a picture (.png, .svg or .pdf).",
        show_default=False,
        parser=given_path,
        metavar="<path>",
    ),
]


def command(
    run_dir: RunDir,
    metric: Metric = "ttft",
    percentile: Percentile = 99.0,
    request: Request = None,
    what_if: WhatIf = None,
    as_json: AsJson = False,
    plot: Plot = None,
) -> int:
    """Explains and prints; raises InputError."""
    from llmsim.api.checked.run_inputs import RunInputs
    from llmsim.api.pictures.files import check_picture, write_figure
    from llmsim.api.why.answer import why
    from llmsim.api.why.seen import checked_metric, checked_percentile
    from llmsim.export.benchmark_formats.tables import read_summary

    checked_metric(metric), checked_percentile(percentile)
    if plot is not None:
        check_picture(plot)
    inputs, recorded = RunInputs.of_folder(run_dir), read_summary(run_dir)
    with inputs.in_directory():
        result = inputs.run()
        _compare(run_dir, recorded, result)
        answer = why(result, metric, percentile, request=request, what_if=what_if)
    if plot is not None:
        write_figure(plot, answer.plot())
    text = json.dumps(answer.to_dict(), indent=2) + "\n" if as_json else str(answer)
    sys.stdout.write(text)
    return 0


def _compare(folder: Path, recorded: "Mapping[str, Any]", result: "Result") -> None:
    """Says on stderr where the run gives other figures than its folder holds."""
    now = json.loads(json.dumps(result.summary))
    names = [name for name in now if name.endswith("_ms") or name in ("completed", "duration")]
    changed = [name for name in names if recorded.get(name) != now[name]]
    if changed:
        name = changed[0]
        print(
            f"note: the run gives other figures now than {folder} holds ({name} was "
            f"{recorded.get(name)}, is {now[name]}): llmsim or a file that it reads has changed",
            file=sys.stderr,
        )

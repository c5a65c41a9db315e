"""`llmsim validate`: a recorded run against a simulated one."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from llmsim.cli.commands.recordings.options import AsJson, SkipSeconds, check_skip_seconds
from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import InputError

HELP = (
    "Compare a recorded run with a simulated one, request by request. The report has the errors"
    " of TTFT, TPOT, ITL, latency, throughput and makespan, and lists whatever makes the "
    "comparison unsound. The recorded run is vLLM's per-request log, the JSON of `vllm bench "
    "serve --save-detailed`, or aiperf's profile_export.jsonl. The simulated run is a run "
    "folder, requests.parquet or CSV. Logs that hold means alone (vLLM's benchmark without "
    "details, aiperf's summary, a /metrics page of vLLM) are compared by their means."
)


def command(
    log: Annotated[
        Path, typer.Argument(help="Names the log of the recorded run.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Argument(help="Names the folder or file of the simulated run.", show_default=False),
    ],
    skip_seconds: SkipSeconds = 2.0,
    doctor: Annotated[
        bool,
        typer.Option(
            "--doctor/--no-doctor",
            help="Runs the simulation again with other options where it is 4 % or more from the "
            "log, and names the option that explains the log.",
        ),
    ] = True,
    as_json: AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Writes validation.md and validation.json into this folder.",
            show_default=False,
            parser=given_path,
            metavar="<path>",
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(
            "--plots",
            help="Writes cdf.png, scatter.png and time.png into this folder.",
            show_default=False,
            parser=given_path,
            metavar="<path>",
        ),
    ] = None,
) -> int:
    """Compares, writes, prints; raises InputError for what is no recording. Returns
    the exit code.
    """
    from llmsim.export.files import atomic_writer, check_writable_folder

    check_skip_seconds(skip_seconds)
    folder = None if out is None else check_writable_folder(out)
    texts = _compared(log, output, skip_seconds, plots, doctor)
    if folder is not None:
        for name, text in texts.items():
            with atomic_writer(folder / name) as stream:
                stream.write(text)
    sys.stdout.write(texts["validation.json" if as_json else "validation.md"])
    return 0


def _compared(
    log: Path, output: Path, skip_seconds: float, plots: Path | None, doctor: bool
) -> dict[str, str]:
    """The two files of a comparison by name; of single requests, or of means where the log has no
    more. Draws plots.
    """
    from llmsim.api.trials import diagnosed, inputs_of
    from llmsim.cli.run.counted import Counted
    from llmsim.export.json import json_text
    from llmsim.validation import read_recording
    from llmsim.validation.compare.compare import compare
    from llmsim.validation.compare.table import markdown
    from llmsim.validation.fit.means import compare_means, means_json
    from llmsim.validation.logs.means_readers import read_means
    from llmsim.validation.logs.simulated import SIMULATED_KINDS
    from llmsim.validation.report.means_table import means_markdown

    means = read_means(log)
    if means is not None:
        if plots is not None:
            raise InputError(f"--plots: {log} holds means only; there is nothing to draw")
        beside = compare_means(means, read_recording(output))
        return {
            "validation.md": means_markdown(beside),
            "validation.json": json_text(means_json(beside)),
        }
    real, simulated = read_recording(log), read_recording(output)
    if real.kind in SIMULATED_KINDS and simulated.kind not in SIMULATED_KINDS:
        raise InputError(
            f"{output} is a {simulated.kind} and {log} a {real.kind}; the recorded run comes first"
        )
    comparison = compare(real, simulated, skip_seconds)
    inputs = inputs_of(output) if doctor else None
    if inputs is not None:
        with Counted(quiet=False) as progress:
            progress.begin("simulations")
            comparison = diagnosed(comparison, real, inputs, log, progress.done)
    if plots is not None:
        from llmsim.validation.report.plots import write_plots

        write_plots(comparison, plots)
    return {
        "validation.md": markdown(comparison),
        "validation.json": json_text(comparison.as_json()),
    }

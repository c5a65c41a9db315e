"""`llmsim run`: one cluster, one trace, one answer."""

import typer

from llmsim.api.checked.given import Given
from llmsim.api.checked.run_options import RunOptions, checked
from llmsim.cli.run.command_line import taking_command_line
from llmsim.cli.run.inputs_report import inputs_reported
from llmsim.config.files import input_files

HELP = (
    "Simulate a cluster (JSON) that serves a trace (JSONL), and report the latencies of every "
    "request and the figures of the cluster."
)


@taking_command_line
def command(context: typer.Context, given: Given) -> int:
    """Runs the checked options, or passes them to the callable in `context.obj` that another
    command has put there.
    """
    with input_files.recorded() as files:
        if context.obj is not None:
            code: int = context.obj(checked(given))
            return code
        with inputs_reported(given.input_files, files):
            return run(checked(given))


def run(options: RunOptions) -> int:
    """Runs it; returns the exit code. Everything that can be wrong with the input is found before
    the run.
    """
    from llmsim.api.preparation.prepare import prepare
    from llmsim.cli.run.outputs import TIMELINE_ROWS, check_outputs, write_outputs
    from llmsim.cli.run.progress import Progress
    from llmsim.cli.run.signals import terminable, undisturbed
    from llmsim.export.series_files import SeriesFiles
    from llmsim.simulation.run import simulate

    check_outputs(options)
    prepared = prepare(options)
    lowered, workload = prepared.lowered, prepared.workload
    keep = TIMELINE_ROWS if options.timeline is not None else 0
    with SeriesFiles(options.run_dir, keep) as series:
        with terminable(), Progress(len(workload), lowered, options) as progress:
            results = simulate(lowered, workload, prepared.simulation, progress.update, series)
        if options.require:
            from llmsim.api.verdicts.provenance_gate import require

            require(options.require, lowered, results)
        with undisturbed():
            return write_outputs(options, prepared.as_run(results), results, series)

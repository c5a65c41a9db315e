"""Writes what `llmsim run` was asked for, and decides the exit code."""

import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsim.api.report import asked_record, summary_of, write_run_folder
from llmsim.api.verdicts.verdict import verdict
from llmsim.cli import forget_stdout
from llmsim.config.errors import (
    InputError,
    LlmsimError,
)
from llmsim.core import Results

if TYPE_CHECKING:
    from llmsim.api.checked.run_options import RunOptions
    from llmsim.api.preparation.prepare import Prepared
    from llmsim.export.series_files import SeriesFiles
    from llmsim.lowering import LoweredDeployment

TIMELINE_ROWS = 2_000_000
"""Of a series in a timeline: each is eleven counters of some twenty bytes, and viewers load some
hundred MB.
"""


CSV_ENDINGS = (".csv", ".txt")
"""Of names of tables in CSV."""
OTHER_FORMATS = "; --run-dir writes Parquet and JSON, and llmsim export other formats"


def check_outputs(options: "RunOptions") -> None:
    """Raises InputError, before any work, where an output cannot be written or would replace an
    input.
    """
    from llmsim.export.files import (
        check_ending,
        check_writable,
        check_writable_folder,
        keep_inputs,
    )

    outputs = (
        ("--output", options.output),
        ("--timeline", options.timeline),
        ("--input-files", options.input_files),
    )
    for option, path in outputs:
        if path is not None:
            keep_inputs(option, path, _inputs(options))
            check_writable(path)
    if options.output is not None:
        check_ending("--output", options.output, CSV_ENDINGS, OTHER_FORMATS)
    if options.output is not None and options.output == options.timeline:
        raise InputError(f"--output and --timeline are both {options.output}; name two files")
    if options.timeline is not None:
        from llmsim.export.timeline.timeline import check_perfetto

        check_perfetto()
    if options.run_dir is not None:
        _tell_of_another_run(check_writable_folder(options.run_dir), options.quiet)
    if options.graphs is not None:
        check_writable_folder(options.graphs.folder)


def _tell_of_another_run(folder: Path, quiet: bool) -> None:
    """A note on stderr, before the run, where it will replace what another command wrote."""
    from llmsim.export.run_dir import arguments_of

    arguments = arguments_of(folder)
    if arguments is not None and arguments != sys.argv[1:] and not quiet:
        command = shlex.join(["llmsim", *arguments])
        warnings.warn(f"{folder} holds the run of `{command}`; this run replaces it", stacklevel=2)


def _inputs(options: "RunOptions") -> list[Path]:
    """The files that a run reads and that its manifest names."""
    from llmsim.workload.dataset import file_of

    files = [options.cluster, *map(Path, file_of(options.dataset))]
    return files if options.arrivals is None else [*files, options.arrivals]


def write_outputs(
    options: "RunOptions",
    prepared: "Prepared",
    results: Results,
    series: "SeriesFiles",
) -> int:
    """Files first, then stdout, then one sentence on stderr for what went wrong; the exit code says
    which.

    An output that cannot be written does not cost the others: its error is raised last.
    """
    lowered = prepared.lowered
    report = summary_of(results, lowered, prepared.objectives)
    writers: list[Callable[[], None]] = []
    if options.output is not None:
        writers.append(lambda: _write_csv(options, results))
    if options.run_dir is not None:
        writers.append(lambda: _write_run_dir(options, prepared, results, report, series))
    if options.timeline is not None:
        writers.append(lambda: _write_timeline(options, prepared, results, series))
    if options.graphs is not None:
        writers.append(lambda: _write_graphs(options, prepared, results))
    writers.append(lambda: _print_report(options, lowered, report))
    errors = []
    for write in writers:
        try:
            write()
        except (LlmsimError, OSError) as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return verdict(results, report["invariants"])


def _write_csv(options: "RunOptions", results: Results) -> None:
    from llmsim.export.csv import write_csv

    assert options.output is not None
    write_csv(results, options.output)


def _write_timeline(
    options: "RunOptions",
    prepared: "Prepared",
    results: Results,
    series: "SeriesFiles",
) -> None:
    from llmsim.export.timeline.gauges import GroupOperators
    from llmsim.export.timeline.timeline import write_timeline

    assert options.timeline is not None
    for table in ("series", "kv_tiers"):
        if series.kept.too_long(table):
            rows = series.kept.num_rows[table]
            wanted = options.log_interval_ps * rows / TIMELINE_ROWS / 1e12
            raise InputError(
                f"--timeline {options.timeline} was not written: the series has {rows} rows, of "
                f"which a timeline takes {TIMELINE_ROWS}; --log-interval "
                f"{options.log_interval_ps / 1e12:g} is too short for so long a run, give "
                f"{wanted:.2g} or more"
            )
    groups = [
        GroupOperators(group.operators, group.program_costs) for group in prepared.lowered.groups
    ]
    how = prepared.deployment.disaggregation
    write_timeline(options.timeline, results, groups, layerwise=how is not None and how.layerwise)


def _write_graphs(options: "RunOptions", prepared: "Prepared", results: Results) -> None:
    from llmsim.rounds import RecordedSteps
    from llmsim.rounds.folder import write_graphs

    assert options.graphs is not None and results.simulation is not None
    lowered, simulation = prepared.lowered, results.simulation
    recorded = [RecordedSteps(simulation, lowered, group) for group in range(len(lowered.groups))]
    write_graphs(options.graphs, lowered.groups, recorded, prepared.workload.request_id)


def _print_report(
    options: "RunOptions", lowered: "LoweredDeployment", report: dict[str, Any]
) -> None:
    from llmsim.cli.streams import raw
    from llmsim.export.json import json_text

    stream = sys.stdout
    if options.as_json:
        text = json_text(report)
    elif options.quiet:
        return
    else:
        styled = sys.stdout.isatty()
        text = _details(lowered, report, styled) if options.verbose else _headline(report, styled)
        if styled:
            stream = raw(sys.stdout)  # the colours are control characters, too
    try:
        stream.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()
    except OSError as error:
        raise InputError(
            f"standard output cannot be written ({error.strerror}); redirect it to a disk with "
            "space"
        ) from None


def _headline(report: dict[str, Any], styled: bool) -> str:
    from llmsim.results.printed.headline import render_headline

    return render_headline(report, rich_terminal=styled)


def _details(lowered: "LoweredDeployment", report: dict[str, Any], styled: bool) -> str:
    """The memory of the devices, the engine's options, and the whole summary."""
    from llmsim.cli.run.memory_report import ledgers
    from llmsim.config.printing import printable
    from llmsim.results.printed.text import render_summary

    memory = ledgers(lowered)
    text = render_summary(report, rich_terminal=styled)
    return (printable(memory) if styled else memory) + text


def _write_run_dir(
    options: "RunOptions",
    prepared: "Prepared",
    results: Results,
    report: dict[str, Any],
    series: "SeriesFiles",
) -> None:
    from llmsim.config.files.input_files import read_so_far

    assert options.run_dir is not None and prepared.cluster is not None
    write_run_folder(
        options.run_dir,
        options,
        prepared.deployment,
        prepared.lowered,
        results,
        report,
        asked=asked_record(prepared.cluster, options.dataset, options.asked),
        argv=sys.argv,
        inputs=_inputs(options),
        files=read_so_far(),
        series=series,
    )

"""Writes what `llmsim run` was asked for, and decides the exit code."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsim.api.verdict import verdict
from llmsim.cli import forget_stdout
from llmsim.config.errors import (
    InputError,
    LlmsimError,
)
from llmsim.core import Results

if TYPE_CHECKING:
    from llmsim.api.run_options import RunOptions
    from llmsim.config import Deployment
    from llmsim.config.deployment import Offloading
    from llmsim.export.series_files import SeriesFiles
    from llmsim.lowering import LoweredDeployment

TIMELINE_ROWS = 2_000_000
"""Of a series in a timeline: each is eleven counters of some twenty bytes, and viewers load some
hundred MB.
"""


def check_outputs(options: "RunOptions") -> None:
    """Raises InputError, before any work, where an output cannot be written or would replace an
    input.
    """
    from llmsim.export.files import check_writable, check_writable_folder, keep_inputs

    outputs = (
        ("--output", options.output),
        ("--timeline", options.timeline),
        ("--input-files", options.input_files),
    )
    for option, path in outputs:
        if path is not None:
            keep_inputs(option, path, _inputs(options))
            check_writable(path)
    if options.output is not None and options.output == options.timeline:
        raise InputError(f"--output and --timeline are both {options.output}; name two files")
    if options.timeline is not None:
        from llmsim.export.timeline.timeline import check_perfetto

        check_perfetto()
    if options.run_dir is not None:
        check_writable_folder(options.run_dir)


def _inputs(options: "RunOptions") -> list[Path]:
    """The files that a run reads and that its manifest names."""
    from llmsim.workload.dataset import file_of

    files = [options.cluster, *map(Path, file_of(options.dataset))]
    return files if options.arrivals is None else [*files, options.arrivals]


def write_outputs(
    options: "RunOptions",
    deployment: "Deployment",
    lowered: "LoweredDeployment",
    results: Results,
    series: "SeriesFiles",
) -> int:
    """Files first, then stdout, then one sentence on stderr for what went wrong; the exit code says
    which.

    An output that cannot be written does not cost the others: its error is raised last.
    """
    from llmsim.results.summary import summary

    report = summary(results, _info(lowered, options.targets_ps))
    writers: list[Callable[[], None]] = []
    if options.output is not None:
        writers.append(lambda: _write_csv(options, results))
    if options.run_dir is not None:
        writers.append(
            lambda: _write_run_dir(options, deployment, lowered, results, report, series)
        )
    if options.timeline is not None:
        writers.append(lambda: _write_timeline(options, deployment, lowered, results, series))
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
    deployment: "Deployment",
    lowered: "LoweredDeployment",
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
                "which a timeline takes "
                f"{TIMELINE_ROWS}; --log-interval {options.log_interval_ps / 1e12:g} is too "
                "short for so long a run, "
                f"give {wanted:.2g} or more"
            )
    groups = [GroupOperators(group.operators, group.program_costs) for group in lowered.groups]
    how = deployment.disaggregation
    write_timeline(options.timeline, results, groups, layerwise=how is not None and how.layerwise)


def _print_report(
    options: "RunOptions", lowered: "LoweredDeployment", report: dict[str, Any]
) -> None:
    from llmsim.cli.run.memory_report import ledgers
    from llmsim.cli.streams import raw
    from llmsim.config.printing import printable
    from llmsim.export.json import json_text
    from llmsim.results.text import render_summary

    stream = sys.stdout
    if options.as_json:
        text = json_text(report)
    elif sys.stdout.isatty():
        text = printable(ledgers(lowered)) + render_summary(report, rich_terminal=True)
        stream = raw(sys.stdout)  # the colours are control characters, too
    else:
        text = ledgers(lowered) + render_summary(report, rich_terminal=False)
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


def _info(lowered: "LoweredDeployment", targets_ps: Mapping[str, int]) -> dict[str, Any]:
    from llmsim.costs import OpCost

    groups = [
        {
            "ledger": g.ledger.lines,
            "block_bytes": g.ledger.block_bytes,
            "operators": tuple(op for op in g.operators if op.name not in g.hosted),
            "hardware": g.hardware,
            "tables": [cost for cost in g.program_costs if isinstance(cost, OpCost)],
        }
        for g in lowered.groups
    ]
    return {"groups": groups, "cost_plan": lowered.accounting.cost, "targets": targets_ps}


def _write_run_dir(
    options: "RunOptions",
    deployment: "Deployment",
    lowered: "LoweredDeployment",
    results: Results,
    report: dict[str, Any],
    series: "SeriesFiles",
) -> None:
    from llmsim.config.input_files import read_so_far
    from llmsim.export.run_dir import RunRecord, write_run_dir

    assert options.run_dir is not None
    groups = [
        {
            **{
                name: value
                for name, value in vars(group).items()
                if name not in ("engine", "memory", "offloading")
            },
            "offloading": _offloading(group.offloading),
            "memory": asdict(group.memory),
            "engine": {**placed.engine.shown(), "origin": dict(placed.engine.origin)},
        }
        for group, placed in zip(deployment.groups, lowered.groups, strict=True)
    ]
    record = RunRecord(
        argv=sys.argv,
        seed=options.seed,
        inputs=_inputs(options),
        config={
            "groups": groups,
            "link": asdict(deployment.link),
            "topology": None if deployment.topology is None else deployment.topology.as_record(),
            "router": options.router.text,
            "disabled_terms": list(options.disabled_terms),
            "calibration": None if options.calibration is None else asdict(options.calibration),
        },
        table_hashes={f"group {g.info.index}": g.costs.table_hash for g in lowered.groups},
        files=read_so_far(),
    )
    write_run_dir(options.run_dir, results, report, record, series)


def _offloading(offloading: "Offloading") -> dict[str, Any]:
    placement = (
        None if offloading.placement is None else offloading.placement.model_dump(mode="json")
    )
    return {**vars(offloading), "placement": placement}

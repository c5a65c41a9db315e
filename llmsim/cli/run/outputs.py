"""Writes what `llmsim run` was asked for, and decides the exit code."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsim.cli import forget_stdout
from llmsim.config.errors import (
    InfeasibleError,
    InputError,
    InterruptedRun,
    InvariantError,
    LlmsimError,
)
from llmsim.core import Results, Status

if TYPE_CHECKING:
    from llmsim.cli.run.run_options import RunOptions
    from llmsim.config import Deployment
    from llmsim.config.deployment import Offloading
    from llmsim.export.series_files import SeriesFiles
    from llmsim.lowering import LoweredDeployment

TIMELINE_ROWS = 2_000_000
"""Of a series in a timeline: each is eleven counters of some twenty bytes, and viewers load some
hundred MB.
"""
NAMED = 3
"""How many rejected requests a message names."""


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
    return _verdict(results, report["invariants"])


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


def _verdict(results: Results, invariants: Mapping[str, str]) -> int:
    broken = [f"invariant {name}: {found}" for name, found in invariants.items() if found != "ok"]
    if broken:
        raise InvariantError(
            f"{'; '.join(broken)}; the results were written but cannot be trusted: please report "
            "this"
        )
    if results.interrupted:
        done = int((results.requests.status == Status.FINISHED).sum())
        raise InterruptedRun(
            f"interrupted; the {done} requests that had finished were written, "
            f"{len(results.workload) - done} were not"
        )
    if results.circular:
        raise InfeasibleError(circular_sentence(results))
    rejected = (results.requests.status == Status.REJECTED).nonzero()[0]
    if len(rejected):
        raise InfeasibleError(_rejection(results, [int(i) for i in rejected]))
    return 0


def circular_sentence(results: Results) -> str:
    """Which requests take KV blocks from each other for ever, and what would let them end."""
    workload, requests = results.workload, results.requests
    open_states = (Status.WAITING, Status.RUNNING, Status.PARKED)
    rows = np.flatnonzero(
        np.isin(requests.status, open_states) & np.isin(requests.group, results.circular)
    )
    names = [
        str(workload.request_id[row] if workload.request_id else row)
        for row in rows[:NAMED].tolist()
    ]
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    groups = ", ".join(map(str, results.circular))
    return (
        f"the requests {', '.join(names)}{more} of group {groups} can never end: they preempt "
        "each other for ever, and "
        "none has got further for so long that none will; the other results were written; give "
        "these requests "
        "different priorities or arrival times, give the group more KV blocks, or leave out "
        "--no-reserve-full-isl"
    )


def _rejection(results: Results, rejected: list[int]) -> str:
    """Which requests can never run and why; all others were simulated and written."""
    workload = results.workload
    named = []
    for row in rejected[:NAMED]:
        group = results.groups[max(0, int(results.requests.group[row]))]
        capacity = (group.num_blocks - 1) * group.block_size
        named.append(
            f"request {workload.request_id[row] if workload.request_id else row} "
            f"({workload.input_tokens[row]} prompt + {workload.output_tokens[row]} output tokens; "
            f"group {group.index} holds {capacity} tokens of KV)"
        )
    more = f" and {len(rejected) - NAMED} more" if len(rejected) > NAMED else ""
    return (
        f"{len(rejected)} of {len(workload)} requests can never run: {', '.join(named)}{more}; "
        "the other results were "
        "written; raise max_model_len, give the group more memory or a larger tp_size, or "
        "shorten these requests"
    )

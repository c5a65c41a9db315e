"""`llmsim graph step`: one iteration of a run, as a graph that other tools read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import InputError
from llmsim.core import MAX_HORIZON_PS, PS_PER_S
from llmsim.plurals import counted

if TYPE_CHECKING:
    from llmsim.api.preparation.prepare import Prepared
    from llmsim.export.step_graph.graph import IterationGraph
    from llmsim.export.step_graph.nodes import GraphNode
    from llmsim.rounds.recorded import RecordedSteps
    from llmsim.rounds.shared_links import SharedLink

HELP = (
    "Write one step of a run as a graph: every operator with its device, duration and bytes. The "
    "command takes every option of `llmsim run`; --cluster-config and --dataset are required."
)
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
LONGEST_S = MAX_HORIZON_PS // PS_PER_S
"""Seconds that a run may last at most."""
FORMATS = {".dot": "dot", ".graphml": "graphml", ".json": "json"}


Output = Annotated[
    Path,
    typer.Option(
        "--graph",
        "-g",
        metavar="<path>",
        parser=given_path,
        help="Writes FILE.dot, FILE.graphml or FILE.json, or Chakra traces (.et) into a folder.",
    ),
]
Iteration = Annotated[
    int | None,
    typer.Option(
        "--iteration", "-i", help="Chooses the step of the group, from 0; 0 if not given."
    ),
]
Slowest = Annotated[bool, typer.Option("--slowest", help="Chooses the longest step of the group.")]
At = Annotated[
    float | None,
    typer.Option("--at", metavar="SECONDS", help="Chooses the step that runs at this time."),
]
OfRequest = Annotated[
    str | None,
    typer.Option("--request", metavar="ID", help="Chooses the first step with this request."),
]
Group = Annotated[int, typer.Option("--group", help="Chooses the instance of the cluster, from 0.")]
Rank = Annotated[
    str,
    typer.Option("--rank", help="Chooses a rank of the group or of its lock-step group, or all."),
]
EveryLayer = Annotated[
    bool,
    typer.Option(
        "--every-layer",
        help="Draws every layer in DOT instead of one for all identical layers.",
    ),
]


def command(
    context: typer.Context,
    output: Output,
    iteration: Iteration = None,
    slowest: Slowest = False,
    at: At = None,
    request: OfRequest = None,
    group: Group = 0,
    rank: Rank = "all",
    every_layer: EveryLayer = False,
) -> int:
    """Runs until the iteration, and writes it; returns the exit code."""
    from llmsim.api.preparation.prepare import prepare
    from llmsim.cli.run.arguments import checked_options, without_outputs
    from llmsim.export.files import check_writable, check_writable_folder
    from llmsim.export.step_graph.graph import iteration_graph, refuse_without_steps
    from llmsim.export.step_graph.run_times import in_run
    from llmsim.rounds.shared_links import shared_links

    form = FORMATS.get(output.suffix, "et")
    if form == "et" and output.suffix not in ("", ".et"):
        raise InputError(
            f'--graph is "{output}"; it must end in .dot, .graphml or .json, or be a folder for '
            "Chakra"
        )
    _ = check_writable_folder(output) if form == "et" else check_writable(output)
    options = without_outputs(checked_options(context.args))
    prepared = prepare(options)
    first = prepared.lowered.groups
    if group < 0 or (prepared.lowered.layouts is None and group >= len(first)):
        raise InputError(f"--group is {group}; the cluster has the groups 0 to {len(first) - 1}")
    if group < len(first):
        refuse_without_steps(first, group)
    steps, step = _chosen(prepared, group, iteration, slowest=slowest, at_s=at, request=request)
    batch, groups = steps.round(step), steps.groups
    graph = iteration_graph(groups, group, batch)
    if options.verbose:
        engine = groups[group].engine
        most = max(len(items) for items in batch.items)
        gap_ps = engine.host_gap_ps + most * engine.host_sequence_ps
        _print_shared_links(shared_links(batch, graph, groups, gap_ps))
    graph = in_run(graph, batch)
    ranks = _ranks(rank, graph.ranks)
    nodes = [node for node in graph.nodes if node.rank in ranks]
    if form == "et":
        _write_folder(graph, ranks, len(nodes), output)
    else:
        _write_file(graph, nodes, len(ranks), output, every_layer=every_layer)
    return 0


def _write_folder(graph: "IterationGraph", ranks: list[int], nodes: int, output: Path) -> None:
    """Writes the Chakra traces of the ranks, which have so many nodes, and says what runs them."""
    from llmsim.export.step_graph.chakra import write_chakra

    written = write_chakra(graph, ranks, output)
    on = "" if graph.topology is None else f", for --network-backend={graph.topology.network}"
    if graph.topology is not None and graph.topology.incast:
        on += f" --incast={graph.topology.incast}"
    lasts = f"{graph.duration_ps / 1e6:.1f} us"
    files = f"{counted(len(written), 'file')}"
    typer.echo(f"{output}: {files}, {counted(nodes, 'node')}, {lasts}{on}")


def _write_file(
    graph: "IterationGraph",
    nodes: list["GraphNode"],
    ranks: int,
    output: Path,
    *,
    every_layer: bool,
) -> None:
    """Writes the nodes of so many ranks in the format of the file's ending."""
    from llmsim.export.files import atomic_writer
    from llmsim.export.step_graph.formats import as_dot, as_graphml, as_json

    form = FORMATS[output.suffix]
    if form == "dot":
        text = as_dot(graph, nodes, every_layer=every_layer)
    else:
        text = as_graphml(graph, nodes) if form == "graphml" else as_json(graph, nodes)
    with atomic_writer(output) as stream:
        stream.write(text)
    what = f"{counted(len(nodes), 'node')} of {counted(ranks, 'rank')}"
    typer.echo(f"{output}: {what}, {graph.duration_ps / 1e6:.1f} us")


def _print_shared_links(found: "list[SharedLink]") -> None:
    """A line per link that the step shared with others."""
    if not found:
        typer.echo("no link was shared with other traffic")
        return
    lost_us = sum(one.lost_ps for one in found) / 1e6
    links = f"{counted(len(found), 'link')}"
    typer.echo(f"the step lost {lost_us:.1f} us on {links} that it shared:")
    for one in found:
        typer.echo(
            f"  link {one.link} of {one.bytes_per_s / 1e9:g} GB/s, with {', '.join(one.others)}: "
            f"together for {one.met_ps / 1e6:.1f} us, lost {one.lost_ps / 1e6:.1f} us"
        )


def _chosen(
    prepared: "Prepared",
    group: int,
    iteration: int | None,
    *,
    slowest: bool,
    at_s: float | None,
    request: str | None,
) -> "tuple[RecordedSteps, int]":
    """Steps of the group, and the one that the options name."""
    from llmsim.rounds import recorded_run, steps_until
    from llmsim.rounds.selection import request_number

    named = {
        "--iteration": iteration is not None,
        "--slowest": slowest,
        "--at": at_s is not None,
        "--request": request is not None,
    }
    given = [name for name, is_given in named.items() if is_given]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} exclude each other; give one of them")
    if at_s is not None and not 0 <= at_s <= LONGEST_S:
        raise InputError(f"--at is {at_s:g}; it must be from 0 to {LONGEST_S:,} seconds")
    what = (prepared.lowered, prepared.workload, prepared.simulation, group)
    if not given or iteration is not None:
        return steps_until(*what, iteration or 0), iteration or 0
    steps = recorded_run(*what)
    found: int | None
    if slowest:
        found = min(steps.iterations(), key=steps.slowness, default=None)
    elif at_s is not None:
        found = steps.at(round(at_s * PS_PER_S))
    else:
        assert request is not None, "one of them is given"
        number = request_number(request, steps.num_requests, prepared.workload.request_id)
        mine = (one for one in steps.iterations() if number in steps.requests(one))
        found = next(mine, None)
    if found is None:
        value = next((f" {one}" for one in (at_s, request) if one is not None), "")
        raise InputError(f"{given[0]}{value}: group {group} has no such step")
    return steps, found


def _ranks(text: str, ranks: int) -> list[int]:
    if text == "all":
        return list(range(ranks))
    if not text.isdecimal() or int(text) >= ranks:
        raise InputError(f'--rank is "{text}"; it may be all, or from 0 to {ranks - 1}')
    return [int(text)]

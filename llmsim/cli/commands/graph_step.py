"""`llmsim graph step`: one iteration of a run, as a graph that other tools read."""

from pathlib import Path
from typing import Annotated

import typer

from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import InputError

HELP = (
    "Write one step of a run as a graph: every operator with its device, duration and bytes. The "
    "command takes every option of `llmsim run`; --cluster-config and --dataset are required."
)
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
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
    int, typer.Option("--iteration", "-i", help="Chooses the step of the group, from 0.")
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
    iteration: Iteration = 0,
    group: Group = 0,
    rank: Rank = "all",
    every_layer: EveryLayer = False,
) -> int:
    """Runs until the iteration, and writes it; returns the exit code."""
    from llmsim.api.prepare import prepare
    from llmsim.cli.run.arguments import checked_options, without_outputs
    from llmsim.export.files import atomic_writer, check_writable, check_writable_folder
    from llmsim.export.step_graph.chakra import write_chakra
    from llmsim.export.step_graph.formats import as_dot, as_graphml, as_json
    from llmsim.export.step_graph.graph import iteration_graph
    from llmsim.rounds import round_of

    form = FORMATS.get(output.suffix, "et")
    if form == "et" and output.suffix not in ("", ".et"):
        raise InputError(
            f'--graph is "{output}"; it must end in .dot, .graphml or .json, or be a folder for '
            "Chakra"
        )
    _ = check_writable_folder(output) if form == "et" else check_writable(output)
    prepared = prepare(without_outputs(checked_options(context.args)))
    groups = prepared.lowered.groups
    if not 0 <= group < len(groups):
        raise InputError(f"--group is {group}; the cluster has the groups 0 to {len(groups) - 1}")
    batch = round_of(prepared.lowered, prepared.workload, prepared.simulation, group, iteration)
    graph = iteration_graph(groups, group, batch)
    ranks = _ranks(rank, graph.ranks)
    nodes = [node for node in graph.nodes if node.rank in ranks]
    if form == "et":
        written = write_chakra(graph, ranks, output)
        on = "" if graph.topology is None else f", for --network-backend={graph.topology.network}"
        typer.echo(f"{output}: {len(written)} files, {len(nodes)} nodes{on}")
        return 0
    if form == "dot":
        text = as_dot(graph, nodes, every_layer=every_layer)
    else:
        text = as_graphml(graph, nodes) if form == "graphml" else as_json(graph, nodes)
    with atomic_writer(output) as stream:
        stream.write(text)
    typer.echo(
        f"{output}: {len(nodes)} nodes of {len(ranks)} ranks, {graph.duration_ps / 1e6:.1f} us"
    )
    return 0


def _ranks(text: str, ranks: int) -> list[int]:
    if text == "all":
        return list(range(ranks))
    if not text.isdecimal() or int(text) >= ranks:
        raise InputError(f'--rank is "{text}"; it may be all, or from 0 to {ranks - 1}')
    return [int(text)]

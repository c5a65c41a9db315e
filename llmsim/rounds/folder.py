"""Writes graphs of many steps of a run into a folder, with an index of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmsim.export.files import atomic_writer
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.formats import as_dot, as_graphml, as_json
from llmsim.export.step_graph.graph import IterationGraph, iteration_graph
from llmsim.export.step_graph.run_times import in_run, lost_in_exchanges_ps
from llmsim.export.step_graph.transfers import KINDS as KV_KINDS
from llmsim.rounds.selection import GraphSelection

if TYPE_CHECKING:
    from llmsim.lowering import LoweredGroup
    from llmsim.rounds.recorded import RecordedSteps

INDEX = "index.parquet"


@dataclass(frozen=True)
class IndexRow:
    """A step in the index; steps with equal nodes have one file."""

    group: int
    iteration: int
    """Of the group, from 0; steps without work are not counted."""
    start_ps: int
    """In the run."""
    end_ps: int
    graph_ps: int
    """The graph's own duration: without the host's waits and what KV does beside the step."""
    lost_ps: int
    """What other traffic on shared links cost the step's collectives and hand-overs: `contention`
    in Chakra traces.
    """
    requests: int
    tokens: int
    kv_bytes: int
    """KV that moved meanwhile."""
    file: str


def write_graphs(
    selection: GraphSelection,
    groups: Sequence[LoweredGroup],
    recorded: Sequence[RecordedSteps],
    requests: Sequence[str] | None,
) -> list[IndexRow]:
    """Writes the chosen steps and the index, and returns its rows.

    `recorded` has an entry per group. Raises InputError for an unknown request and where a file
    cannot be written, NotYetError for steps that have no graph.
    """
    selection.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for group, steps in enumerate(recorded):
        if selection.group in (None, group):
            for iteration in selection.of(steps, requests):
                rows.append(_write(selection, groups, group, steps, iteration))
    _write_index(selection.folder, rows)
    return rows


def _write(
    selection: GraphSelection,
    groups: Sequence[LoweredGroup],
    group: int,
    steps: RecordedSteps,
    iteration: int,
) -> IndexRow:
    batch = steps.round(iteration)
    alone = iteration_graph(groups, group, batch)
    graph = in_run(alone, batch)
    start_ps, end_ps = steps.times_ps(iteration)
    return IndexRow(
        group=group,
        iteration=iteration,
        start_ps=start_ps,
        end_ps=end_ps,
        graph_ps=graph.duration_ps,
        requests=len(graph.items),
        tokens=sum(item[0] for item in graph.items),
        lost_ps=lost_in_exchanges_ps(alone, batch),
        kv_bytes=sum(node.bytes_moved for node in graph.nodes if node.kind in KV_KINDS),
        file=_file_of(selection, graph),
    )


def _file_of(selection: GraphSelection, graph: IterationGraph) -> str:
    """The name of the graph's file or folder, which is written unless equal nodes have been."""
    text = as_json(graph, graph.nodes)
    same = text.replace(f'"iteration": {graph.iteration},', '"iteration": null,', 1)
    name = f"step-{hashlib.sha256(same.encode()).hexdigest()[:16]}"
    path = selection.folder / (name if selection.form == "et" else f"{name}.{selection.form}")
    if path.exists():
        return path.name
    if selection.form == "et":
        write_chakra(graph, list(range(graph.ranks)), path)
        return path.name
    if selection.form == "dot":
        text = as_dot(graph, graph.nodes)
    elif selection.form == "graphml":
        text = as_graphml(graph, graph.nodes)
    with atomic_writer(path) as stream:
        stream.write(text)
    return path.name


def _write_index(folder: Path, rows: Sequence[IndexRow]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(IndexRow.__dataclass_fields__)
    columns = [asdict(row) for row in rows]
    types = [pa.string() if name == "file" else pa.int64() for name in names]
    schema = pa.schema(list(zip(names, types, strict=True)))
    pq.write_table(pa.Table.from_pylist(columns, schema=schema), folder / INDEX)

"""Writes graphs of many steps of a run into a folder, with an index of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from llmsim.export.files import atomic_writer
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.formats import as_dot, as_graphml, as_json
from llmsim.export.step_graph.graph import IterationGraph, iteration_graph, refuse_without_steps
from llmsim.export.step_graph.run_times import in_run, lost_in_exchanges_ps
from llmsim.export.step_graph.transfers import KINDS as KV_KINDS
from llmsim.rounds.selection import GraphSelection, check_selection

if TYPE_CHECKING:
    from llmsim.lowering import LoweredGroup
    from llmsim.rounds.recorded import RecordedSteps

INDEX = "index.parquet"
MOST_DIGITS = 38
"""Of a decimal number in Parquet."""


@dataclass(frozen=True)
class IndexRow:
    """A step in the index; steps with equal nodes have one file."""

    group: int
    iteration: int | None
    """Of the group, from 0; steps without work are not counted, and have none."""
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
    step: int
    """Of the group, from 0; steps without work are counted."""
    energy_aj: int | None
    """Attojoules of the group's own step, without KV; None where its node does not say what it
    draws. Those of all steps of a group are what the run has for its devices and their traffic.
    """


def write_graphs(
    selection: GraphSelection,
    groups: Sequence[LoweredGroup],
    recorded: Sequence[RecordedSteps],
    requests: Sequence[str] | None,
) -> list[IndexRow]:
    """Writes the chosen steps and the index, and returns its rows.

    `recorded` has an entry per group. Raises InputError for an unknown request or group and where a
    file cannot be written, NotYetError for steps that have no graph.
    """
    if selection.group is not None:
        check_selection(selection, len(groups), recorded[0].num_requests, requests)
        refuse_without_steps(groups, selection.group)
    selection.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for group, steps in enumerate(recorded):
        if selection.group in (None, group):
            for place in selection.of(steps, requests):
                rows.append(_write(selection, groups, group, steps, place))
    _write_index(selection.folder, rows)
    return rows


def _write(
    selection: GraphSelection,
    groups: Sequence[LoweredGroup],
    group: int,
    steps: RecordedSteps,
    place: int,
) -> IndexRow:
    batch = steps.round_at(place)
    alone = iteration_graph(groups, group, batch)
    graph = in_run(alone, batch)
    start_ps, end_ps = steps.times_at_ps(place)
    energy = graph.energy[graph.members.index(group)]
    return IndexRow(
        group=group,
        iteration=batch.iteration,
        start_ps=start_ps,
        end_ps=end_ps,
        graph_ps=graph.duration_ps,
        requests=len(graph.items),
        tokens=sum(item[0] for item in graph.items),
        lost_ps=lost_in_exchanges_ps(alone, batch),
        kv_bytes=sum(node.bytes_moved for node in graph.nodes if node.kind in KV_KINDS),
        file=_file_of(selection, graph),
        step=place,
        energy_aj=None if energy is None else energy.total_aj,
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
    types = {"file": pa.string(), "energy_aj": pa.decimal128(MOST_DIGITS, 0)}
    schema = pa.schema([(name, types.get(name, pa.int64())) for name in names])
    arrays = [
        pa.array([_exact(name, row[name]) for row in columns], schema.field(name).type)
        for name in names
    ]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), folder / INDEX)


def _exact(name: str, value: int | str | None) -> int | str | Decimal | None:
    """Attojoules of a long step are beyond 64 bits."""
    return Decimal(value) if name == "energy_aj" and value is not None else value

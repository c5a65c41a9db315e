"""Writes steps of every bundled cluster in all four formats, runs their traces in the engine, and
adds up their energy; counts what differs.

usage: python evaluation/bundled_graphs.py [--cluster NAME]

Each cluster runs its example (docs/tutorial/examples.md). Of each group the first step, the longest
and the last one are written; where the cluster has `power`, the energy of all steps and of the KV
between them is compared with that of the run.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests"))

from llmsim.api.preparation.prepare import Prepared, prepare
from llmsim.cli.arguments import OneSentenceParser
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import LlmsimError
from llmsim.core import Results
from llmsim.export.chakra import read_trace
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.formats import as_dot, as_graphml, as_json, to_networkx
from llmsim.export.step_graph.graph import IterationGraph, Round, iteration_graph
from llmsim.export.step_graph.run_times import in_run
from llmsim.export.step_graph.transfers import KINDS, Window, is_waited_for, kv_nodes
from llmsim.installation.examples import EXAMPLES, Example
from llmsim.rounds import RecordedSteps
from llmsim.simulation.run import simulate
from tests.engine.command import build_command, run_case


@dataclass
class Found:
    """What became of a cluster's steps."""

    steps: int = 0
    formats: int = 0
    """Steps that one of the formats does not hold."""
    engine: int = 0
    """Steps for which the engine takes another time than the graph."""
    run: int = 0
    """Steps whose graph lasts otherwise than in the run."""
    energy: str = "-"

    @property
    def bad(self) -> bool:
        """Whether a step differs that may not."""
        return bool(self.formats or self.engine or self.energy == "differs")


def main() -> int:
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--cluster", help="this one alone")
    chosen = parser.parse_args().cluster
    print(
        "| cluster | steps | a format differs | the engine takes another time "
        "| the run took another time | energy |\n| --- | --- | --- | --- | --- | --- |"
    )
    bad = False
    for example in EXAMPLES:
        if chosen not in (None, example.file):
            continue
        try:
            found = _cluster(example)
        except LlmsimError as error:
            print(f"| {example.file} | {error} | | | | |", flush=True)
            continue
        bad |= found.bad
        row = (example.file, found.steps, found.formats, found.engine, found.run, found.energy)
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    return int(bad)


def _cluster(example: Example) -> Found:
    prepared = prepare(checked_options(list(example.arguments)))
    options = replace(
        prepared.simulation, record_steps=True, record_rounds=True, record_transfers=True
    )
    results = simulate(prepared.lowered, prepared.workload, options)
    found = Found(energy=_energy(prepared, results))
    with tempfile.TemporaryDirectory() as folder:
        for group, steps, iteration in _chosen(prepared, results):
            batch = steps.round(iteration)
            alone = iteration_graph(prepared.lowered.groups, group, batch)
            graph = in_run(alone, batch)
            found.steps += 1
            found.formats += not _formats_hold(graph)
            found.engine += _engine_differs(graph, Path(folder) / str(found.steps))
            found.run += not _as_in_run(prepared, batch, graph)
    return found


def _chosen(prepared: Prepared, results: Results) -> Iterator[tuple[int, RecordedSteps, int]]:
    assert results.simulation is not None, "it is recorded"
    for group in range(len(prepared.lowered.groups)):
        steps = RecordedSteps(results.simulation, prepared.lowered, group)
        number = len(steps.worked)
        if number:
            longest = min(range(number), key=steps.slowness)
            for iteration in sorted({0, longest, number - 1}):
                yield group, steps, iteration


def _formats_hold(graph: IterationGraph) -> bool:
    """All nodes, and a graph without a cycle whose longest path is the step."""
    number = len(graph.nodes)
    written = json.loads(as_json(graph, graph.nodes))
    space = "{http://graphml.graphdrawing.org/xmlns}"
    tree = ElementTree.fromstring(as_graphml(graph, graph.nodes))
    boxes = as_dot(graph, graph.nodes, every_layer=True).count("fillcolor=")
    found: Any = to_networkx(graph)
    ends: dict[int, int] = {}
    for node in graph.nodes:
        before = max((ends[one] for one in node.depends_on), default=node.start_ps)
        ends[node.node] = before + node.late_ps * bool(node.depends_on) + node.duration_ps
    own = (ends[node.node] for node in graph.nodes if is_waited_for(node))
    return (
        len(written["nodes"]) == len(tree.findall(f".//{space}node")) == boxes == number
        and found.number_of_nodes() == number
        and networkx.is_directed_acyclic_graph(found)
        and max(own) == graph.duration_ps
    )


def _engine_differs(graph: IterationGraph, case: Path) -> bool:
    """In the end of the step, which KV in the traces does not outlast, or in one of KV."""
    write_chakra(graph, list(range(graph.ranks)), case)
    backend = "unaware" if graph.topology is None else graph.topology.network
    found = run_case(build_command(), case, case, backend=backend, rules="default")
    if found.exit_code:
        print(found.errors, file=sys.stderr)
        return True
    ends_ps = {place: end_ps for place, (_, end_ps) in found.times().items()}
    last_ps = graph.duration_ps
    landed = sorted(ends_ps[place] for place in _places_of_kv(graph, case))
    expected = sorted(min(node.end_ps, last_ps) for node in graph.nodes if node.kind in KINDS)
    ends_with_the_step = max(ends_ps.values()) == last_ps
    return not ends_with_the_step or landed != expected


def _places_of_kv(graph: IterationGraph, case: Path) -> Iterator[tuple[int, int]]:
    """(device, node) of what moves KV in the traces."""
    devices = range(graph.ranks) if graph.topology is None else graph.topology.devices
    for device in devices:
        for node in read_trace(case / f"workload.{device}.et"):
            if "start_ps" in node.attributes:
                yield device, node.id


def _as_in_run(prepared: Prepared, batch: Round, graph: IterationGraph) -> bool:
    """Whether the last member's end is that of the run, but for the host's gap."""
    most = max(len(items) for items in batch.items)
    start_ps = min(start for start, _ in batch.times_ps)
    lasted = []
    for member, (_, end_ps) in zip(batch.members, batch.times_ps, strict=True):
        engine = prepared.lowered.groups[member].engine
        lasted.append(end_ps - start_ps - engine.host_gap_ps - most * engine.host_sequence_ps)
    return max(lasted) == graph.duration_ps


def _energy(prepared: Prepared, results: Results) -> str:
    """Whether the steps and the KV add up to the run; "-" without power."""
    if results.energy is None or results.simulation is None:
        return "-"
    lowered, total_aj, expected_aj = prepared.lowered, 0, 0
    pool = None if lowered.accounting.power is None else lowered.accounting.power.pool
    if pool is not None:
        window_ps = results.energy.end_ps - results.energy.start_ps
        expected_aj += results.energy.pool_aj - pool.idle_uw * window_ps
    for group in range(len(lowered.groups)):
        of_group = results.energy.groups[group]
        if of_group is None:
            return "-"
        expected_aj += of_group.active_aj + of_group.traffic_aj
        steps = RecordedSteps(results.simulation, lowered, group)
        for place in range(len(steps.worked) + len(steps.dummies)):
            graph = iteration_graph(lowered.groups, group, steps.round_at(place))
            energy = graph.energy[graph.members.index(group)]
            assert energy is not None, "the node says what it draws"
            total_aj += energy.total_aj
        if lowered.network is not None:
            whole = Window(0, results.simulation.now_ps + 1)
            moved = results.simulation.transfers()
            kv = kv_nodes(moved, lowered.network, (group,), whole, (), lowered.accounting)
            total_aj += sum(node.energy_aj for node in kv)
    return "adds up" if total_aj == expected_aj else "differs"


if __name__ == "__main__":
    sys.exit(main())

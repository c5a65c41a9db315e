"""Graphs of steps that begin while others run: stages of a pipeline, and lock-step members."""

from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.export.step_graph.chakra import write_chakra
from llmsim.export.step_graph.graph import iteration_graph
from llmsim.export.step_graph.run_times import in_run
from llmsim.rounds.recorded import recorded_run
from tests.engine.command import build_command, run_case
from tests.lowering.clusters import cluster, model

TRACE = "synthetic:n=12,rate=3000,input=lognormal:300:max=900,output=fixed:5,seed=5"
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "stages": (1, {"num_npus": 6, "tp_size": 2, "pp_size": 3, "async_scheduling": False}),
    "stages ahead": (1, {"num_npus": 2, "tp_size": 1, "pp_size": 2, "async_scheduling": True}),
    "lock-step": (2, {"num_npus": 2, "tp_size": 2, "dp_group": "d"}),
    "stages in lock-step": (2, {"num_npus": 2, "pp_size": 2, "dp_group": "d"}),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_graph_and_the_engine_have_the_times_of_the_run(
    name: str, exact: bool, tmp_path: Path
) -> None:
    members, keys = LAYOUTS[name]
    shape = model(tmp_path, layers=6, experts=8 if members > 1 else 0)
    options = {"cost_source": "roofline", "request_routing_policy": "RR", "exact": exact}
    result = llmsim.run(cluster(shape, members=members, **keys), TRACE, **options)
    what, command, late = result._prepared, build_command(), 0
    groups = what.lowered.groups
    steps = recorded_run(what.lowered, what.workload, what.simulation, 0)
    gap_ps = groups[0].engine.host_gap_ps
    for iteration in range(len(steps.worked)):
        batch = steps.round(iteration)
        graph = in_run(iteration_graph(groups, 0, batch), batch)
        origin_ps = min(start for start, _ in batch.times_ps)
        ends_ps = tuple(end - origin_ps - gap_ps for _, end in batch.times_ps)
        assert graph.member_ends_ps() == ends_ps
        late += any(node.late_ps for node in graph.nodes)
        if iteration < 6:
            case = tmp_path / str(iteration)
            write_chakra(graph, list(range(graph.ranks)), case)
            found = run_case(command, case, tmp_path, rules="default")
            assert found.exit_code == 0, found.errors
            assert max(end or 0 for end in found.finish_ps()) == max(ends_ps)
    assert late > 2

"""The step graph: a run times its nodes, whose ends follow from waits and streams alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_joint import SEQUENCES, TOKENS, drawn_case, simulate

from llmsim import _native

BEGIN, END, LAUNCH = (_native.NodeRole[name] for name in ("BEGIN", "END", "LAUNCH"))


def program_of(plan: Any, padded: Any, largest: int, gap: int) -> Any:
    """The program that `simulate` runs."""
    axis = np.array([0, 16, 64], np.int64)
    cells = np.random.default_rng(7).integers(0, 10**9, 81).astype(np.int64)
    attention = _native.Attention.mixed([axis] * 4, cells, 12_345 << 20)
    return _native.Program(plan.ops, attention, padded, _native.LowerBound(), gap, largest)


def ends_of(nodes: list[Any]) -> list[int]:
    """A node starts when what it waits for and the node before it on its stream have ended."""
    ends: list[int] = []
    free: dict[tuple[int, int], int] = {}
    for unit, stream, _, _, _, _, ps, _, _, after in nodes:
        begin = max((ends[before] for before in after), default=0)
        if stream >= 0:
            begin = max(begin, free.get((unit, stream), 0))
            free[unit, stream] = begin + ps
        ends.append(begin + ps)
    return ends


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_first_step_of_a_run_is_its_graph(data: Any) -> None:
    members, stages = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    plan, padded, largest, gap, depth, _ = drawn_case(data, members, stages)
    prompts = [data.draw(st.integers(2, TOKENS)) for _ in range(members)]
    steps = simulate(
        plan, padded, largest, gap, depth, [(0, tokens, 3) for tokens in prompts], False
    ).steps()
    batches = [[(tokens, 0)] for tokens in prompts]
    nodes, halves, _ = _native.step_nodes(program_of(plan, padded, largest, gap), None, batches, 1)
    assert halves == []
    assert [node[7] for node in nodes] == ends_of(nodes)
    ends = [node[7] for node in nodes if node[2] == END]
    first = [np.flatnonzero(steps["group"] == member)[0] for member in range(members)]
    assert steps["start_ps"][first].tolist() == [0] * members
    assert steps["end_ps"][first].tolist() == [max(end, 1) for end in ends]
    assert sum(node[2] == BEGIN for node in nodes) == members


@pytest.mark.parametrize("launching_us", [0, 1, 500])
def test_no_step_ends_before_the_host_has_launched_it(launching_us: int) -> None:
    """Operators take 2 x 10 us; a launch is joined at the end, before the gap between steps."""
    layers, gap, each = 2, 777, 55
    feature, kind = _native.Feature.TOKENS, _native.NodeKind.COMPUTE
    table = np.full(TOKENS + 1, 10**7, np.int64)
    marks = np.zeros(TOKENS + 1, np.uint8)
    ops = [_native.Operator("mlp", kind, feature, 1, layers, table, marks)]
    axis = np.array([0, 64], np.int64)
    attention = _native.Attention.split(
        [axis] * 2, np.zeros(4, np.int64), [axis] * 2, np.zeros(4, np.int64), 0, 0
    )
    padded = np.arange(TOKENS + 1, dtype=np.int32)
    program = _native.Program(ops, attention, padded, _native.LowerBound(), gap)
    rules = _native.GraphRules()
    rules.host_ps = [[launching_us * 10**6, 0, 0]]
    program.set_graphs(rules)
    program.set_host_sequence(each)
    nodes, _, _ = _native.step_nodes(program, None, [[(SEQUENCES, 0)]], 1)
    launches = [node for node in nodes if node[2] == LAUNCH]
    assert len(launches) == (launching_us > 0)
    assert nodes[-1][7] == max(layers * 10**7, launching_us * 10**6) + gap + each
    alone, four = (program.step_ps([(1, 5)] * sequences) for sequences in (1, 4))
    assert four - alone == 3 * each

"""Exchanges of rows beside KV on the same links: which are slowed, and which a run says are not."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.lowering.network.contended import flows
from tests.lowering.clusters import cluster, lowered, model, run

BACKENDS = (
    "allgather_reducescatter",
    "naive",
    "pplx",
    "deepep_high_throughput",
    "deepep_low_latency",
)
EARLY = 8
"""Requests that decode all the while, two on each rank."""
SLOW = 0.2
"""GB/s of a port on which KV is under way for many steps."""


AT_ONCE = {"kv_read_ns": 0, "kv_descriptor_ns": 0}
"""What hosts take to post reads of KV."""


def split(folder: Path, members: int = 2, nodes: int = 1, **keys: Any) -> dict[str, Any]:
    """Ranks with prompts and as many with answers: `members` of each on each node."""
    path = model(folder, experts=8)
    sides = [
        cluster(path, members=members, nodes=nodes, dp_group=role, pd_type=role, **AT_ONCE, **keys)
        for role in ("prefill", "decode")
    ]
    both = [
        {"instances": [*a["instances"], *b["instances"]]}
        for a, b in zip(*(side["nodes"] for side in sides), strict=True)
    ]
    return {**sides[0], "nodes": both}


def noted(document: dict[str, Any]) -> bool:
    return any("exchanges take their own times" in note for note in lowered(document).notes)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_exchanges_on_one_kind_of_port_are_flows(tmp_path: Path, backend: str, tp: int) -> None:
    assert not noted(split(tmp_path, all2all_backend=backend, tp_size=tp))
    assert not noted(split(tmp_path, members=1, nodes=2, all2all_backend=backend, tp_size=tp))


@pytest.mark.parametrize("backend", BACKENDS)
def test_those_on_two_kinds_of_ports_are_flows_on_both(tmp_path: Path, backend: str) -> None:
    for tp in (1, 2):
        assert not noted(split(tmp_path, members=2, nodes=2, all2all_backend=backend, tp_size=tp))


@pytest.mark.parametrize("backend", ["pplx", "naive"])
def test_what_has_no_flows_is_named_and_reductions_of_a_rank_are_not(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "stand_ins", nothing_stands_for_it)
    notes = lowered(split(tmp_path, all2all_backend=backend, tp_size=2)).notes
    assert (
        "dispatch, combine: these exchanges take their own times, whatever KV is on the same links"
        in notes
    )


@pytest.mark.parametrize(
    ("backend", "tp"),
    [
        ("naive", 1),
        ("pplx", 1),
        ("deepep_high_throughput", 1),
        ("deepep_low_latency", 2),
        ("naive", 2),
        ("allgather_reducescatter", 2),
    ],
)
def test_kv_slows_exchanges_on_its_ports(
    tmp_path: Path, backend: str, tp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slow port between instances: the same tokens, later. What takes its own times does not
    notice.
    """
    document = split(tmp_path, all2all_backend=backend, links=[50, SLOW], tp_size=tp)
    with_flows, apart = beside_and_apart(tmp_path, document, monkeypatch)
    assert with_flows > apart


def beside_and_apart(
    folder: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int]:
    """When the answers end that are under way while KV of late prompts moves, summed, where
    exchanges are flows beside KV, and where they take their own times.

    The late prompts end in another order than they came, so that KV goes to every decode rank.
    """
    early = [{"input_toks": 100, "output_toks": 150, "arrival_time_ns": 0}] * EARLY
    late = [
        {"input_toks": tokens, "output_toks": 2, "arrival_time_ns": 60_000_000}
        for tokens in (2000, 500, 1000) * 3
    ]
    trace = folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in (*early, *late)))
    sums = []
    for _ in range(2):
        results = run(document, trace=str(trace))
        assert set(results.invariants.values()) == {"ok"}
        sums.append(int(results.requests.finish_ps[:EARLY].sum()))
        monkeypatch.setattr(flows, "stand_ins", nothing_stands_for_it)
    return sums[0], sums[1]


def nothing_stands_for_it(*_: object, **__: object) -> flows.StandIns:
    return flows.StandIns(rows=0, rings=False)


@pytest.mark.parametrize("slow", ["near", "far"])
@pytest.mark.parametrize(
    "backend", ["naive", "pplx", "deepep_high_throughput", "deepep_low_latency"]
)
def test_kv_slows_exchanges_over_nodes_on_either_port(
    tmp_path: Path, backend: str, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks of each role on each of two nodes; KV goes inside nodes and between them."""
    document = split(
        tmp_path,
        members=2,
        nodes=2,
        all2all_backend=backend,
        links=[50, SLOW, 50] if slow == "near" else [50, 50, SLOW],
    )
    with_flows, apart = beside_and_apart(tmp_path, document, monkeypatch)
    assert with_flows > apart


def test_nothing_else_on_the_links_an_exchange_over_nodes_takes_what_its_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request at a time: when its KV is there, steps with flows last as long as without, to the
    picosecond.
    """
    document = split(
        tmp_path, members=2, nodes=2, all2all_backend="deepep_high_throughput", links=[50, 20, 5]
    )

    def lengths() -> list[int]:
        results = run(
            document, trace="synthetic:n=3,rate=0.5,input=fixed:100,output=fixed:6,seed=2"
        )
        landed = results.kv_transfers.kv_landed_ps  # type: ignore[union-attr]
        steps = results.steps
        apart = [
            not any(start < at + 10**9 and at - 10**9 < end for at in landed)
            for start, end in zip(steps["start_ps"], steps["end_ps"], strict=True)
        ]
        found = zip(steps["group"], steps["start_ps"], steps["end_ps"], apart, strict=True)
        return [int(end - start) for _, start, end, free in found if free]

    with_flows = lengths()
    monkeypatch.setattr(flows, "stand_ins", nothing_stands_for_it)
    assert len(with_flows) > 10 and with_flows == lengths()


def test_rows_leave_by_the_port_that_leads_there(tmp_path: Path) -> None:
    """Of what leaves a device, the part for its own tensor-parallel peers does not take the ports
    between instances.
    """

    def bytes_of(nodes: int, each: int, backend: str) -> tuple[Any, tuple[int, int]]:
        document = split(tmp_path, members=each, nodes=nodes, tp_size=2, all2all_backend=backend)
        group = lowered(document).groups[0]
        (dispatch,) = [op for op in group.operators if op.name == "dispatch"]
        assert dispatch.among == "everyone"
        return dispatch, flows.row_bytes_per_token(dispatch, group.layout, each * nodes, each)

    # Rows for experts on four ranks: of the three others of each, two are another member's; two
    # devices send at once.
    dispatch, (near, far) = bytes_of(1, 2, "deepep_low_latency")
    assert (near, far) == (-(-dispatch.collective_bytes_per_token * 2 // (3 * 2)), 0)
    dispatch, (near, far) = bytes_of(2, 1, "deepep_low_latency")
    assert (near, far) == (0, -(-dispatch.collective_bytes_per_token * 2 // (3 * 2)))
    # Eight ranks, four on each node: two of the seven others are near, four far.
    dispatch, (near, far) = bytes_of(2, 2, "deepep_low_latency")
    assert (near, far) == (
        dispatch.collective_bytes_per_token // 7,
        dispatch.collective_bytes_per_token * 2 // 7,
    )
    # Each token once to the other node, where it is handed on: two of eight experts, one on each
    # rank, four on a node.
    dispatch, (near, far) = bytes_of(2, 2, "deepep_high_throughput")
    row, rank, node = dispatch.rows.row_bytes, 2 / 8, 1 - (4 * 3) / (8 * 7)
    assert near == pytest.approx(4 * rank * row * 2 / 4, abs=1) and far == pytest.approx(
        node * row / 2, abs=1
    )

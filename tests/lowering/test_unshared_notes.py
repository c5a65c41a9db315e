"""Exchanges of rows beside KV on the same links: which are slowed, and which a run says are not."""

from pathlib import Path
from typing import Any

import pytest

from llmsim.lowering import shared_links
from tests.lowering.clusters import cluster, lowered, model, run

BACKENDS = ("allgather_reducescatter", "naive", "pplx", "deepep_high_throughput", "deepep_low_latency")


def split(folder: Path, members: int = 2, nodes: int = 1, **keys: Any) -> dict[str, Any]:
    """Ranks with prompts and as many with answers: `members` of each on each node."""
    path = model(folder, experts=8)
    sides = [
        cluster(path, members=members, nodes=nodes, dp_group=role, pd_type=role, **keys)
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


@pytest.mark.parametrize(("backend", "expected"), [("allgather_reducescatter", False), ("deepep_low_latency", True)])
def test_those_on_two_kinds_of_ports_are_named(tmp_path: Path, backend: str, expected: bool) -> None:
    assert noted(split(tmp_path, members=2, nodes=2, all2all_backend=backend)) == expected


@pytest.mark.parametrize(
    ("backend", "tp"),
    [("naive", 1), ("pplx", 1), ("deepep_high_throughput", 1), ("deepep_low_latency", 2), ("naive", 2),
     ("allgather_reducescatter", 2)],
)  # fmt: skip
def test_kv_slows_exchanges_on_its_ports(
    tmp_path: Path, backend: str, tp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slow port between instances: the same tokens, later. What takes its own times does not notice."""
    document = split(tmp_path, all2all_backend=backend, links=[50, 2], tp_size=tp)
    with_flows = run(document)
    monkeypatch.setattr(shared_links, "_flows", lambda *_: shared_links.Flows(rows=False, rings=False))
    apart = run(document)
    for results in (with_flows, apart):
        assert set(results.invariants.values()) == {"ok"}
    assert int(with_flows.requests.finish_ps.sum()) > int(apart.requests.finish_ps.sum())


def test_rows_inside_an_instance_stay_on_its_own_links(tmp_path: Path) -> None:
    """Of what leaves a device, the part for its own tensor-parallel peers does not take the ports between instances."""
    group = lowered(split(tmp_path, tp_size=2, all2all_backend="deepep_low_latency")).groups[0]
    (dispatch,) = [op for op in group.operators if op.name == "dispatch"]
    assert dispatch.among == "everyone"
    each = shared_links._bytes_per_token(dispatch, group.layout, 2)
    # Four ranks: of the three others of each, two are another member's; two devices of a member send at once.
    assert each == -(-dispatch.collective_bytes_per_token * 2 // (3 * 2))

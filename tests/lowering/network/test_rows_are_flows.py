"""Rows to experts on the routes of a topology meet other groups and KV on their links."""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmsim.lowering.network.all_to_all import Busiest
from llmsim.lowering.network.contended.plans import rows_moved
from llmsim.lowering.network.topology_all_to_all import RoutedPorts
from llmsim.model import AllToAll
from tests.lowering.clusters import cluster, lowered, model, run
from tests.lowering.network.test_routed_exchange import on, rails, two_leaves

STRAIGHT, STAGED = "deepep_low_latency", "deepep_high_throughput"


def exchange_of(folder: Path, network: dict[str, Any], backend: str) -> tuple[AllToAll, Any]:
    """Rows among four devices, and the ports that price them."""
    group = lowered(on(folder, network, backend, members=4)).groups[0]
    op = next(op for op in group.operators if isinstance(op, AllToAll))
    return op, group.links.exchange(op, 0)


def test_rows_by_hand(tmp_path: Path) -> None:
    """Two of eight experts for each token: a rank of four gets half a row of it, an eighth of it
    from each sender. Of two nodes each gets a row at 1 - (4 choose 2) / (8 choose 2) of the tokens.
    """
    op, _ = exchange_of(tmp_path, two_leaves(), STRAIGHT)
    (part,) = rows_moved(op, [0, 1, 2, 3], 1)
    assert len(part.flows) == 12 and part.share == Fraction(1, 8)
    op, _ = exchange_of(tmp_path, rails(), STAGED)
    near, far = rows_moved(op, [0, 1, 2, 3], 2)
    assert set(near.flows) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert set(far.flows) == {(0, 2), (1, 3), (2, 0), (3, 1)}
    assert float(near.share) == pytest.approx((1 - 15 / 28) / 2)
    assert float(far.share) == pytest.approx((1 - 6 / 28) / 4)


@pytest.mark.parametrize(("network", "backend"), [(two_leaves(), STRAIGHT), (rails(), STRAIGHT)])
def test_flows_load_links_as_the_price_says(
    tmp_path: Path, network: dict[str, Any], backend: str
) -> None:
    op, ports = exchange_of(tmp_path, network, backend)
    assert isinstance(ports, RoutedPorts)
    carried: Counter[int] = Counter()
    for part in rows_moved(op, ports.runs[0], ports.nodes):
        for flow in part.flows:
            for link in ports.routes.native.route(*flow):
                carried[link] += part.share
    seconds = max(
        float(share) * op.rows.row_bytes / ports.routes.speeds[link][0]
        for link, share in carried.items()
    )
    to_rank, to_node = np.array([op.topk / 4]), np.array([0.0])
    assert ports.even(op.rows, Busiest(to_rank, to_node)).rank[0] == pytest.approx(seconds)


def two_domains(folder: Path, groups: int, **keys: Any) -> dict[str, Any]:
    """Pairs of ranks on both sides of the cable between two leaves; each pair is a domain."""
    path = model(folder, experts=8)
    keys = {"all2all_backend": STRAIGHT} | keys
    document = cluster(path, members=2 * groups, dp_group="a", **keys)
    node = document["nodes"][0]
    node["instances"] = [
        {**one, "dp_group": f"domain{at // 2}", "topology_devices": [at // 2 + 2 * (at % 2)]}
        for at, one in enumerate(node["instances"])
    ]
    (folder / "network.json").write_text(json.dumps(two_leaves()))
    return document | {"topology": str(folder / "network.json")}


def test_two_domains_slow_each_others_rows(tmp_path: Path) -> None:
    """Rows are all that ranks of one device exchange."""
    document = two_domains(tmp_path, 2)
    assert len(lowered(document).contended) == 2
    both = run(document)
    lost, slowed, whole = (
        both.counters[f"communication_{name}ps"] for name in ("lost_", "slowed_", "")
    )
    assert (lost > 0).all() and (lost < slowed).all() and (slowed <= whole).all()
    assert set(both.invariants.values()) == {"ok"}


def test_a_domain_without_company_takes_its_time_alone(tmp_path: Path) -> None:
    """One request, of the first of both domains."""
    trace = "synthetic:n=1,rate=1,input=fixed:700,output=fixed:20,seed=1"
    alone, beside = (run(two_domains(tmp_path, count), trace=trace) for count in (1, 2))
    assert alone.requests.finish_ps == beside.requests.finish_ps
    assert not beside.counters["communication_lost_ps"].any()


def test_exchanges_without_flows_are_named(tmp_path: Path) -> None:
    """Broadcasts in turn have no flows on a topology; the sums that follow them meet others."""
    words = "dispatch: these exchanges take their own times, whatever other groups are on the same"
    notes = lowered(two_domains(tmp_path, 2, all2all_backend="naive")).notes
    assert [words in note for note in notes].count(True) == 1
    for document in (two_domains(tmp_path, 2), two_domains(tmp_path, 1, all2all_backend="naive")):
        assert not any("their own times" in note for note in lowered(document).notes)

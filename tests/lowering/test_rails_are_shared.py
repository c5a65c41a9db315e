"""Collectives over servers meet on the network cards that NCCL's rails use."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import llmsim
from llmsim.api.result import Result

ROOT = Path(__file__).resolve().parents[2]
H100 = json.loads((ROOT / "cluster_config" / "h100_llama31_70b_tp4.json").read_text("utf-8"))
CARDS = [(server, card) for server in (0, 1) for card in (0, 1)]
MIXED = ([0, 2, 4, 6], [1, 3, 5, 7])
"""One device of each group on each card."""
APART = ([0, 4, 1, 5], [2, 6, 3, 7])
"""Both devices of a card are one group's, and its ranks go to and fro between the servers."""


def servers() -> dict[str, Any]:
    """Two servers of four devices behind one switch; two devices share a network card."""
    links = []
    for device in range(8):
        server, card = device // 4, device % 4 // 2
        links += [
            (str(device), f"inside{server}", 450, 500),
            (str(device), f"port{device}", 100, 50),  # so that no shortest way inside takes a card
            (f"port{device}", f"card{server}{card}", 100, 50),
        ]
    links += [(f"card{server}{card}", "between", 50, 900) for server, card in CARDS]
    names = dict.fromkeys(name for a, b, *_ in links for name in (a, b) if not name.isdigit())
    return {
        "devices": 8,
        "hardware": "H100",
        "switches": [{"name": name} for name in names],
        "links": [
            {"a": a, "b": b, "bandwidth_gb_per_s": rate, "latency_ns": latency}
            for a, b, rate, latency in links
        ],
        "groups": {"node0": list("0123"), "node1": list("4567")},
    }


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rails") / "servers.json"
    path.write_text(json.dumps(servers()), encoding="utf-8")
    return path


def run(topology: Path, *devices: list[int], requests: int, **options: Any) -> Result:
    """A group on each list of devices, and a prompt for each of the first groups."""
    one = H100["nodes"][0]["instances"][0]
    instances = [{**one, "topology_devices": each} for each in devices]
    document = {
        **H100,
        "topology": str(topology),
        "nodes": [{"num_instances": len(devices), "instances": instances}],
    }
    rows = [
        {
            "input_toks": 2000,
            "output_toks": 3,
            "arrival_time_ns": 0,
            "input_tok_ids": list(range(at * 2000, (at + 1) * 2000)),
            "output_tok_ids": [1, 2, 3],
        }
        for at in range(requests)
    ]
    options.setdefault("request_routing_policy", "RR")
    return llmsim.run(document, pd.DataFrame(rows), **options)


def ttft_ps(result: Result) -> list[int]:
    return [int(ps) for ps in result.requests["ttft_ps"]]


def test_a_collective_without_company_takes_what_nccl_takes(topology: Path) -> None:
    alone = run(topology, MIXED[0], requests=1)
    assert alone._prepared.lowered.network is None
    beside = run(topology, *MIXED, requests=1)
    assert len(beside._prepared.lowered.contended) == 2
    assert ttft_ps(beside) == ttft_ps(alone)
    assert beside.summary["communication"]["lost_s"] == 0


def test_groups_that_share_cards_slow_each_other(topology: Path) -> None:
    (alone,) = ttft_ps(run(topology, MIXED[0], requests=1))
    both = run(topology, *MIXED, requests=2)
    first, second = ttft_ps(both)
    assert first == second > alone
    assert both.summary["invariants"]["15 links"] == "ok"
    off = run(topology, *MIXED, requests=2, collective_contention="off")
    assert ttft_ps(off) == [alone, alone]


def test_every_card_carries_as_much(topology: Path) -> None:
    """A ring in the order of the ranks would leave a server by one card and enter by another."""
    links = run(topology, *MIXED, requests=2)._results.links
    cards = links["bytes"][links["bytes_per_s"] == 50 * 10**9]
    assert len(cards) == 2 * len(CARDS) and cards.min() == cards.max() > 0
    inside = links["bytes"][links["bytes_per_s"] == 450 * 10**9]
    assert np.count_nonzero(inside) == 16


def test_groups_with_cards_of_their_own_do_not_meet(topology: Path) -> None:
    apart = run(topology, *APART, requests=2)
    assert apart._prepared.lowered.network is None
    (alone,) = ttft_ps(run(topology, APART[0], requests=1))
    assert ttft_ps(apart) == [alone, alone]

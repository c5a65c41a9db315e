"""Collectives over servers meet on the network cards that NCCL's rails use."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from costs.builders import needs_database

import llmsim
from llmsim.api.result import Result
from llmsim.config.topology.file import load_topology
from llmsim.costs.nccl.plans import Way
from llmsim.export.step_graph.graph import iteration_graph
from llmsim.model import Collective
from llmsim.rounds import round_of
from llmsim.rounds.shared_links import shared_links

ROOT = Path(__file__).resolve().parents[3]
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
    return run_on(document, requests=requests, **options)


def run_on(document: dict[str, Any], *, requests: int, **options: Any) -> Result:
    """Prompts of 2,000 tokens at time 0, one after the other to each group."""
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


def test_what_a_step_lost_is_the_others_bytes_over_the_cards(topology: Path) -> None:
    """Both prompts start together: each of 161 trees, and the logits, wait for as many bytes of the
    other on every card, at 20 ps a byte. `graph step -v` shares that out over the eight links.
    """
    (alone,) = ttft_ps(run(topology, MIXED[0], requests=1))
    both = run(topology, *MIXED, requests=2)
    logits = -(-2 * 128_256 * 3 * 16 // (4 * 2 * 15))
    lost_ps = (161 * 2000 * 16_384 // 2 + logits) * 20
    assert ttft_ps(both) == [alone + lost_ps] * 2
    prepared = both._prepared
    batch = round_of(prepared.lowered, prepared.workload, prepared.simulation, 0, 0)
    groups = prepared.lowered.groups
    graph = iteration_graph(groups, 0, batch)
    found = shared_links(batch, graph, groups, groups[0].engine.host_gap_ps)
    assert len(found) == 2 * len(CARDS) and {one.bytes_per_s for one in found} == {50 * 10**9}
    assert all(one.others == ("group 1",) for one in found)
    assert sum(one.lost_ps for one in found) == lost_ps


def test_groups_with_cards_of_their_own_do_not_meet(topology: Path) -> None:
    apart = run(topology, *APART, requests=2)
    assert apart._prepared.lowered.network is None
    (alone,) = ttft_ps(run(topology, APART[0], requests=1))
    assert ttft_ps(apart) == [alone, alone]


def bytes_on_cards(result: Result) -> set[int]:
    links = result._results.links
    return set(links["bytes"][links["bytes_per_s"] == 50 * 10**9].tolist())


def test_cards_carry_the_bytes_of_the_plan(topology: Path) -> None:
    """By hand: a prompt of 2,000 tokens and two decodes, each with 161 all-reduces and the gathered
    logits, over a card for each of two ranks of a server. A tree between two servers sends the
    vector once each way, a ring 3 / 4 of it twice; LL as many flags, LL128 one byte for 15 more.
    """
    result = run(topology, *MIXED, requests=1)
    group = result._prepared.lowered.groups[0]
    collectives = [op for op in group.operators if isinstance(op, Collective)]
    plans = {op.collective: group.links.ways(op, 2000, 0, nodes=2) for op in collectives}
    reduces, gathers = plans["all_reduce"], plans["all_gather"]
    assert [reduces[0][1].name, reduces[-1][1].name] == ["ring LL", "tree Simple"]
    assert gathers[0] == (1, Way("ring", "LL128"))
    prompt, decode = 2000 * 16_384 // 2, 16_384 * 2 * 3 // 4 // 2 * 2
    logits = -(-2 * 128_256 * 3 * 16 // (4 * 2 * 15))
    assert bytes_on_cards(result) == {161 * (prompt + 2 * decode) + 3 * logits}


@needs_database
def test_stages_in_a_server_move_what_vllm_and_nccl_move() -> None:
    """By hand, of 81 all-reduces in the first of two stages: one-shot of a decode sends the vector
    to three others, the ring of a prompt 2 x 3/4 of it. Half of each token's hidden state leaves.
    """
    one = H100["nodes"][0]["instances"][0]
    staged = {**one, "num_npus": 8, "pp_size": 2, "topology_devices": list(range(8))}
    document = {**H100, "nodes": [{"num_instances": 1, "instances": [staged]}]}
    result = run_on(document | {"topology": "dgx_h100"}, requests=1)
    into = 81 * (2000 * 16_384 * 3 // 2 + 2 * 16_384 * 3)
    links = result._results.links["bytes"][:8].tolist()  # of the first stage's devices
    assert links == [into + 2002 * 8192, into] * 4
    assert result.summary["communication"]["lost_s"] == 0
    off = run_on(document | {"topology": "dgx_h100"}, requests=1, collective_contention="off")
    assert ttft_ps(result) == ttft_ps(off)


@needs_database
@pytest.mark.parametrize("reducing", [False, True])
def test_trees_and_switches_alone_take_their_tables(tmp_path: Path, reducing: bool) -> None:
    """Two stages of 16 ranks on two servers each, whose hidden states leave by the cards of their
    collectives: flows of every plan from LL trees to NVLSTree, or to CollNet.
    """
    one = H100["nodes"][0]["instances"][0]
    shape = {"num_npus": 32, "tp_size": 16, "pp_size": 2, "topology_devices": list(range(32))}
    network = load_topology("h100_rails_32x8").as_file() | {"reducing_network": reducing}
    (tmp_path / "rails.json").write_text(json.dumps(network), encoding="utf-8")
    document = {
        **H100,
        "topology": str(tmp_path / "rails.json"),
        "nodes": [{"num_instances": 1, "instances": [{**one, **shape}]}],
    }
    result = run_on(document, requests=1)
    group = result._prepared.lowered.groups[0]
    (reduces, *_) = (op for op in group.operators if op.name == "all_reduce")
    assert isinstance(reduces, Collective)
    ways = [way.name for _, way in group.links.ways(reduces, 2000, 0, nodes=2)]
    assert ways[0] == "tree LL" and ways[-1] == ("CollNet" if reducing else "NVLSTree")
    (domain,) = result._prepared.lowered.contended
    assert len(domain.planned) > len(ways)
    off = run_on(document, requests=1, collective_contention="off")
    for column in ("ttft_ps", "e2el_ps"):
        assert result.requests[column].tolist() == off.requests[column].tolist()


def test_no_card_carries_more_than_its_rate_allows(topology: Path) -> None:
    """Both groups start together: their plans' bytes take the cards at least so long."""
    both = run(topology, *MIXED, requests=2)
    (carried,) = bytes_on_cards(both)
    (alone,) = bytes_on_cards(run(topology, *MIXED, requests=1))
    assert carried == 2 * alone
    ends = int(max(both.requests["arrival_ps"] + both.requests["e2el_ps"]))
    assert ends >= carried * 10**12 // (50 * 10**9)
    assert ends >= both._results.links["busy_ps"].max()

"""What NCCL's plans move, by hand and for any servers: who gets what, and over which links."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.costs.nccl.constants import measured_machine, measured_machines
from llmsim.costs.nccl.moved import Pair, moved, parent_of, together
from llmsim.costs.nccl.plans import Place, Way, plans_of
from llmsim.costs.nccl.protocols import PHASES

HALF, QUARTER, EIGHTH = Fraction(1, 2), Fraction(1, 4), Fraction(1, 8)
TWO_SERVERS = [[0, 1], [2, 3]]


def shares(way: Way, kind: str, servers: list[list[int]]) -> dict[Pair, Fraction]:
    return {flow: part.share for part in moved(way, kind, servers) for flow in part.flows}


def servers_of(nodes: int, each: int) -> list[list[int]]:
    return [[node * each + rank for rank in range(each)] for node in range(nodes)]


def test_a_ring_over_rails() -> None:
    """2 x 3/4 of the vector go round; each of two channels has one half of it."""
    rails = {(0, 2), (1, 3), (2, 0), (3, 1)}
    inside = {(0, 1), (1, 0), (2, 3), (3, 2)}
    for kind, share in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
        found = shares(Way("ring", "Simple"), kind, TWO_SERVERS)
        assert found == dict.fromkeys(rails | inside, Fraction(3, 4) * share / 2)


def test_a_ring_in_a_server_has_all_channels_on_every_link() -> None:
    ring = {(at, (at + 1) % 8) for at in range(8)}
    plain = shares(Way("ring", "Simple"), "all_reduce", servers_of(1, 8))
    assert plain == dict.fromkeys(ring, Fraction(14, 8))
    flags = shares(Way("ring", "LL"), "all_reduce", servers_of(1, 8))
    assert flags == dict.fromkeys(ring, Fraction(28, 8))
    nearly = shares(Way("ring", "LL128"), "all_gather", servers_of(1, 8))
    assert nearly == dict.fromkeys(ring, Fraction(7, 8) * 16 / 15)


def test_a_switch_that_reduces_takes_the_vector_and_one_part_more() -> None:
    for way in (Way("NVLS"), Way("multimem", library="vLLM")):
        found = shares(way, "all_reduce", servers_of(1, 8))
        assert found == {(at, (at + 1) % 8): Fraction(9, 8) for at in range(8)}


def test_vllm_sends_to_all_others() -> None:
    one = shares(Way("one-shot", library="vLLM"), "all_reduce", servers_of(1, 4))
    two = shares(Way("two-shot", library="vLLM"), "all_reduce", servers_of(1, 4))
    assert len(one) == len(two) == 12
    assert set(one.values()) == {1} and set(two.values()) == {HALF}


def test_two_trees_among_three_servers() -> None:
    """1 hangs on 2 and 2 on 0; then 2 on 0 and 0 on 1: each for half of the vector."""
    found = shares(Way("NVLSTree"), "all_reduce", [[0], [1], [2]])
    ring = {(0, 1): HALF, (1, 0): HALF, (1, 2): HALF, (2, 1): HALF, (0, 2): 1, (2, 0): 1}
    nothing_inside = [pair for pair in found if pair[0] == pair[1]]
    assert not nothing_inside and found == ring


def test_a_tree_between_two_servers_sends_each_byte_once() -> None:
    found = shares(Way("tree", "Simple"), "all_reduce", TWO_SERVERS)
    rails = dict.fromkeys([(0, 2), (2, 0), (1, 3), (3, 1)], HALF)
    # A server of two ranks has one chain for each channel, up and down over the same neighbours.
    inside = dict.fromkeys([(0, 1), (1, 0), (2, 3), (3, 2)], Fraction(1))
    assert found == rails | inside


def test_switches_between_servers_get_the_vector_once() -> None:
    found = shares(Way("CollNet"), "all_reduce", servers_of(4, 8))
    assert {found[at, (at + 8) % 32] for at in range(32)} == {EIGHTH}
    assert {found[at, at // 8 * 8 + (at + 1) % 8] for at in range(32)} == {Fraction(9, 8)}


def test_rows_change_to_the_receivers_rail_inside() -> None:
    found = shares(Way("PXN", "Simple"), "all_to_all", TWO_SERVERS)
    inside = dict.fromkeys([(0, 1), (1, 0), (2, 3), (3, 2)], HALF)  # own rows and handed-over ones
    rails = dict.fromkeys([(0, 2), (1, 3), (2, 0), (3, 1)], HALF)
    assert found == inside | rails


def test_binomial_trees_of_five_ranks() -> None:
    """Two blocks to the next rank, one at distance 2, one at distance 4."""
    gathered = shares(Way("PAT"), "all_gather", [[at] for at in range(5)])
    for at in range(5):
        assert gathered[at, (at + 1) % 5] == Fraction(2, 5)
        assert gathered[at, (at + 2) % 5] == gathered[at, (at + 4) % 5] == Fraction(1, 5)
    scattered = shares(Way("PAT"), "reduce_scatter", [[at] for at in range(5)])
    assert scattered == {(b, a): share for (a, b), share in gathered.items()}


def test_collectives_at_once_keep_their_flows() -> None:
    way = Way("ring", "Simple")
    both = together([moved(way, "all_reduce", [[0], [1]]), moved(way, "all_reduce", [[2], [3]])])
    (part,) = both
    assert part.share == 1 and set(part.flows) == {(0, 1), (1, 0), (2, 3), (3, 2)}


@pytest.mark.parametrize("number", [2, 3, 5, 8, 13, 64])
def test_trees_are_trees(number: int) -> None:
    for at in range(1, number):
        steps, node = 0, at
        while node:
            node = parent_of(node, number)
            steps += 1
            assert steps <= number.bit_length() and 0 <= node < number
    hanging = Counter(parent_of(at, number) for at in range(1, number))
    assert max(hanging.values()) <= 2


@given(
    kind=st.sampled_from(sorted(PHASES)), nodes=st.integers(1, 33), each=st.integers(1, 8),
    size=st.integers(1, 1 << 32), system=st.sampled_from(measured_machines()),
    reducing=st.booleans(),
)  # fmt: skip
@settings(derandomize=True, max_examples=150)
def test_no_plan_is_faster_than_its_bytes_over_the_links(
    kind: str, nodes: int, each: int, size: int, system: str, reducing: bool
) -> None:
    """Every rank gets what it lacks, and no link carries more than the plan has time for."""
    ranks = nodes * each
    if ranks < 2:
        return
    place = Place(ranks, nodes, each, 50.0, 1.0, reducing)
    machine, vector = measured_machine(system), np.array([float(size)])
    for plan in plans_of(machine, kind, vector, place):
        if not np.isfinite(plan.us[0]):
            continue
        into, out, inside = Counter[int](), Counter[int](), Counter[int]()
        pairs = Counter[Pair]()
        cards = Counter[tuple[int, bool]]()
        for (a, b), share in shares(plan.way, kind, servers_of(nodes, each)).items():
            assert a != b and share > 0
            into[b] += share
            out[a] += share
            if a // each == b // each:
                inside[a] += share
                pairs[a, b] += share
            else:
                cards[a, True] += share
                cards[b, False] += share
        for rank in range(ranks):
            assert into[rank] >= Fraction(ranks - 1, ranks), plan.way
            assert into[rank] == out[rank] or plan.way.algorithm in ("tree", "NVLSTree", "PAT")
        one_link = machine.link_gb_per_s / machine.pair_links
        known = ((cards, 50.0), (inside, machine.link_gb_per_s), (pairs, one_link))
        for links, gb_per_s in known:
            least_us = size * float(max(links.values(), default=0)) / (gb_per_s * 1e3)
            assert plan.us[0] >= least_us, plan.way

"""vLLM's balancers in front of prefill groups and in front of decode groups."""

from dataclasses import replace
from typing import Any

import pytest
from pd import MS, Cluster, run

BALANCED = Cluster([400, 400], [400, 400], router="VLLM_DP", api_ps=2 * MS)
LOAD = [(at_ms * 10**3, 40 + at_ms * 37 % 700, 2 + at_ms * 7 % 30) for at_ms in range(0, 900, 13)]


def in_turn() -> Any:
    turn = iter(range(10**6))
    return lambda request, groups: int(groups[next(turn) % len(groups)].index)


def test_a_balancer_hears_of_the_engines_of_its_own_server() -> None:
    """What chooses among decode groups does not change which prefill group a prompt goes to."""
    balanced = run(LOAD, BALANCED).kv_transfers()["prefill_group"].tolist()
    turns = run(LOAD, replace(BALANCED, decode_route=in_turn())).kv_transfers()
    assert balanced == turns["prefill_group"].tolist()
    unheard = [number % 2 for number in range(len(LOAD))]
    assert balanced != unheard, "it has heard that one is busy"


@pytest.mark.parametrize("decode", [[400], [400, 400]])
@pytest.mark.parametrize("prefill", [[400], [400, 400]])
def test_a_prompt_is_read_once_by_each_server(prefill: list[int], decode: list[int]) -> None:
    """One request takes what it takes behind a router that chooses before."""
    times = []
    for router in ("VLLM_DP", "RR"):
        cluster = replace(BALANCED, prefill=prefill, decode=decode, router=router)
        one = run([(0, 64, 3)], cluster).kv_transfers()
        names = ("prefill_end_ps", "kv_reserved_ps", "kv_landed_ps", "decode_scheduled_ps")
        times.append([int(one[name][0]) for name in names])
    assert times[0] == times[1]
    assert times[0][1] == times[0][0] + BALANCED.api_ps


def test_clients_that_leave_while_a_decode_server_reads() -> None:
    """The group that is chosen hears of both, and takes no blocks."""
    alone = run([(0, 64, 3)], BALANCED).kv_transfers()
    left_ps = int(alone["prefill_end_ps"][0]) + MS
    one = run([(0, 64, 3)], BALANCED, timeouts=[left_ps])
    assert int(one.kv_transfers()["kv_reserved_ps"][0]) == -1
    assert one.requests()["cancelled_ps"].tolist() == [left_ps + MS], "when it has been chosen"

"""When a decode group of SGLang takes a request over: 512 tokens stay free for each that it holds,
and an answer.
"""

import pytest
from pd import Cluster, run

RESERVED = 512
FIRST = (0, 64, 400)
"""Runs alone for two seconds before the other comes, and holds 64 tokens and what it has answered.
"""


def waits(blocks: int, prompt: int, output: int) -> bool:
    """Whether the second request is reserved only when the first has left; blocks of one token."""
    cluster = Cluster([5000], [blocks + 1], block_size=1, scheduler="sglang")
    sim = run([FIRST, (100_000, prompt, output)], cluster)
    requests, reserved_ps = sim.requests(), sim.kv_transfers()["kv_reserved_ps"]
    assert requests["status"].tolist() == [3, 3]
    return bool(reserved_ps[1] >= requests["finish_ps"][0])


@pytest.mark.parametrize(("more", "expected"), [(-10, True), (10, False)])
def test_a_short_answer_needs_what_is_reserved_for_it(more: int, expected: bool) -> None:
    """100 tokens and 512 for each of both; the first has answered some 20 when the second comes."""
    assert waits(64 + 20 + RESERVED + 100 + RESERVED + more, 100, 50) is expected


@pytest.mark.parametrize(("more", "expected"), [(-10, True), (10, False)])
def test_a_long_answer_needs_its_room_but_for_what_can_be_retracted(
    more: int, expected: bool
) -> None:
    """100 tokens and an answer of 2000, less the 64 and some 20 tokens of the first, which would be
    retracted.
    """
    blocks = 64 + 20 + RESERVED + 100 + 2000 - (64 + 20)
    assert waits(blocks + more, 100, 2000) is expected


def test_the_first_token_comes_with_the_kv() -> None:
    """An idle server gives it at once, and a request of one token computes nothing there."""
    cluster = Cluster([5000], [5001], block_size=1, scheduler="sglang", push=True)
    sim = run([(0, 100, 1), (2_000_000, 100, 3)], cluster)
    requests, landed = sim.requests(), sim.kv_transfers()["kv_landed_ps"]
    assert requests["first_token_ps"].tolist() == landed.tolist()
    assert requests["finish_ps"][0] == landed[0] and requests["finish_ps"][1] > landed[1]
    assert sim.counters()["scheduled_tokens"].tolist() == [200, 2]


def test_retracted_requests_come_back_with_their_kv() -> None:
    """Two answers of 600 tokens do not fit beside each other, and nothing is computed again."""
    cluster = Cluster([5000], [1281], block_size=1, scheduler="sglang", push=True)
    sim = run([(0, 64, 600), (100, 64, 600)], cluster)
    counters = sim.counters()
    assert sim.requests()["status"].tolist() == [3, 3]
    assert counters["preemptions"][1] > 0 and counters["recomputed_tokens"][1] == 0

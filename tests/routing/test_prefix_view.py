"""The prefix-aware routers see what the groups have cached: all of it, when it is published, and
not before.
"""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_runs import MS, Run, python, step_ps

APART = 2000 * MS
"""Long enough for the requests of the tests below to end before the next ones."""


class Given:
    """Sends request i to group `routes[i]`."""

    def __init__(self, routes: list[int]) -> None:
        self.routes = routes

    def route(self, request: object, groups: object) -> int:
        return self.routes[request.row]  # type: ignore[attr-defined]


def content(prompt: tuple[int, int], row: int, tokens: int) -> list[int]:
    """Keys of `tokens` tokens: blocks of a shared prefix (number, length in blocks), then the
    request's own.
    """
    number, shared = prompt
    return [
        100 * (number + 1) + i if i < shared else 10_000 * (row + 1) + i
        for i in range(tokens // 16)
    ]


requests_strategy = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 2), st.integers(0, 6)),
        st.integers(1, 120),
        st.integers(1, 20),
        st.booleans(),
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(
    requests_strategy,
    st.sampled_from([12, 20, 200]),
    st.sampled_from([(16,), (32,), (16, 32, 48)]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 1 << 40]),
)
def test_alone_a_request_goes_where_most_of_it_is_cached(
    requests: list[tuple[tuple[int, int], int, int, bool]],
    blocks: int,
    block_sizes: tuple[int, ...],
    depth: int,
    spread: int,
) -> None:
    """Compared with sending it to each of the groups, with and without evictions, dense keys and
    sparse ones.

    Others come in bursts, so that contents get to all groups.
    """
    burst = list(accumulate((not together for *_, together in requests), initial=0))[1:]
    rows = [
        (number * APART, tokens, outputs)
        for number, (_, tokens, outputs, _) in zip(burst, requests, strict=True)
    ]
    keys = [
        [k * spread for k in content(prompt, i, t + o)]
        for i, (prompt, t, o, _) in enumerate(requests)
    ]
    run = Run(rows, groups=3, blocks=blocks, block_sizes=block_sizes, depth=depth, keys=keys)
    chosen = run.routes("PREFIX:weight=5")
    for row in range(1, len(rows)):
        if burst[row] == burst[row - 1]:
            continue
        hits = []
        for group in range(3):
            routes = [*chosen[:row], group, *chosen[row + 1 :]]
            hits.append(int(run.simulation(python(Given(routes))).requests()["cached_tokens"][row]))
        assert chosen[row] == hits.index(max(hits)), (row, hits)


def test_what_was_evicted_is_not_seen_any_more() -> None:
    """Content X is put on groups 1 and 2; on group 1, Y takes its blocks."""
    x, y = [1, 2, 3, 4], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
    first, again = [(0, 32, 1), (0, 64, 1), (0, 64, 1)], (2 * APART, 80, 1)
    between = [(APART, 32, 1), (APART, 10 * 16, 1)]
    keys = [[], x, x, [], y, [*x, 5]]
    assert Run([*first, *between, again], groups=3, blocks=11, keys=keys).routes("PREFIX") == [
        0,
        1,
        2,
        0,
        1,
        2,
    ]
    assert Run([*first, *between, again], groups=3, blocks=40, keys=keys).routes("PREFIX") == [
        0,
        1,
        2,
        0,
        1,
        1,
    ]
    # On one group only: then nobody has it.
    del first[2], keys[2]
    assert Run([*first, *between, again], groups=3, blocks=11, keys=keys).routes("PREFIX") == [
        0,
        1,
        0,
        1,
        0,
    ]
    assert Run([*first, *between, again], groups=3, blocks=40, keys=keys).routes("PREFIX") == [
        0,
        1,
        0,
        1,
        1,
    ]


def three_requests(delay_ps: int, arrival_ps: int) -> list[int]:
    """The second one's content is on group 1 when its only step ends; the third one wants it and
    arrives then.
    """
    shared = [1, 2, 3, 4]
    rows = [(0, 32, 1), (0, 64, 1), (arrival_ps, 64, 1)]
    return Run(rows, keys=[[], shared, shared]).routes(f"PREFIX:delay_ms={delay_ps / MS:.9f}")


@pytest.mark.parametrize("delay_ps", [0, 1, 20 * MS])
def test_the_view_is_as_old_as_its_delay(delay_ps: int) -> None:
    published = step_ps(64, 1)  # when the step's outputs are processed
    assert three_requests(delay_ps, published + delay_ps) == [0, 1, 1]
    if delay_ps:
        assert three_requests(delay_ps, published + delay_ps - 1) == [0, 1, 0]


def test_a_block_is_not_seen_before_the_step_that_computes_it_has_ended() -> None:
    """At half of that step group 1 is busy, but the weight would outdo it."""
    assert three_requests(0, step_ps(64, 1) // 2)[2] == 0


def test_the_weight_is_the_queue_that_a_cached_prompt_is_worth() -> None:
    """Group 0 has 4 of the prompt's 5 blocks and three requests more than group 1."""
    shared, busy = [1, 2, 3, 4], [(i + APART, 16, 90) for i in range(6)]
    rows = [(0, 80, 1), *busy, (APART + 20 * MS, 80, 1)]
    keys = [[*shared, 50], *([] for _ in busy), [*shared, 60]]
    # The busy ones are sent alternately; for three more on group 0, group 1's end at once.
    rows[2], rows[4], rows[6] = ((at, tokens, 1) for at, tokens, _ in (rows[2], rows[4], rows[6]))
    run = Run(rows, keys=keys)
    assert run.routes("PREFIX:weight=3")[-1] == 1  # 3 - 3 * 4/5 > 0
    assert run.routes("PREFIX:weight=4")[-1] == 0  # 3 - 4 * 4/5 < 0
    assert run.routes("PREFIX:weight=4,delay_ms=3000")[-1] == 1


def test_without_prefix_caching_only_load_counts() -> None:
    rows = [(i * 3 * MS, 64, 5) for i in range(20)]
    run = Run(rows, groups=3, keys=[[1, 2, 3, 4]] * 20, caching=False)
    assert run.routes("PREFIX") == run.routes("LOR")


def test_more_groups_than_a_word_has_bits() -> None:
    """130 groups: the keys of group 128 are found, also when a group of the first word shares some
    of them.
    """
    rows = [(0, 64, 1) for _ in range(129)] + [
        (APART, 64, 1),
        (2 * APART, 64, 1),
        (3 * APART, 64, 1),
    ]
    keys: list[list[int]] = [[] for _ in range(129)]
    keys[128] = [1, 2, 3, 4]
    keys[5] = [1, 2, 9]
    run = Run(rows, groups=130, keys=[*keys, [1, 2, 3, 7], [1, 2, 9, 7], [1, 8]])
    assert run.routes("PREFIX")[129:] == [128, 5, 5]


def test_the_other_routers_leave_results_as_they_are() -> None:
    """Watching the caches changes nothing in the groups: only the choice differs."""
    rows = [(i * 7 * MS, 40 + i, 20) for i in range(30)]
    keys = [content((i % 3, 2), i, 60 + i) for i in range(30)]
    run = Run(rows, groups=2, blocks=30, keys=keys)
    watched, plain = run.simulation("PREFIX:weight=0"), run.simulation("LOR")
    for name, column in plain.requests().items():
        assert (watched.requests()[name] == column).all(), name

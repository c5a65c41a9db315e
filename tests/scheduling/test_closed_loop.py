"""Clients that take turns: how many ask at once, when, and Little's law between them and the
server.
"""

import numpy as np
import pytest
from scheduling.tiny import MS, Options, run

from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.workload import parse_synthetic
from llmsim.workload.clients import ClientOptions, with_clients
from llmsim.workload.synthetic.workload import generate


def most_at_once(r: dict[str, np.ndarray]) -> int:
    """Requests between arrival and end; who ends at a time makes room for who comes then."""
    ends = np.maximum(r["finish_ps"], r["cancelled_ps"])
    events = sorted([(t, 1) for t in r["arrival_ps"]] + [(t, -1) for t in ends])
    return int(np.cumsum([change for _, change in events]).max())


@pytest.mark.parametrize("clients", [1, 3, 7])
def test_never_more_requests_than_clients_and_never_fewer_while_some_are_left(clients: int) -> None:
    requests = [(0, 10 + i % 7, 1 + i % 5) for i in range(40)]
    r = run(requests, Options(clients=clients, max_seqs=64)).requests()  # type: ignore[arg-type]
    assert most_at_once(r) == clients
    # Without thinking, each end but those of the last ones is the arrival of somebody else.
    assert (
        sorted(r["arrival_ps"][clients:].tolist())
        == sorted(r["finish_ps"].tolist())[: 40 - clients]
    )
    assert (np.diff(r["arrival_ps"]) >= 0).all()


def test_a_client_thinks_after_its_own_answer_and_the_next_row_goes_to_who_is_ready_first() -> None:
    requests = [(0, 1, 1), (0, 1, 4), (0, 1, 1), (0, 1, 1)]
    r = run(requests, Options(clients=2, think_ms=[10, 1, 0, 0])).requests()  # type: ignore[arg-type]
    # Row 0 ends at 1 ms, its client is back at 11 ms; row 1 ends at 4 ms, its client is back at 5
    # ms and runs the rest.
    assert r["arrival_ps"].tolist() == [0, 0, 5 * MS, 6 * MS]


def test_who_thinks_when_nothing_is_left_to_ask_does_not_move_the_clock() -> None:
    sim = run([(0, 1, 2), (0, 1, 2)], Options(clients=1, think_ms=[10, 1000]))
    assert sim.requests()["finish_ps"].tolist() == [2 * MS, 14 * MS] and sim.now_ps == 14 * MS


def test_a_row_does_not_come_before_its_time() -> None:
    r = run([(0, 1, 1), (50, 1, 1), (51, 1, 3), (51, 1, 1)], Options(clients=1)).requests()  # type: ignore[arg-type]
    assert r["arrival_ps"].tolist() == [0, 50 * MS, 51 * MS, 54 * MS]


def test_a_client_stays_with_its_session_and_leaves_it_when_it_gives_up() -> None:
    requests = [(0, 1, 2), (-1, 1, 2), (0, 1, 9), (-1, 1, 1), (0, 1, 1)]
    options = Options(clients=1, next_call=[1, -1, 3, -1, -1], timeout_ms=[-1, -1, 3.5, -1, -1])
    r = run(requests, options).requests()  # type: ignore[arg-type]
    # The session of rows 0 and 1 ends at 4 ms; row 2 is given up at 7.5 ms, row 3 never comes.
    assert r["arrival_ps"].tolist() == [0, 2 * MS, 4 * MS, -1, int(7.5 * MS)]
    assert r["status"].tolist() == [3, 3, 5, 5, 3]


def test_littles_law_of_the_closed_loop() -> None:
    """N = throughput x (response + think time), exactly over whole cycles of clients that are all
    alike.
    """
    n, clients, think = 300, 5, 7
    r = run([(0, 1, 4)] * n, Options(clients=clients, max_seqs=64, think_ms=[think] * n)).requests()
    response = r["finish_ps"] - r["arrival_ps"]
    assert (response == 4 * MS).all()
    cycle = 4 * MS + think * MS
    assert r["arrival_ps"].tolist() == [(i // clients) * cycle for i in range(n)]


def workload(n: int = 50) -> Workload:
    return generate(parse_synthetic(f"synthetic:n={n},rate=10,input=20,output=5"))


def test_think_times_are_seeded_and_the_timeout_fills_in_what_lines_leave_open() -> None:
    options = ClientOptions(max_concurrency=4, think_time="exponential:2000", timeout_s=1.5)
    (one, first), (_, same), (_, other) = (
        with_clients(workload(), options, seed) for seed in (1, 1, 2)
    )
    assert first is not None and same is not None and other is not None
    assert (first.think_ps == same.think_ps).all() and (first.think_ps != other.think_ps).any()
    assert one.timeout_ps is not None and (one.timeout_ps == 1.5e12).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ClientOptions(think_time="5"), "only with --max-concurrency"),
        (ClientOptions(max_concurrency=2, think_time="expo:5"), 'unknown distribution "expo"'),
        (ClientOptions(timeout_s=0.0), "--request-timeout is 0"),
        (ClientOptions(max_concurrency=1 << 40), "--max-concurrency is"),
    ],
)
def test_refusals(options: ClientOptions, said: str) -> None:
    with pytest.raises(InputError, match=said):
        with_clients(workload(), options, 0)

"""Strict rules against the slow executor of `slow_strict.py`: recorded cases of ASTRA-sim, and
random programs.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from shared_data import shared

from engine import chakra_file as ck
from engine.command import run_case
from engine.strict.slow_strict import Run
from engine.strict.strict_programs import difference
from engine.strict.test_conformance import BACKENDS, CORPUS, cases


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_slow_executor_gives_recorded_times(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared("astra_conformance")
    ran = 0
    for case in cases(edge=False):
        recorded = case.recorded(backend)
        nodes = CORPUS / case.name / f"nodes_{backend}.csv"
        if (
            recorded is None
            or recorded["exit"] != 0
            or not nodes.exists()
            or case.expected["nodes"] > 40
        ):
            continue
        monkeypatch.chdir(CORPUS / case.name)
        times = Run(
            CORPUS / case.name, backend == "aware", tuple(case.expected["extra_flags"])
        ).times
        assert {f"{npu},{node},{at},{end}" for (npu, node), (at, end) in times.items()} == set(
            nodes.read_text().split()[1:]
        ), case.name
        ran += 1
    assert ran >= 80


@pytest.mark.parametrize("decade", range(10))
def test_random_programs(command: Path, tmp_path: Path, decade: int) -> None:
    """Every node, on either network, to the nanosecond; also which nodes never end."""
    said = [
        difference(seed, tmp_path / str(seed), command)
        for seed in range(decade * 10, decade * 10 + 10)
    ]
    assert not any(said), "\n".join(filter(None, said))


def both(command: Path, case: Path, backend: str = "unaware", flags: tuple[str, ...] = ()) -> Any:
    """Times of the fast executor, which are those of the slow one."""
    fast = run_case(command, case, case, backend, flags)
    assert fast.exit_code == 0, fast.errors
    assert fast.times() == Run(case, backend == "aware", flags).times
    return fast.times()


def test_a_rendezvous_releases_the_first_send_of_the_tag_whatever_its_size(
    command: Path, tmp_path: Path
) -> None:
    """The control message for the receive of 5 bytes lets the send of 50,000 go, for which nobody
    is ready yet.
    """
    sends = [
        ck.node(1, ck.SEND, comm_size=50_000, comm_dst=1, comm_tag=3),
        ck.node(2, ck.SEND, [1], comm_size=5, comm_dst=1, comm_tag=3),
    ]
    receives = [
        ck.node(1, ck.RECV, comm_size=5, comm_src=0, comm_tag=3),
        ck.node(2, ck.COMP, micros=900),
        ck.node(3, ck.RECV, [2], comm_size=50_000, comm_src=0, comm_tag=3),
    ]
    case = ck.write_case(tmp_path / "case", [sends, receives], ck.network("FullyConnected", 2))
    times = both(command, case, flags=("--rendezvous-protocol=true",))
    assert times[0, 1][1] < 900_000 < times[1, 1][1]


def test_two_control_messages_and_one_send_in_the_same_instant(
    command: Path, tmp_path: Path
) -> None:
    """The first control message has waited for the send of 4,000 ns; the second comes before that
    one has left.
    """
    sends = [
        ck.node(1, ck.COMP, micros=4),
        *(ck.node(n, ck.SEND, [n - 1], comm_size=9, comm_dst=1, comm_tag=0) for n in (2, 3)),
    ]
    receives = [
        ck.node(1, ck.RECV, comm_size=9, comm_src=0, comm_tag=0),
        ck.node(2, ck.COMP, micros=3),
        ck.node(3, ck.RECV, [2], comm_size=9, comm_src=0, comm_tag=0),
    ]
    network = ck.network("FullyConnected", 2, gb_per_s=1e6, latency_ns=1000)
    case = ck.write_case(tmp_path / "case", [sends, receives], network)
    times = both(command, case, flags=("--rendezvous-protocol=true",))
    assert [times[0, node] for node in (2, 3)] == [(4000, 5000), (5000, 6000)]


def test_involved_dim_counts_without_a_group_only(command: Path, tmp_path: Path) -> None:
    ends = []
    for more in (
        {},
        {"pg_name": "1"},
        {"involved_dim": [True, False]},
        {"pg_name": "1", "involved_dim": [True, False]},
    ):
        node = ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=4000, **more)
        network = {
            "topology": ["Ring", "Switch"],
            "npus_count": [3, 2],
            "bandwidth": [50, 50],
            "latency": [500, 900],
        }
        system = {"all-reduce-implementation": ["ring", "ring"]}
        everyone = random.Random(1).sample(range(6), 6)
        case = ck.write_case(
            tmp_path / "case", [[node]] * 6, network, system, groups={"1": everyone}
        )
        ends.append(both(command, case)[0, 1][1])
    assert ends[0] == ends[1] == ends[3] > ends[2]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", ["direct", "direct2", "halvingDoubling", "ring"])
def test_members_that_turn_different_ways(
    command: Path, tmp_path: Path, algorithm: str, backend: str
) -> None:
    """With two queues every second chunk of an NPU goes backwards, but none of an all-reduce by
    `localBWAware`: two of four have an all-reduce behind them, two an all-gather. Only a ring of
    more than two minds.
    """
    traces = []
    for kind, group in ((ck.ALL_REDUCE, "1"), (ck.ALL_GATHER, "2")):
        pair = ck.node(1, ck.COLL, comm_type=kind, comm_size=4000, pg_name=group)
        all_of_them = ck.node(2, ck.COLL, [1], comm_type=ck.ALL_GATHER, comm_size=4000)
        traces += [[pair, all_of_them]] * 2
    system = {
        "collective-optimization": "localBWAware",
        "all-reduce-implementation": [algorithm],
        "all-gather-implementation": [algorithm],
    }
    groups = {"1": [0, 1], "2": [2, 3]}
    case = ck.write_case(tmp_path / "case", traces, ck.network("Switch", 4), system, groups=groups)
    flags = ("--num-queues-per-dim=2",)
    if algorithm != "ring":
        both(command, case, backend, flags)
        return
    result = run_case(command, case, tmp_path, backend, flags)
    assert result.exit_code == 3
    assert (
        "waits in ALL_GATHER of 4000 bytes for messages of other NPUs, which never come"
        in result.errors
    )


@pytest.mark.parametrize("splits", [1, 3])
def test_a_collective_of_all_after_unequal_groups_waits_for_ever(
    command: Path, tmp_path: Path, splits: int
) -> None:
    """Upstream numbers the chunks of an NPU through, those of groups too; a group of all NPUs has
    numbers of its own.
    """
    pair = ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=3000, pg_name="1")
    said = f"on its NPU and {splits} on NPU 0, and ASTRA-sim, which counts those of groups too"
    for group, code in (("", 3), ("2", 0)):
        everyone = {"comm_type": ck.ALL_REDUCE, "comm_size": 6000, "pg_name": group}
        all_of_them = ck.node(2, ck.COLL, [1], **everyone)
        traces = [[pair, all_of_them]] * 2 + [[ck.node(1, ck.COMP), all_of_them]] * 2
        groups = {"1": [0, 1], "2": [0, 1, 2, 3]}
        system = {"preferred-dataset-splits": splits}
        network = ck.network("Switch", 4)
        case = ck.write_case(tmp_path / "case", traces, network, system, groups=groups)
        result = run_case(command, case, case)
        assert result.exit_code == code
        assert (said in result.errors) == (code == 3), result.errors
        assert result.times() == Run(case, False, ()).times
        assert run_case(command, case, case, rules="default").exit_code == 0


def test_a_replay_takes_the_duration_of_every_node(command: Path, tmp_path: Path) -> None:
    nodes = [
        ck.node(1, ck.INVALID, micros=4),
        ck.node(2, ck.COMP, [1], 5),
        ck.node(3, ck.RECV, [2], comm_size=1),
    ]
    nodes += [ck.node(n, ck.SEND, micros=2, is_cpu_op=True) for n in (4, 5)]
    case = ck.write_case(tmp_path / "case", [nodes] * 2, ck.network("Ring", 2), {"replay-only": 1})
    times = both(command, case)
    assert times[1, 3] == (9000, 9001)
    assert times[1, 5] == (2000, 4000)


def test_a_custom_rank_that_sends_to_itself_is_named(command: Path, tmp_path: Path) -> None:
    """Ranks are places in the sorted group, peers places in the list: in a list that is not sorted
    they may meet.
    """
    for rank in range(2):
        there = ck.node(1, ck.SEND, comm_size=9, comm_dst=1 - rank, comm_tag=0)
        back = ck.node(2, ck.RECV, comm_size=9, comm_src=1 - rank, comm_tag=0)
        (tmp_path / f"own.{rank}.et").write_bytes(ck.trace([there, back]))
    node = ck.node(1, ck.COLL, comm_type=ck.ALL_GATHER, comm_size=900, pg_name="1")
    system = {"all-gather-implementation-custom": [f"{tmp_path}/own"]}
    traces = [[ck.node(1, ck.COMP)], [node], [ck.node(1, ck.COMP)], [node]]
    case = ck.write_case(
        tmp_path / "case", traces, ck.network("Ring", 4), system, groups={"1": [3, 1]}
    )
    result = run_case(command, case, tmp_path)
    assert result.exit_code == 2
    assert (
        "NPU 1: rank 1 of its custom collective is itself in the list of group 1" in result.errors
    )


@pytest.mark.parametrize("late", [0, 1])
def test_npus_that_disagree_on_a_later_chunk_are_named(
    command: Path, tmp_path: Path, late: int
) -> None:
    """A byte more makes a third chunk, which meets the other NPU's next collective; who is late
    finds it running.
    """
    traces = []
    for npu, size in enumerate((1_000_003, 1_000_002)):
        wait = ck.node(1, ck.COMP, micros=5000 if npu == late else 0)
        reduce = ck.node(2, ck.COLL, [1], comm_type=ck.ALL_REDUCE, comm_size=size)
        traces.append(
            [wait, reduce, ck.node(3, ck.COLL, [2], comm_type=ck.ALL_GATHER, comm_size=1_000_003)]
        )
    system = {"preferred-dataset-splits": 2, "active-chunks-per-dimension": 1}
    result = run_case(
        command, ck.write_case(tmp_path / "case", traces, ck.network("Ring", 2), system), tmp_path
    )
    assert result.exit_code == 2
    assert (
        "of 500001-byte chunks; the NPUs of a group have to issue its collectives in the same order"
        in result.errors
    )


def test_a_flat_algorithm_after_another_is_refused(command: Path, tmp_path: Path) -> None:
    node = ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=4000)
    network = {
        "topology": ["Ring", "Switch"],
        "npus_count": [2, 2],
        "bandwidth": [50, 50],
        "latency": [500, 900],
    }
    for given, code in ((["ring", "oneRing"], 2), (["oneRing", "ring"], 0), (["oneRing"], 0)):
        system = {"all-reduce-implementation": given}
        result = run_case(
            command, ck.write_case(tmp_path / "case", [[node]] * 4, network, system), tmp_path
        )
        assert result.exit_code == code
        assert (
            code == 0
            or "an algorithm over all NPUs (one...) in place 1 of the list" in result.errors
        )

"""Custom collectives under strict rules: recorded cases of ASTRA-sim under contention, the slow
executor on 1,000 random ones, and the order of steps by hand.
"""

import json
from pathlib import Path

import pytest
from shared_data import shared

from engine import chakra_file as ck
from engine.command import run_case
from engine.strict.custom_programs import difference
from engine.strict.slow_members import HashSet
from engine.strict.slow_strict import Run
from engine.strict.test_conformance import BACKENDS

HUNDREDS = 10


def recorded(folder: Path, backend: str) -> tuple[dict[int, int], tuple[str, ...]]:
    """NPU -> the ns at which it finished; and the options of the run."""
    expected = json.loads((folder / "expected.json").read_text())
    run = expected[f"congestion_{backend}"]
    assert run["exit"] == 0
    times = {int(npu): time for npu, time in run["finish_cycles"].items()}
    return times, tuple(expected["extra_flags"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_recorded_custom_collectives_under_contention(
    command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Both executors, to the nanosecond."""
    folders = sorted(path.parent for path in shared("astra_custom").glob("*/expected.json"))
    assert len(folders) == 8
    for folder in folders:
        times, flags = recorded(folder, backend)
        fast = run_case(
            command, folder, tmp_path, backend, (*flags, f"--logging-folder={tmp_path}"), True
        )
        assert fast.exit_code == 0, (folder.name, fast.errors)
        assert dict(enumerate(fast.finish_ns())) == times, folder.name
        monkeypatch.chdir(folder)
        slow = Run(folder, backend == "aware", flags).npus
        assert {npu.npu: npu.finish for npu in slow} == times, folder.name


@pytest.mark.parametrize("hundred", range(HUNDREDS))
def test_random_custom_collectives(command: Path, tmp_path: Path, hundred: int) -> None:
    """A thousand in all: every node, on either network, to the nanosecond."""
    said = [
        difference(seed, tmp_path / str(seed), command)
        for seed in range(hundred * 100, hundred * 100 + 100)
    ]
    assert not any(said), "\n".join(filter(None, said))


def test_steps_that_are_free_together_start_in_the_order_of_a_hash_set(
    command: Path, tmp_path: Path
) -> None:
    """Rank 0 sends four messages over one port. Its steps are met in the order 5, 2, 14, 1 of the
    first table (14 is in the bucket of 1 and came later), and of that list the set makes
    1, 14, 2, 5.
    """
    assert HashSet([1, 2, 14, 5]).order == [5, 2, 14, 1]
    assert HashSet([5, 2, 14, 1]).order == [1, 14, 2, 5]
    numbers = {1: 1, 2: 2, 3: 14, 4: 5}  # rank -> the step that sends to it
    sends = [
        ck.node(number, ck.SEND, comm_size=1 << 20, comm_dst=rank, comm_tag=0)
        for rank, number in numbers.items()
    ]
    steps = [sends] + [
        [ck.node(1, ck.RECV, comm_size=1 << 20, comm_src=0, comm_tag=0)] for _ in numbers
    ]
    tmp_path.joinpath("case").mkdir()
    for rank, nodes in enumerate(steps):
        (tmp_path / "case" / f"alg.{rank}.et").write_bytes(ck.trace(nodes))
    case = ck.write_case(
        tmp_path / "case",
        [[ck.node(1, ck.COLL, comm_type=ck.ALL_TO_ALL, comm_size=4096)]] * 5,
        ck.network("Switch", 5),
        {"all-to-all-implementation-custom": [str(tmp_path / "case" / "alg")]},
    )
    ends = run_case(command, case, tmp_path, "aware").finish_ns()
    ranks = sorted(numbers, key=lambda rank: ends[rank] or 0)
    assert [numbers[rank] for rank in ranks] == [1, 14, 2, 5]

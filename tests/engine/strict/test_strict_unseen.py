"""Strict rules on cases nobody recorded: in lock-step on a full mesh no message waits for another,
and both networks give the same times. Skewed ranks of a ring find several messages there already
and send as many at once, which share a link on one of the networks only: there nothing ends earlier
for it.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from engine import chakra_file as ck
from engine.command import run_case

KINDS = (ck.ALL_REDUCE, ck.ALL_GATHER, ck.REDUCE_SCATTER, ck.ALL_TO_ALL)
NAMES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def unseen(draw: random.Random, folder: Path, *, skewed: bool) -> Path:
    """NPUs on a full mesh, with collectives of all and of two groups, compute, messages and memory
    between.
    """
    npus = draw.randint(3, 12) if skewed else 2 * draw.randint(2, 6)
    halves = [list(range(npus // 2)), list(range(npus // 2, npus))] if npus >= 6 else []
    algorithm = draw.choice(["ring", "direct", "direct2", "oneRing"])
    system: dict[str, Any] = {f"{name}-implementation": [algorithm] for name in NAMES}
    system |= {"preferred-dataset-splits": draw.randint(1, 4), "active-chunks-per-dimension": 1}
    system |= {"endpoint-delay": draw.choice([0, 7, 10]), "local-mem-bw": draw.choice([50, 1600])}
    plan: list[tuple[str, int, int]] = []
    for _ in range(draw.randint(2, 6)):
        what = draw.choice(["collective", "collective", "group", "compute", "memory", "neighbour"])
        plan.append((what, draw.choice(KINDS), draw.choice([npus * 4, 5_000, 1 << 20, 3_000_001])))
    late = [draw.randint(1, 40) if skewed else 1 for _ in range(npus)]
    traces = [per_npu(npu, npus, plan, halves, late[npu]) for npu in range(npus)]
    groups = {str(number): half for number, half in enumerate(halves, start=1)}
    memory = {
        "memory-type": "PER_NPU_MEMORY_EXPANSION",
        "remote-mem-latency": 100,
        "remote-mem-bw": 20,
    }
    return ck.write_case(
        folder,
        traces,
        ck.network("FullyConnected", npus),
        system,
        memory=memory,
        groups=groups or None,
    )


def per_npu(
    npu: int, npus: int, plan: list[tuple[str, int, int]], halves: list[list[int]], late: int
) -> list[bytes]:
    """One node after another; a message goes to the next NPU, and one comes from the one before."""
    nodes: list[bytes] = []

    def add(kind: int, after: list[int], micros: int = 0, **attributes: Any) -> None:
        nodes.append(ck.node(len(nodes) + 1, kind, after, micros, **attributes))

    for tag, (what, kind, size) in enumerate(plan):
        after = [len(nodes)] if nodes else []
        if what == "group" and halves:
            mine = next(number for number, half in enumerate(halves, start=1) if npu in half)
            add(ck.COLL, after, comm_type=kind, comm_size=size, pg_name=str(mine))
        elif what == "compute":
            add(ck.COMP, after, late)
        elif what == "memory":
            add(ck.LOAD, after, tensor_size=size)
        elif what == "neighbour":
            add(ck.SEND, after, comm_size=size, comm_dst=(npu + 1) % npus, comm_tag=tag)
            add(ck.RECV, after, comm_size=size, comm_src=(npu - 1) % npus, comm_tag=tag)
            add(ck.COMP, [len(nodes) - 1, len(nodes)], 1)
        else:
            add(ck.COLL, after, comm_type=kind, comm_size=size)
    return nodes


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("skewed", [False, True])
def test_both_networks_on_a_full_mesh(
    command: Path, tmp_path: Path, seed: int, skewed: bool
) -> None:
    case = unseen(random.Random(seed), tmp_path / "case", skewed=skewed)
    unaware, aware = (
        run_case(command, case, tmp_path, backend=backend) for backend in ("unaware", "aware")
    )
    assert unaware.exit_code == aware.exit_code == 0, (unaware.errors, aware.errors)
    early, late = unaware.times(), aware.times()
    assert early.keys() == late.keys() and all(unaware.finish_ns())
    if skewed:
        assert all(early[node][1] <= late[node][1] for node in early)
    else:
        assert early == late
    assert run_case(command, case, tmp_path).report == unaware.report

"""A network of one NPU, and dimensions of one: compute runs; a collective of one ends at once under
default rules, and strict rules say that upstream would wait for it.
"""

from pathlib import Path
from typing import Any

import pytest

from engine import chakra_file as ck
from engine.command import run_case

SHAPES = ("Ring", "FullyConnected", "Switch")
RULES = (("strict", "unaware"), ("strict", "aware"), ("default", "unaware"), ("default", "aware"))
COMPUTE = ck.node(1, ck.COMP, micros=7)
REDUCE = ck.node(2, ck.COLL, [1], comm_type=ck.ALL_REDUCE, comm_size=4000)


@pytest.mark.parametrize("shape", SHAPES)
def test_compute_of_one_npu(command: Path, tmp_path: Path, shape: str) -> None:
    case = ck.write_case(tmp_path / "case", [[COMPUTE]], ck.network(shape, 1))
    for rules, backend in (*RULES, ("default", "fair-share")):
        result = run_case(command, case, tmp_path, backend, rules=rules)
        assert (result.exit_code, result.finish_ns()) == (0, [7000]), result.errors


@pytest.mark.parametrize("shape", SHAPES)
def test_a_collective_of_one_npu(command: Path, tmp_path: Path, shape: str) -> None:
    kinds = (ck.ALL_REDUCE, ck.ALL_GATHER, ck.REDUCE_SCATTER, ck.ALL_TO_ALL)
    nodes = [ck.node(at, ck.COLL, comm_type=kind, comm_size=4000) for at, kind in enumerate(kinds)]
    for algorithm in ("ring", "oneDirect"):
        names = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
        system: dict[str, Any] = {f"{name}-implementation": [algorithm] for name in names}
        case = ck.write_case(tmp_path / "case", [nodes], ck.network(shape, 1), system)
        for backend in ("unaware", "aware", "fair-share"):
            result = run_case(command, case, tmp_path, backend, rules="default")
            assert (result.exit_code, result.finish_ns()) == (0, [0]), result.errors
        for backend in ("unaware", "aware"):
            result = run_case(command, case, tmp_path, backend)
            assert result.exit_code == 2
            assert "node 0: its dimensions have one NPU, and ASTRA-sim would wait" in result.errors


def test_a_dimension_of_one_changes_nothing(command: Path, tmp_path: Path) -> None:
    """For all dimensions of a grid, in which those of one NPU take no part."""
    ends = []
    for sizes in ([4], [1, 4], [4, 1]):
        network = {
            "topology": ["Ring"] * len(sizes),
            "npus_count": sizes,
            "bandwidth": [50] * len(sizes),
            "latency": [500] * len(sizes),
        }
        system = {"all-reduce-implementation": ["ring"] * len(sizes)}
        case = ck.write_case(tmp_path / "case", [[COMPUTE, REDUCE]] * 4, network, system)
        results = [
            run_case(command, case, tmp_path, rules=rules) for rules in ("strict", "default")
        ]
        assert all(result.exit_code == 0 for result in results), results
        ends.append([result.finish_ns() for result in results])
    assert ends[0] == ends[1] == ends[2]

"""Damaged and extreme files: a bounded share of `engine.fuzz`."""

import random
from pathlib import Path
from typing import Any

import pytest

from engine import chakra_file as ck
from engine.command import run_case
from engine.fuzz import DAMAGES, commands, one_round, sound_case, verdict

ROUNDS = 25


@pytest.mark.parametrize("what", sorted(DAMAGES))
def test_whatever_a_file_holds_the_command_ends_with_a_sentence(
    command: Path, tmp_path: Path, what: str
) -> None:
    sound = sound_case(tmp_path / "sound")
    assert verdict(commands(command, sound, what, random.Random(1))) == ""
    for seed in range(ROUNDS):
        assert one_round(command, sound, tmp_path, what, seed) == "", f"{what} {seed}"


@pytest.mark.parametrize("rules", ["strict", "default"])
@pytest.mark.parametrize(
    ("system", "network"),
    [
        ({"preferred-dataset-splits": 2**40}, {}),
        ({"endpoint-delay": 2**50}, {}),
        ({"local-mem-bw": 1e-300}, {}),
        ({"peak-perf": 1e-300, "roofline-enabled": 1, "local-mem-bw": 1e-300}, {}),
        ({}, {"bandwidth": [1e-300]}),
        ({}, {"bandwidth": [1e300], "latency": [1e300]}),
        ({}, {"npus_count": [2**24]}),
    ],
)
def test_extremes_end_soon(
    command: Path, tmp_path: Path, rules: str, system: dict[str, Any], network: dict[str, Any]
) -> None:
    """Spans beyond the clock, networks beyond memory: refused, or exact."""
    nodes = [
        ck.node(1, ck.COMP, num_ops=10**6, tensor_size=10),
        ck.node(2, ck.COLL, comm_type=0, comm_size=100),
    ]
    case = ck.write_case(
        tmp_path / "case", [nodes] * 2, ck.network("FullyConnected", 2) | network, system
    )
    result = run_case(command, case, tmp_path, rules=rules)
    assert result.exit_code in (0, 2)
    assert result.exit_code == 0 or result.errors.startswith("error: ")

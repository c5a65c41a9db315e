"""Collectives with other dimensions than the network's, in the form of ASTRA-sim's packet-level
frontends.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from engine import chakra_file as ck
from engine.command import run_case

REDUCE = ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=1 << 20)


def ends(command: Path, folder: Path, network: dict[str, Any], logical: Any = None) -> list[Any]:
    """Finish times of an all-reduce of eight, of rings in every dimension."""
    system = {"all-reduce-implementation": ["ring"] * 3, "endpoint-delay": 0}
    case = ck.write_case(folder / "case", [[REDUCE]] * 8, network, system)
    flags: tuple[str, ...] = ()
    if logical is not None:
        (folder / "logical.json").write_text(json.dumps({"logical-dims": logical}))
        flags = (f"--logical-topology-configuration={folder / 'logical.json'}",)
    result = run_case(command, case, folder, flags=flags, rules="default")
    assert result.exit_code == 0, result.errors
    return result.finish_ps()


def grid(*sizes: int) -> dict[str, Any]:
    return {
        "topology": ["FullyConnected"] * len(sizes),
        "npus_count": list(sizes),
        "bandwidth": [50] * len(sizes),
        "latency": [500] * len(sizes),
    }


def test_two_levels_on_one_mesh(command: Path, tmp_path: Path) -> None:
    """On a full mesh a plan of 4 x 2 sends 2 * 3 messages of a quarter and 2 of an eighth."""
    megabyte, latency = 1 << 20, 500_000

    def message(parts: int) -> int:
        return -(-megabyte // parts * 1000 // 50) + latency

    flat = ends(command, tmp_path, grid(8))
    assert flat == [14 * message(8)] * 8
    levels = 6 * message(4) + 2 * message(8)
    for logical in ([4, 2], ["4", "2"], [4, 1, 2]):
        assert ends(command, tmp_path, grid(8), logical) == [levels] * 8
    assert ends(command, tmp_path, grid(8), [8]) == flat
    assert ends(command, tmp_path, grid(4, 2)) == [levels] * 8


@pytest.mark.parametrize(
    ("logical", "said"),
    [
        ([4, 3], "logical-dims make 12 NPUs, and the network has 8"),
        ([], 'expected {"logical-dims": [sizes]}'),
        ([8, 0], "has to hold whole numbers of 1 or more"),
        (["8x"], "has to hold whole numbers of 1 or more"),
    ],
)
def test_what_is_no_topology(command: Path, tmp_path: Path, logical: Any, said: str) -> None:
    case = ck.write_case(tmp_path / "case", [[REDUCE]] * 8, grid(8))
    (tmp_path / "logical.json").write_text(json.dumps({"logical-dims": logical}))
    flags = (f"--logical-topology-configuration={tmp_path / 'logical.json'}",)
    result = run_case(command, case, tmp_path, flags=flags, rules="default")
    assert result.exit_code == 2
    assert said in result.errors
    strict = run_case(command, case, tmp_path, flags=flags)
    assert strict.exit_code == 2
    assert "--logical-topology-configuration needs --rules default" in strict.errors

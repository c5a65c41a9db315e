"""Memory tiers from files: `tiers` of a remote-memory file, `memory_tier` and `engine_stream` of
nodes.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from engine import chakra_file as ck
from engine.command import Result, run_case

MB = 10**6  # at 1 GB/s: 10^9 ps
MS = 10**9  # ps


def run(
    command: Path,
    scratch: Path,
    traces: list[list[bytes]],
    tiers: list[dict[str, Any]],
    backend: str,
) -> Result:
    net = ck.network("Switch", len(traces), 1, 0)
    system = {"endpoint-delay": 0}
    case = ck.write_case(scratch / "case", traces, net, system, {"tiers": tiers})
    return run_case(command, case, scratch, backend, rules="default")


def load(
    number: int, size: int = MB, kind: int = ck.LOAD, deps: tuple[int, ...] = (), **more: Any
) -> bytes:
    return ck.node(number, kind, deps, tensor_size=size, **more)


@pytest.mark.parametrize(
    ("tier", "expected"),
    [  # ends of one load by each of four NPUs, in ms: unaware, in lines, in fair shares
        ({"per": "npu"}, ([1, 1, 1, 1],) * 3),
        ({"per": "all"}, ([1, 1, 1, 1], [1, 2, 3, 4], [4, 4, 4, 4])),
        ({"per": "all", "sharing": "fifo"}, ([1, 2, 3, 4],) * 3),
        ({"per": "all", "channels": 2}, ([1, 1, 1, 1], [1, 1, 2, 2], [2, 2, 2, 2])),
        ({"per": "node", "npus_per_node": 2, "sharing": "fifo"}, ([1, 2, 1, 2],) * 3),
        ({"per": "all", "bandwidth_gb_per_s": 4}, ([0.25] * 4, [0.25, 0.5, 0.75, 1], [1] * 4)),
        (
            {"per": "all", "bandwidth_gb_per_s": 1000, "port_gb_per_s": 1, "npus_per_port": 2},
            ([1, 1, 1, 1], [1.001, 2.001, 1.003, 2.003], [2, 2, 2, 2]),
        ),
    ],
)  # fmt: skip
def test_who_shares_what(
    command: Path, tmp_path: Path, tier: dict[str, Any], expected: tuple[list[float], ...]
) -> None:
    full = {"name": "pool", "bandwidth_gb_per_s": 1, "latency_ns": 700, **tier}
    for backend, ends in zip(("unaware", "aware", "fair-share"), expected, strict=True):
        result = run(command, tmp_path, [[load(1)]] * 4, [full], backend)
        assert result.finish_ps() == [round(end * MS) + 700_000 for end in ends], backend


def test_nodes_choose_a_tier_and_a_stream(command: Path, tmp_path: Path) -> None:
    """Three kinds of memory at once; a PIM unit beside the compute stream; copies of one stream in
    turn.
    """
    tiers = [
        {"name": "hbm", "per": "npu", "bandwidth_gb_per_s": 1000},
        {
            "name": "host",
            "per": "node",
            "npus_per_node": 2,
            "bandwidth_gb_per_s": 1,
            "write_bandwidth_gb_per_s": 2,
        },
        {"name": "store", "per": "all", "bandwidth_gb_per_s": 0.5, "held_by": [1]},
    ]
    nodes = [
        load(1),  # the first tier
        load(2, memory_tier="host", engine_stream="copy_in"),
        load(3, memory_tier="host", engine_stream="copy_in"),
        load(4, kind=ck.STORE, memory_tier="host", engine_stream="copy_out"),
        load(5, memory_tier="store"),
        ck.node(6, ck.COMP, micros=500),
        ck.node(7, ck.COMP, micros=300, engine_stream="pim"),
        ck.node(8, ck.COMP, micros=300, engine_stream="pim"),
        load(9, memory_tier="hbm", engine_stream="pim"),
    ]
    result = run(command, tmp_path, [nodes, []], tiers, "fair-share")
    assert result.exit_code == 0, result.errors
    done = {node: times for (_, node), times in result.times().items()}
    assert done[1] == (0, MS // 1000)
    assert done[2] == (0, MS)
    assert done[3] == (MS, 2 * MS)  # after the other copy
    assert done[4] == (0, MS // 2)  # writes have a bandwidth of their own
    assert done[5] == (0, 2 * MS)  # over the network, from NPU 1
    assert done[6] == (0, MS // 2)
    assert done[7] == (0, 3 * MS // 10)
    assert done[8] == (3 * MS // 10, 6 * MS // 10)
    assert done[9] == (6 * MS // 10, 6 * MS // 10 + MS // 1000)
    assert result.report is not None
    used = {(tier["tier"], tier["instance"]): tier for tier in result.report["memory"]}
    assert used["host", 0] == {
        "tier": "host",
        "instance": 0,
        "loads": 2,
        "stores": 1,
        "bytes": 3 * MB,
        "busy_ps": 2 * MS + MS // 2,
        "waiting_ps": 0,
        "peak_waiting": 0,
    }
    assert set(used) == {("hbm", 0), ("host", 0), ("store", 0)}


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_faster_than_its_channels(command: Path, tmp_path: Path, seed: int) -> None:
    """Random tiers and accesses: bytes are kept, no instance beats its channels, and twice is the
    same.
    """
    rng = random.Random(seed)
    npus = rng.randint(2, 5)
    tiers = []
    for number in range(rng.randint(1, 3)):
        tier: dict[str, Any] = {
            "name": f"t{number}",
            "bandwidth_gb_per_s": rng.choice((0.5, 3, 40)),
        }
        tier["per"] = rng.choice(("npu", "node", "all"))
        if tier["per"] == "node":
            tier["npus_per_node"] = rng.randint(1, npus)
        if rng.random() < 0.5:
            tier |= {"sharing": "fifo", "channels": rng.randint(1, 3)}
        if rng.random() < 0.3:
            tier |= {"port_gb_per_s": 2, "npus_per_port": rng.randint(1, npus)}
        if rng.random() < 0.3:
            tier["write_bandwidth_gb_per_s"] = 1
        tiers.append(tier)
    traces, wanted = [], 0
    for _ in range(npus):
        nodes = []
        for number in range(1, rng.randint(2, 12)):
            more = {"engine_stream": rng.choice(("copy_in", "pim"))} if rng.random() < 0.5 else {}
            size = rng.choice((0, 1, 4096, 2 * MB))
            wanted += size
            deps = (rng.randrange(1, number),) if number > 1 and rng.random() < 0.4 else ()
            kind = rng.choice((ck.LOAD, ck.STORE))
            nodes.append(
                load(number, size, kind, deps, memory_tier=rng.choice(tiers)["name"], **more)
            )
        traces.append(nodes)
    for backend in ("unaware", "aware", "fair-share"):
        result = run(command, tmp_path, traces, tiers, backend)
        assert result.exit_code == 0, result.errors
        assert result.report is not None
        assert sum(tier["bytes"] for tier in result.report["memory"]) == wanted
        last_ps = max(end or 0 for end in result.finish_ps())
        for used in result.report["memory"]:
            tier = tiers[int(used["tier"][1:])]
            ways = 2 if "write_bandwidth_gb_per_s" in tier else 1
            in_line = backend == "aware" or "sharing" in tier
            if in_line or backend == "fair-share":
                assert used["busy_ps"] <= ways * tier.get("channels", 1) * last_ps
                most = max(tier["bandwidth_gb_per_s"], tier.get("write_bandwidth_gb_per_s", 0))
                assert used["bytes"] * 1000 <= ways * tier.get("channels", 1) * most * last_ps
        assert run(command, tmp_path, traces, tiers, backend).node_times == result.node_times


GOOD = {"name": "a", "per": "all", "bandwidth_gb_per_s": 1}


@pytest.mark.parametrize(
    ("tiers", "node", "part"),
    [
        ([], {}, "list of at least one tier"),
        ([{**GOOD, "name": ""}], {}, "name is missing"),
        ([{**GOOD, "per": "rack"}], {}, "one of npu, node, all was expected"),
        ([{**GOOD, "per": "node"}], {}, "npus_per_node belongs to tiers per node"),
        ([{**GOOD, "bandwidth_gb_per_s": 0}], {}, "bandwidth_gb_per_s has to be above 0"),
        ([{**GOOD, "bandwidth_gb_per_sec": 1}], {}, 'did you mean "bandwidth_gb_per_s"'),
        ([{**GOOD, "channels": 0}], {}, "channels is 0"),
        ([{**GOOD, "held_by": [7]}], {}, "is held by 1 devices"),
        ([{**GOOD, "held_by": ["x"]}], {}, "held_by is a list of NPUs"),
        ([{**GOOD, "port_gb_per_s": 3}], {}, "port_gb_per_s and npus_per_port belong together"),
        ([GOOD, GOOD], {}, 'two tiers of name "a"'),
        ([{**GOOD, "capacity_gb": 0.0001}], {}, "has 100000"),
        ([GOOD], {"memory_tier": "b"}, 'memory_tier is "b"; one of a was expected'),
        ([GOOD], {"memory_tier": 3}, "a string was expected"),
        (
            [GOOD],
            {"engine_stream": "comm"},
            "one of compute, copy_in, copy_out, pim, host was expected",
        ),
    ],
)
def test_what_is_wrong_is_named(
    command: Path, tmp_path: Path, tiers: list[dict[str, Any]], node: dict[str, Any], part: str
) -> None:
    result = run(command, tmp_path, [[load(1, **node)], []], tiers, "unaware")
    assert result.exit_code == 2
    assert part in result.errors


def test_tiers_belong_to_default_rules(command: Path, tmp_path: Path) -> None:
    case = ck.write_case(
        tmp_path / "case", [[load(1)]] * 2, ck.network("Ring", 2), memory={"tiers": [GOOD]}
    )
    result = run_case(command, case, tmp_path)
    assert (result.exit_code, "need --rules default" in result.errors) == (2, True)
    both = {
        "tiers": [GOOD],
        "memory-type": "MEMORY_POOL",
        "remote-mem-latency": 1,
        "remote-mem-bw": 1,
    }
    case = ck.write_case(tmp_path / "case", [[load(1)]] * 2, ck.network("Ring", 2), memory=both)
    result = run_case(command, case, tmp_path, rules="default")
    assert (result.exit_code, "do not go together" in result.errors) == (2, True)
    # A collective may wait for others: on a stream it could wait for ever.
    nodes = [ck.node(1, ck.COLL, comm_type=0, comm_size=5, engine_stream="pim")]
    case = ck.write_case(tmp_path / "case", [nodes] * 2, ck.network("Ring", 2))
    result = run_case(command, case, tmp_path, rules="default")
    assert (result.exit_code, "COMP, MEM_LOAD and MEM_STORE only" in result.errors) == (2, True)

"""Explicit networks for the command: the same times as the regular network they describe, routes,
limits, errors.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from engine import chakra_file as ck
from engine.command import REPOSITORY, Result, run_case
from llmsim.config.topology.file import load_topology, preset_names

GB_PER_S, LATENCY_NS = 50, 500
BACKENDS = ("unaware", "aware", "fair-share")


def run(
    command: Path, case: Path, scratch: Path, network: dict[str, Any] | None, backend: str
) -> Result:
    flags: tuple[str, ...] = ()
    if network is not None:
        path = scratch / "network.json"
        path.write_text(json.dumps(network))
        flags = (f"--network-configuration={path}",)
    return run_case(command, case, scratch, backend, flags, rules="default")


def link(a: int | str, b: int | str, gb_per_s: float = GB_PER_S, **more: Any) -> dict[str, Any]:
    return {
        "a": str(a),
        "b": str(b),
        "bandwidth_gb_per_s": gb_per_s,
        "latency_ns": LATENCY_NS,
        **more,
    }


def ring(n: int) -> dict[str, Any]:
    return {"devices": n, "devices_relay": True, "links": [link(i, (i + 1) % n) for i in range(n)]}


def switch(n: int) -> dict[str, Any]:
    return {"devices": n, "switches": [{"name": "s"}], "links": [link(i, "s") for i in range(n)]}


def mesh(n: int) -> dict[str, Any]:
    return {"devices": n, "links": [link(i, j) for i in range(n) for j in range(i)]}


@pytest.mark.parametrize(
    ("shape", "make"), [("Ring", ring), ("Switch", switch), ("FullyConnected", mesh)]
)
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_regular_networks_link_by_link(
    command: Path, tmp_path: Path, shape: str, make: Any, algorithm: str
) -> None:
    """Odd sizes: then the ring has no ties, whose direction the regular network fixes."""
    n = random.Random(shape).choice((3, 5, 7))
    kinds = (ck.ALL_REDUCE, ck.ALL_GATHER, ck.ALL_TO_ALL)
    nodes = [
        ck.node(i + 1, ck.COLL, comm_type=kind, comm_size=100_003) for i, kind in enumerate(kinds)
    ]
    names = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    system = {f"{name}-implementation": [algorithm] for name in names}
    case = ck.write_case(
        tmp_path / "case", [nodes] * n, ck.network(shape, n, GB_PER_S, LATENCY_NS), system
    )
    dimension = {
        "kind": {"Ring": "ring", "Switch": "switch", "FullyConnected": "fully_connected"}[shape],
        "size": n,
        "bandwidth_gb_per_s": GB_PER_S,
        "latency_ns": LATENCY_NS,
    }
    for backend in BACKENDS:
        regular = run(command, case, tmp_path, None, backend)
        assert regular.exit_code == 0, regular.errors
        for file in (make(n), {"dimensions": [dimension]}):
            assert run(command, case, tmp_path, file, backend).node_times == regular.node_times


def two_sends(
    command: Path, tmp_path: Path, network: dict[str, Any], backend: str = "fair-share"
) -> list[int | None]:
    """Devices 0 and 1 each send 10^6 bytes to 2 and 3."""
    traces = [
        [ck.node(1, ck.SEND, comm_size=10**6, comm_dst=2, comm_tag=0)],
        [ck.node(1, ck.SEND, comm_size=10**6, comm_dst=3, comm_tag=0)],
        [ck.node(1, ck.RECV, comm_size=10**6, comm_src=0, comm_tag=0)],
        [ck.node(1, ck.RECV, comm_size=10**6, comm_src=1, comm_tag=0)],
    ]
    case = ck.write_case(tmp_path / "case", traces, ck.network("Ring", 4), {"endpoint-delay": 0})
    result = run(command, case, tmp_path, network, backend)
    assert result.exit_code == 0, result.errors
    return result.finish_ps()


def test_bisections_routes_and_parallel_links(command: Path, tmp_path: Path) -> None:
    free, alone, shared = (
        two_sends(command, tmp_path, switch(4)),
        10**6 * 20 + 10**6,
        2 * 10**6 * 20 + 10**6,
    )
    assert free == [alone] * 4
    # Everything that crosses the switch shares 50 GB/s.
    limited = switch(4) | {"switches": [{"name": "s", "bisection_gb_per_s": GB_PER_S}]}
    assert two_sends(command, tmp_path, limited) == [shared] * 4
    # Two leaves, joined by one link or by two: equal-cost paths are spread by destination.
    leaves = {
        "devices": ["a", "b", "c", "d"],
        "switches": [{"name": "x", "spread": 1}, {"name": "y", "spread": 1}],
    }
    edges = [link("a", "x"), link("b", "x"), link("c", "y"), link("d", "y")]
    extra = 10**6 // 2  # one hop more
    one = leaves | {"links": [*edges, link("x", "y")]}
    assert two_sends(command, tmp_path, one) == [shared + extra] * 4
    two = leaves | {"links": [*edges, link("x", "y", count=2)]}
    assert two_sends(command, tmp_path, two) == [alone + extra] * 4
    # A given route takes the long way, over a third switch.
    detour = leaves | {
        "switches": [*leaves["switches"], {"name": "z"}],
        "links": [*edges, link("x", "y"), link("x", "z"), link("z", "y")],
        "routes": [["a", "x", "z", "y", "c"]],
    }
    times = two_sends(command, tmp_path, detour)
    assert times == [alone + 2 * extra, alone + extra] * 2


def test_the_example_of_the_documentation(command: Path, tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "reference" / "engine" / "topology_files.md").read_text()
    begin = text.index('{"devices": 4,')
    network = json.loads(text[begin : text.index("\n```", begin)])
    nodes = [ck.node(1, ck.COLL, comm_type=ck.ALL_TO_ALL, comm_size=4_000_000)]
    system = {"all-to-all-implementation": ["direct"], "endpoint-delay": 0}
    case = ck.write_case(tmp_path / "case", [nodes] * 4, ck.network("Ring", 4), system)
    result = run(command, case, tmp_path, network, "fair-share")
    assert result.finish_ns() == [101_300] * 4
    assert "101,300 ns" in text


@pytest.mark.parametrize(
    ("network", "part"),
    [
        ({"devices": 2, "links": []}, "route"),
        ({"devices": 2, "links": [link(0, 5)]}, 'no device or switch "5"'),
        (
            {"devices": 2, "links": [link(0, 1)], "swiches": []},
            '"swiches" is not a known field (did you mean',
        ),
        ({"devices": ["a", "a"], "links": []}, '"a" names two places'),
        ({"devices": 2, "links": [link(0, 1, -1)]}, "bandwidth_gb_per_s has to be"),
        ({"devices": 2, "links": [link(0, 1) | {"count": 0}]}, "count is 0"),
        ({"devices": 2, "dimensions": []}, "either dimensions or devices"),
        (
            {"dimensions": [{"kind": "rink", "size": 2, "bandwidth_gb_per_s": 1}]},
            "one of ring, fully_connected",
        ),
        ({"preset": "rails"}, "llmsim topology export"),
        ({"devices": 2, "links": {}}, "links is an object; a list was expected"),
        ({"devices": 2, "links": [link(0, 1)], "routes": [["0", "0"]]}, "route"),
        ([], "expected an object"),
        ({"devices": 2, "links": [link(0, 1)] * 2, "switches": [{"name": 3}]}, "name is a number"),
    ],
)
def test_errors_name_the_place(command: Path, tmp_path: Path, network: Any, part: str) -> None:
    case = ck.write_case(tmp_path / "case", [[ck.node(1, ck.COMP)]] * 2, ck.network("Ring", 2))
    result = run(command, case, tmp_path, network, "aware")
    assert result.exit_code == 2
    assert part in result.errors, result.errors
    assert "network.json" in result.errors


def test_strict_rules_refuse_topology_files(command: Path, tmp_path: Path) -> None:
    case = ck.write_case(tmp_path / "case", [[ck.node(1, ck.COMP)]] * 2, ck.network("Ring", 2))
    (tmp_path / "network.json").write_text(json.dumps(ring(2) | {"links": [link(0, 1)]}))
    result = run_case(
        command, case, tmp_path, flags=(f"--network-configuration={tmp_path}/network.json",)
    )
    assert result.exit_code == 2
    assert "default" in result.errors


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_runs(command: Path, tmp_path: Path, name: str) -> None:
    """Exported link by link: an all-to-all ends for all, no faster than a device's links allow."""
    spec = load_topology(name)
    n = spec.num_devices()
    size = 1 << 16
    system = {f"{kind}-implementation": ["direct"] for kind in ("all-to-all", "all-reduce")}
    nodes = [ck.node(1, ck.COLL, comm_type=ck.ALL_TO_ALL, comm_size=size)]
    case = ck.write_case(tmp_path / "case", [nodes] * n, ck.network("Ring", n), system)
    result = run(command, case, tmp_path, spec.as_file(), "fair-share")
    assert result.exit_code == 0, result.errors
    assert spec.network is not None
    out = [
        sum(rate for a, b, rate, _ in spec.network.links if device in (a, b)) for device in range(n)
    ]
    for device, time in enumerate(result.finish_ps()):
        assert time is not None
        assert time >= (n - 1) * -(-size // n) * 10**12 // out[device]


def test_exported_files_say_what_was_read(tmp_path: Path) -> None:
    for name in preset_names():
        spec = load_topology(name)
        path = tmp_path / "exported.json"
        path.write_text(json.dumps(spec.as_file()))
        again = load_topology(path)
        assert spec.network is not None
        assert again.network is not None
        assert sorted(again.network.links) == sorted(spec.network.links)
        assert again.network.switches == spec.network.switches
        assert again.groups == spec.groups

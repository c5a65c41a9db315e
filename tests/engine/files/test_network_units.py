"""Rates of network files: a GB of 10^9 or of 2^30 bytes, as the file and the rules have it."""

import json
import subprocess
from pathlib import Path

import pytest
from processes import HANGS_S

from engine import chakra_file as ck
from engine.command import Result, build_command, case_options, run_case
from llmsim.export.network_file import network_file

RATE_BYTES_PER_S, LATENCY_PS = 45 * 10**9, 500_000


@pytest.fixture(scope="module")
def command() -> Path:
    return build_command()


@pytest.fixture
def case(tmp_path: Path) -> Path:
    nodes = [ck.node(1, ck.COLL, comm_type=ck.ALL_REDUCE, comm_size=1 << 23)]
    return ck.write_case(tmp_path / "case", [nodes] * 8, ck.network("Ring", 8))


def timed(command: Path, case: Path, network: str, rules: str) -> Result:
    (case / "network.yml").write_text(network)
    result = run_case(command, case, case, rules=rules)
    assert result.exit_code == 0, result.errors
    return result


def plain(gb_per_s: float, unit: str = "") -> str:
    last = f"bandwidth_unit: {unit}\n" if unit else ""
    return f"topology: [Ring]\nnpus_count: [8]\nbandwidth: [{gb_per_s}]\nlatency: [500.0]\n{last}"


def test_default_rules_take_the_unit_of_the_file(command: Path, case: Path) -> None:
    decimal = timed(command, case, plain(45.0), "default").finish_ps()
    assert decimal == timed(command, case, plain(45.0, "GB/s"), "default").finish_ps()
    written = network_file([(8, RATE_BYTES_PER_S, LATENCY_PS)], "Ring")
    assert decimal == timed(command, case, written, "default").finish_ps()
    faster = timed(command, case, plain(45.0, "GiB/s"), "default").finish_ps()
    assert faster[0] is not None and decimal[0] is not None and faster[0] < decimal[0]


def test_strict_rules_read_upstreams_unit_whatever_the_file_says(command: Path, case: Path) -> None:
    known = timed(command, case, plain(45.0), "strict").finish_ns()
    for unit in ("GB/s", "GiB/s"):
        assert timed(command, case, plain(45.0, unit), "strict").finish_ns() == known


def test_what_is_written_has_the_intended_rate_under_both_rules(command: Path, case: Path) -> None:
    """14 messages of 1 MiB at 45 GB/s and 500 ns; strict rules cut each to whole nanoseconds."""
    (case / "system.json").write_text(
        json.dumps(json.loads((case / "system.json").read_text()) | {"endpoint-delay": 0})
    )
    written = network_file([(8, RATE_BYTES_PER_S, LATENCY_PS)], "Ring")
    message_ns = (1 << 20) / 45 + 500
    strict = timed(command, case, written, "strict").finish_ns()
    reductions_ns = 7 * 3 * int((1 << 20) / 1600)
    assert strict == [14 * int(message_ns) + reductions_ns] * 8
    default = timed(command, case, written, "default").finish_ps()
    assert default[0] == pytest.approx(14 * message_ns * 1000, abs=50)  # without reductions


def test_a_stock_binary_gets_the_rates_of_a_topology_file(command: Path, case: Path) -> None:
    """Which has GB of 10^9 bytes."""
    stock, seen = case / "stock", case / "seen.yml"
    copies = f'case "$one" in --network-configuration=*) cp "${{one#*=}}" {seen};; esac'
    stock.write_text(f'#!/bin/sh\nfor one in "$@"; do {copies}; done\n')
    stock.chmod(0o755)
    dimension = {"kind": "ring", "size": 8, "bandwidth_gb_per_s": 45, "latency_ns": 500}
    (case / "network.json").write_text(json.dumps({"dimensions": [dimension]}))
    options = [one for one in case_options(case) if not one.startswith(("--rules", "--network-b"))]
    subprocess.run(
        [str(command), *options, f"--network-backend=external:{stock}"],
        capture_output=True,
        timeout=HANGS_S,
        check=False,
    )
    rate = seen.read_text().splitlines()[2].removeprefix("bandwidth: [ ").removesuffix(" ]")
    assert float(rate) == pytest.approx(45e9 / 2**30, rel=1e-15)


@pytest.mark.parametrize("unit", ["Gb/s", "[GiB/s]", "[]", "1"])
def test_other_units_are_refused(command: Path, case: Path, unit: str) -> None:
    for rules in ("default", "strict"):
        (case / "network.yml").write_text(plain(45.0, unit))
        result = run_case(command, case, case, rules=rules)
        assert result.exit_code == 2
        assert "network.yml:5: bandwidth_unit is" in result.errors
        assert "GB/s (10^9 bytes) or GiB/s (2^30 bytes) was expected" in result.errors

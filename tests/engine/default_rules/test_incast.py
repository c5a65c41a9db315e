"""Bursts of many senders at a switch (`--incast`): the link to the receiver slows down beyond the
buffer, in closed form.
"""

from pathlib import Path

import pytest

from engine import chakra_file as ck
from engine.command import Result, run_case

SIZE = 1_000_000
SENDERS = 8


def gather(command: Path, folder: Path, shape: str, *flags: str) -> Result:
    """Everybody sends a message to NPU 0 at once; 50 GB/s, no latency."""
    send = ck.node(1, ck.SEND, comm_size=SIZE, comm_dst=0, comm_tag=0)
    receives = [
        ck.node(npu, ck.RECV, comm_size=SIZE, comm_src=npu, comm_tag=0)
        for npu in range(1, SENDERS + 1)
    ]
    network = ck.network(shape, SENDERS + 1, latency_ns=0)
    traces = [receives, *([send] for _ in range(SENDERS))]
    case = ck.write_case(folder / "case", traces, network, {"endpoint-delay": 0})
    return run_case(command, case, folder, backend="fair-share", flags=flags, rules="default")


def slowed(bursts: int, buffer: int, percent: int) -> float:
    """How much longer the link takes."""
    over = max(0, bursts - buffer)
    return (min(bursts, buffer) + over * 100 / percent) / bursts


@pytest.mark.parametrize(
    ("buffer", "burst", "percent"),
    [(10**9, 64_000, 50), (100_000, 64_000, 50), (100_000, 5 * SIZE, 25), (1, 1, 100)],
)
def test_a_receiver_of_many(
    command: Path, tmp_path: Path, buffer: int, burst: int, percent: int
) -> None:
    """All end together, so all bursts are there to the end; no burst is larger than its message."""
    result = gather(command, tmp_path, "Switch", f"--incast={buffer}:{burst}:{percent}")
    expected = SENDERS * SIZE * 20 * slowed(SENDERS * min(burst, SIZE), buffer, percent)
    assert result.finish_ps()[0] == pytest.approx(expected, rel=1e-5)
    assert len(set(result.finish_ps())) == 1


def test_where_there_is_no_switch(command: Path, tmp_path: Path) -> None:
    for shape in ("Ring", "FullyConnected"):
        plain = gather(command, tmp_path, shape)
        assert gather(command, tmp_path, shape, "--incast=1:1000:10").times() == plain.times()


@pytest.mark.parametrize("value", ["", "1:2", "1:2:3:4", "0:1:50", "1:1:0", "1:1:101", "1k:1:50"])
def test_what_is_no_incast(command: Path, tmp_path: Path, value: str) -> None:
    result = gather(command, tmp_path, "Switch", f"--incast={value}")
    assert result.exit_code == 2
    assert f'--incast is "{value}"; BUFFER:BURST:PERCENT' in result.errors


def test_only_the_fair_share_network_has_it(command: Path, tmp_path: Path) -> None:
    case = tmp_path / "case"
    gather(command, tmp_path, "Switch")
    result = run_case(command, case, tmp_path, flags=("--incast=1:1:50",), rules="default")
    assert result.exit_code == 2
    assert "--incast needs --network-backend fair-share" in result.errors

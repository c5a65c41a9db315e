"""A machine that is busy is slow, not stuck."""

import itertools
import subprocess
import sys
import time

import pytest

from llmsim.emulation import emulate
from llmsim.emulation.emulate import STALL_S, Stall
from llmsim.emulation.processes import computed_since, cpu_seconds, descendants
from llmsim.emulation.timekeeping.asleep import Sleepers


def stalled_after_s(monkeypatch: pytest.MonkeyPatch, cpu_share: float, messages: int) -> float:
    """When a stall is seen, of processes that compute so much; after that many messages."""
    now_s = 0.0
    monkeypatch.setattr(emulate.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(emulate, "cpu_seconds", lambda pid: cpu_share * now_s)
    stall = Stall(lambda: [1])
    for step in itertools.count(1):
        now_s = step * 0.5
        if stall.is_long(min(step, messages)):
            return now_s
    raise AssertionError("not reached")


def test_a_stall_is_a_minute_of_the_wall_or_of_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stalled_after_s(monkeypatch, 0.0, 20) == pytest.approx(10 + STALL_S, abs=1)
    assert stalled_after_s(monkeypatch, 0.1, 20) == pytest.approx(25 + STALL_S * 10, abs=10)
    assert stalled_after_s(monkeypatch, 2.0, 1) == pytest.approx(15 + STALL_S / 2, abs=2)


def test_cpu_time_counts_processes_that_a_process_has_started() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    inner = "x = sum(i * i for i in range(3_000_000)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(descendants(process.pid)) == 1
        assert cpu_seconds(process.pid) > 0.05
        process.communicate(b"\n")
    assert cpu_seconds(process.pid) == 0.0


def test_cpu_time_is_not_known_where_a_process_has_ended_early() -> None:
    assert computed_since({1: 2.0, 2: 20.0}, {1: 2.5, 2: 21.0, 3: 0.25}) == 1.75
    assert computed_since({1: 2.0, 2: 20.0}, {1: 2.5}) is None


@pytest.mark.parametrize(
    ("code", "sleeps"),
    [
        ("print(flush=True); input()", True),
        ("import time; print(flush=True)\nwhile True: time.sleep(0.02)", True),
        ("print(flush=True)\nwhile True: pass", False),
    ],
)
def test_who_sleeps_and_who_computes(code: str, sleeps: bool) -> None:
    """One that looks for something now and then sleeps; a busy machine only makes it later."""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sleepers, found = Sleepers(process.pid), False
        for _ in range(2000 if sleeps else 50):
            time.sleep(0.001)
            found = sleepers.all_sleep()
            if found:
                break
        process.kill()
    assert found == sleeps

"""Timed waits of libc in a client: all of them are virtual, whichever thread or process waits."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llmsim.emulation.client import client_environment, client_process
from llmsim.emulation.engines.vllm import VllmApi
from llmsim.emulation.servers.relay import Relay
from llmsim.emulation.timekeeping.asleep import Sleepers, title_of
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.emulation.timekeeping.thread_waits import ThreadWaits
from llmsim.scheduling.conformance.engine_python import linked_environment

CLIENT = Path(__file__).with_name("waiting_client.py")


async def run(
    command: list[str], folder: Path, limit_s: float = 60
) -> tuple[int | None, Keeper, str]:
    """A client that asks nobody: its exit code (None: it has not ended by itself), the clock, and
    what holds it.
    """
    keeper = Keeper(folder, [])
    async with keeper.listening():
        keeper.relay = relay = Relay(
            keeper, lambda group, tokens: 0, lambda row, tokens: None, [], VllmApi()
        )
        listens, sends = await relay.listen(), asyncio.create_task(relay.run())
        environment = client_environment(
            linked_environment(folder), keeper, relay.port, folder / "client"
        )
        with client_process(command, environment, keeps_stdout=False) as process:
            ends_s = time.monotonic() + limit_s
            while process.poll() is None and time.monotonic() < ends_s:
                await asyncio.sleep(0.05)
            code = process.poll()
            blockers = keeper.blockers()
        sends.cancel()
        keeper.close()
        listens.close()
    return code, keeper, blockers


def test_every_timed_wait_is_virtual(tmp_path: Path) -> None:
    """None ends early, or later than a look of a program that looks again and again."""
    out = tmp_path / "out.json"
    began_s = time.monotonic()
    code, keeper, _ = asyncio.run(run([sys.executable, str(CLIENT), str(out)], tmp_path))
    assert code == 0
    assert keeper.now_ps > 500 * 10**12
    assert time.monotonic() - began_s < 60
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    for name, came_late, late_s in found["waits"]:
        assert came_late, name
        assert -1e-9 <= late_s < (0.06 if name == "process" else 1e-4), name
    assert [number for number, _ in found["handed_over"]] == list(range(10))
    assert max(late_s for _, late_s in found["handed_over"]) < 0.02


def test_a_client_that_never_sleeps_is_named(tmp_path: Path) -> None:
    words = "import threading, time; threading.Thread(target=time.sleep, args=(9,)).start()"
    loop = f"{words}\nwhile True: pass"
    code, _, blockers = asyncio.run(run([sys.executable, "-c", loop], tmp_path, limit_s=3))
    assert code is None
    assert "the client never sleeps, since thread" in blockers


def test_programs_that_are_not_python_wait_in_virtual_time(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '3600'])"]
    code, keeper, _ = asyncio.run(run(command, tmp_path))
    assert code == 0
    assert keeper.now_ps >= 3600 * 10**12


def test_places_of_threads_that_have_ended_are_free(tmp_path: Path) -> None:
    waits = ThreadWaits(tmp_path / "waits")
    assert waits.next_ps is None
    places = waits._places
    places["end"][0] = 3
    places[1] = (1, 1, 70, 1, 0)
    places[2] = (1, 2, 50, 1, 0)
    assert waits.next_ps == 50
    waits.keep([(1, 1)])
    assert waits.next_ps == 70
    assert waits.wake(60) == set()


def test_who_sleeps_is_told_in_two_looks() -> None:
    code = "import subprocess, time; p = subprocess.Popen(['sleep', '60']); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        try:
            sleepers = Sleepers(process.pid)
            for _ in range(500):
                if sleepers.all_sleep() and sleepers.has_children:
                    break
                time.sleep(0.01)
            assert sleepers.has_children
            assert len({pid for pid, _ in sleepers.threads}) == 2
            assert "import subprocess" in title_of((process.pid, process.pid))
            sleepers.forget()
            assert not sleepers.all_sleep()
            assert sleepers.all_sleep()
            sleepers.close()
        finally:
            subprocess.run(["pkill", "-s", str(process.pid)], check=False)


@pytest.mark.parametrize("words", [["sh", "-c", "true"]])
def test_a_client_without_python_ends(words: list[str], tmp_path: Path) -> None:
    code, _, _ = asyncio.run(run(words, tmp_path))
    assert code == 0

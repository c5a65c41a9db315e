"""Copies to host memory and back (HiCache): what steps wait for, and a scheduler that waits for
nothing else.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from emulation.test_devices import SGLANG, prepared_on
from emulation.test_sglang import of_sglang

from llmsim.config.errors import NotYetError
from llmsim.emulation.devices import Devices
from llmsim.emulation.engines.sglang import Sglang
from llmsim.emulation.engines.sglang_flags import server_flags
from llmsim.emulation.in_engine.channel import Channel
from llmsim.emulation.in_engine.clock import ClockPage
from llmsim.emulation.requests import engine_requests
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.scheduling.conformance.model_runner import ModelRunner

MS = 10**9
HICACHE = ["--enable-hierarchical-cache", "--block-size", "16", "--num-gpu-blocks-override", "301"]


def end_of_prompt(waits: list[int] | None) -> tuple[int, int]:
    """When the first prompt's step ends that is launched at zero, and layers of the model."""
    prepared = prepared_on("h100_llama31_8b.json", *SGLANG, *HICACHE)
    (group,) = prepared.lowered.groups
    assert group.scheduler is not None
    requests = engine_requests(prepared.workload, stops=False)
    devices = Devices(group, ModelRunner(requests, group.scheduler.speculation))
    items = [["000000000", requests[0].input_tokens, 0, 0, True]]
    return devices.step(items, 0, waits)[0], group.scheduler.host_cache.layers


def test_each_layer_waits_for_its_kv() -> None:
    """Where copies are slow, the last layer's comes late; where they are fast, the first one's."""
    alone_ps, layers = end_of_prompt(None)
    assert end_of_prompt([0, 0, 0])[0] == alone_ps
    assert end_of_prompt([7 * MS, 0, 0])[0] == alone_ps + 7 * MS
    slow_ps = end_of_prompt([0, 0, 900 * MS])[0]
    assert 900 * MS < slow_ps < 900 * MS + 2 * alone_ps / layers
    assert end_of_prompt([0, 90 * MS, 90 * MS + layers])[0] == alone_ps + 90 * MS + 1


def wakes(keeper: Keeper) -> list[int]:
    """A scheduler waits for a time; then for another one, before which it has a message."""
    clock, seen = ClockPage(str(keeper.clock_path)), []
    channel, other = (Channel(str(keeper.socket_path), number) for number in (0, 1))
    while len(keeper.time.actors) < 3:
        time.sleep(0.01)
    for one in (channel, other):
        one.dozes(5 * MS)
    for one in (channel, other):
        one.goes_on()
    seen.append(clock.now_ps())
    channel.dozes(9 * MS)
    channel.unpark()
    channel.goes_on()
    seen.append(clock.now_ps())
    other.park()
    channel.wait(7 * MS)
    seen.append(clock.now_ps())
    for one in (channel, other):
        one.close()
    return seen


class NoSteps:
    def step(self, *_: Any) -> tuple[int, list[list[int]]]:
        raise AssertionError("nobody asks")

    def drafts(self) -> list[int]:
        return []

    def empty_step(self) -> None:
        raise AssertionError("nobody asks")


async def wakes_of(folder: Path) -> list[int]:
    keeper = Keeper(folder, [NoSteps(), NoSteps()])
    async with keeper.listening():
        waits = asyncio.create_task(keeper.clients_wait(None))
        seen = await asyncio.wait_for(asyncio.to_thread(wakes, keeper), 60)
        waits.cancel()
    return seen


def test_a_scheduler_waits_for_a_copy_or_a_message(tmp_path: Path) -> None:
    """The clock stands still while another engine core works."""
    assert asyncio.run(wakes_of(tmp_path)) == [5 * MS, 5 * MS, 7 * MS]


def questions(keeper: Keeper) -> int:
    """A scheduler that settles while a request is under way is asked for something else."""
    channel = Channel(str(keeper.socket_path), 0)
    channel.settles()
    channel.asked_for()
    channel.goes_on()
    channel.settles()
    channel.received("000000000", 1)
    channel.goes_on()
    channel.close()
    return keeper.time.requests_under_way


async def questions_to(folder: Path) -> int:
    keeper = Keeper(folder, [NoSteps()])
    keeper.sent(0)
    async with keeper.listening():
        waits = asyncio.create_task(keeper.clients_wait(None))
        left = await asyncio.wait_for(asyncio.to_thread(questions, keeper), 60)
        waits.cancel()
    return left


def test_a_question_ends_the_wait_for_what_is_under_way(tmp_path: Path) -> None:
    assert asyncio.run(questions_to(tmp_path)) == 0


def gives_behind(keeper: Keeper) -> None:
    """SGLang's scheduler still gives tokens to a request whose client has left."""
    channel = Channel(str(keeper.socket_path), 0)
    channel.left(["000000003"])
    channel.produced([("000000003", 2, True), ("000000004", 1, False)])
    channel.wait(0)
    channel.close()


async def under_way_behind(folder: Path) -> int:
    keeper = Keeper(folder, [NoSteps()])
    keeper.leaves(3)
    async with keeper.listening():
        waits = asyncio.create_task(keeper.clients_wait(None))
        gives = asyncio.ensure_future(asyncio.to_thread(gives_behind, keeper))
        while not keeper.time.tokens_under_way:
            await asyncio.sleep(0.01)
        found = keeper.time.tokens_under_way
        keeper.read(1)
        await asyncio.wait_for(gives, 60)
        waits.cancel()
    return found


def test_nobody_reads_what_comes_behind_a_client_that_left(tmp_path: Path) -> None:
    assert asyncio.run(under_way_behind(tmp_path)) == 1


def test_flags_give_the_host_pool_its_pages() -> None:
    """SGLang has a page more than its ratio says."""
    (group,) = of_sglang(*HICACHE, "--hicache-write-policy", "write_back").lowered.groups
    assert group.scheduler is not None
    words = server_flags(group, "m")
    place = words.index("--hicache-ratio")
    tokens = int(4800 * float(words[place + 1]))
    assert tokens // 16 + 1 == group.scheduler.host_cache.pages > 1
    assert words[place + 2 : place + 4] == ["--hicache-write-policy", "write_back"]


@pytest.mark.parametrize(
    ("cluster", "options", "said"),
    [
        ("h100_nemotron3_nano_tp2.json", ["--enable-hierarchical-cache"], "HiCache of layers with"),
    ],
)
def test_what_is_not_emulated_with_it(cluster: str, options: list[str], said: str) -> None:
    with pytest.raises(NotYetError, match=f"^{said}"):
        Sglang().check(of_sglang(*options, cluster=cluster), [])

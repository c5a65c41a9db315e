"""Data-parallel ranks in lock-step: when rounds begin, when ranks go on, what they agree on."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from emulation.test_emulation import of_cluster
from rank_agreements import AGREEMENTS

from llmsim.config.errors import InputError, NotYetError
from llmsim.emulation.engines.vllm import Vllm
from llmsim.emulation.in_engine.channel import Channel
from llmsim.emulation.in_engine.clock import ClockPage
from llmsim.emulation.lockstep import RankDevices, Rounds
from llmsim.emulation.servers.of_instances import EngineServer, engine_stages
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.emulation.timekeeping.timekeeper import Timekeeper

CLUSTER = "single_node_moe_dp_ep_instance.json"
IN_TURN = ["--request-routing-policy", "RR", "--cost-source", "roofline"]


class Answers:
    """A model that gives one token in each step."""

    def starts(self, row: int, computed: int) -> None:
        pass

    def sample(self, row: int, scheduled: int, drafts: int, *, holds: bool) -> list[int]:
        return [7]


def two_ranks(*options: str) -> tuple[EngineServer, list[RankDevices]]:
    (stage,) = engine_stages(of_cluster(CLUSTER, *IN_TURN, *options))
    (server,) = stage.servers
    assert server.lockstep is not None
    rounds = Rounds(server.groups, server.lockstep.expanded)
    ranks = [RankDevices(one, Answers(), rounds, m) for m, one in enumerate(server.groups)]
    return server, ranks


def items(row: int, tokens: int, before: int) -> list[list[Any]]:
    return [[f"cmpl-{row:09d}-0-aa", tokens, before, 0, before == 0]]


def test_a_round_begins_when_all_ranks_have_joined_it() -> None:
    _, (first, second) = two_ranks()
    assert first.step(items(0, 100, 0), 5) == (0, [[7]], 5)
    assert first.end_ps(0) is None
    assert second.dummy(9) == 0
    end_ps = first.end_ps(0)
    assert end_ps is not None and end_ps > 9
    assert first.schedule.formed_ps == [5] and first.schedule.items == [[(0, 100, 0)]]
    assert first.schedule.end_ps == [end_ps]
    assert second.schedule.items == []


def test_a_long_prompt_of_one_rank_takes_the_time_of_both() -> None:
    """A dummy waits for the experts of the other rank's batch."""
    ends = []
    for tokens in (1, 4000):
        _, (first, second) = two_ranks()
        first.step(items(0, tokens, 0), 0)
        ends.append(second.end_ps(second.dummy(0)) or 0)
    assert ends[1] > 2 * ends[0] > 0


def test_all_ranks_wait_for_what_one_of_them_copies() -> None:
    ends = []
    for ready_ps in (0, 70 * 10**9, 75 * 10**9):
        _, (first, second) = two_ranks()
        first.step(items(0, 100, 0), 0, [ready_ps, 0, 0])
        second.step(items(1, 100, 0), 0)
        assert first.end_ps(0) == second.end_ps(0)
        ends.append(first.end_ps(0) or 0)
    at_once_ps, later_ps, latest_ps = ends
    assert 0 < at_once_ps < 70 * 10**9 < later_ps
    assert latest_ps == later_ps + 5 * 10**9


def test_a_rank_of_a_decode_server_has_first_tokens() -> None:
    _, (first, _) = two_ranks()
    first.first_tokens([("cmpl-000000003-0-aa", 12)], 7)
    assert (first.schedule.formed_ps, first.schedule.items) == ([7], [[(3, 0, 12)]])


def test_a_rank_is_as_far_ahead_with_dummies_as_with_batches() -> None:
    """With two batches in flight, the second dummy waits for the end of the first; with one, each
    for its own.
    """
    _, (first, second) = two_ranks()
    for rank in (first, second):
        assert rank.dummy(0) == 0
    assert first.goes_on_ps(0) == 0
    first.dummy(0)
    assert first.goes_on_ps(1) is None  # the other has still to join
    second.dummy(0)
    assert first.goes_on_ps(1) == first.end_ps(0)
    _, (first, second) = two_ranks("--no-async-scheduling")
    for rank in (first, second):
        rank.dummy(0)
    assert first.goes_on_ps(0) == first.end_ps(0) > 0  # type: ignore[operator]


def run_ranks(keeper: Keeper, said: list[tuple[bool, bool]]) -> tuple[list[Any], list[int]]:
    """Both run a dummy and agree, each in a thread; what they agreed on, and when."""
    clock = ClockPage(str(keeper.clock_path))
    agreed: list[Any] = [None, None]
    times = [0, 0]

    def run(rank: int, channel: Channel) -> None:
        for _ in range(3):
            channel.settle()
            channel.dummy()
        unfinished, pauses = said[rank]
        agreed[rank] = channel.agree(unfinished=unfinished, pauses=pauses)
        times[rank] = clock.now_ps()

    channels = [Channel(str(keeper.socket_path), rank) for rank in (0, 1)]
    threads = [threading.Thread(target=run, args=one, daemon=True) for one in enumerate(channels)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    for channel in channels:
        channel.close()
    return agreed, times


async def agreed_by(
    folder: Path, said: list[tuple[bool, bool]]
) -> tuple[list[Any], list[int], list[int]]:
    _, ranks = two_ranks()
    keeper = Keeper(folder, ranks, lockstep=[range(2)])
    async with keeper.listening():
        waits = asyncio.create_task(keeper.clients_wait(None))
        agreed, times = await asyncio.wait_for(asyncio.to_thread(run_ranks, keeper, said), 60)
        waits.cancel()
    return agreed, times, [rank.end_ps(1) or 0 for rank in ranks]


@pytest.mark.parametrize(("said", "agreed"), AGREEMENTS)
def test_ranks_agree_in_virtual_time(
    said: list[tuple[bool, bool]], agreed: tuple[bool, bool], tmp_path: Path
) -> None:
    """The third dummy goes on when the second has ended; both hear the same at one time."""
    told, times, ends = asyncio.run(agreed_by(tmp_path, said))
    assert told == [agreed, agreed]
    assert times == [max(ends)] * 2 and max(ends) > 0


def ends_known_to(keeper: Keeper) -> list[int]:
    """Both launch a step, and hear when it ends."""
    ends = [0, 0]

    def run(rank: int, channel: Channel) -> None:
        number, _, _ = channel.step(items(rank, 100, 0))
        ends[rank] = channel.end_of(number)

    channels = [Channel(str(keeper.socket_path), rank) for rank in (0, 1)]
    threads = [threading.Thread(target=run, args=one, daemon=True) for one in enumerate(channels)]
    for one in threads:
        one.start()
        one.join(0.1)  # the first one waits for the other
    for one in threads:
        one.join(30)
    for channel in channels:
        channel.close()
    return ends


def test_the_end_of_a_step_is_known_when_all_ranks_have_launched_theirs(tmp_path: Path) -> None:
    async def known() -> tuple[list[int], list[int | None], int]:
        _, ranks = two_ranks()
        keeper = Keeper(tmp_path, ranks, lockstep=[range(2)])
        async with keeper.listening():
            ends = await asyncio.wait_for(asyncio.to_thread(ends_known_to, keeper), 60)
            return ends, [one.end_ps(0) for one in ranks], keeper.now_ps

    ends, rounds, now_ps = asyncio.run(known())
    assert ends == rounds
    assert now_ps == 0, "nobody has waited for that end"


def run_idle_ranks(keeper: Keeper) -> list[str]:
    """One rank is idle until the other meets it; then both are, until the first has a request."""
    said = []
    first, second = (Channel(str(keeper.socket_path), rank) for rank in (0, 1))

    def meets(channel: Channel, name: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: (channel.meet(), said.append(name)), daemon=True)
        thread.start()
        return thread

    for busy, idle in ((second, first), (first, second)):
        idle.dozes()
        if busy is first:
            busy.dozes()
            busy.unpark()
            busy.goes_on()
            said.append("has a request")
        waits = meets(busy, "busy")
        idle.goes_on()
        said.append("idle")
        idle.meet()
        waits.join(30)
    first.close()
    second.close()
    return said


async def idle_ranks(folder: Path) -> list[str]:
    _, ranks = two_ranks()
    keeper = Keeper(folder, ranks, lockstep=[range(2)])
    async with keeper.listening():
        return await asyncio.wait_for(asyncio.to_thread(run_idle_ranks, keeper), 60)


def test_idle_ranks_go_on_when_one_has_work(tmp_path: Path) -> None:
    """Nobody has met before all are there."""
    assert asyncio.run(idle_ranks(tmp_path)) == ["idle", "busy", "has a request", "idle", "busy"]


@pytest.mark.parametrize("under_way", [2, -1])
def test_time_waits_for_messages_that_wake_ranks(under_way: int) -> None:
    """A rank may say that it is woken before the coordinator says that it has woken it."""
    time = Timekeeper()
    rank = time.join("a rank")
    time.waits(rank, 10)
    time.waves_under_way = under_way
    assert time.woken() == []
    time.waves_under_way = 0
    assert time.woken() == [rank] and time.now_ps == 10


def test_ranks_of_a_release_agree_as_often_as_in_the_run() -> None:
    server, _ = two_ranks("--engine-profile", "vllm-0.33")
    vllm = Vllm()
    assert vllm.release_options("0.33.0", server) == ["--dp-sync-interval", "16"]
    with pytest.raises(InputError, match=r"the ranks of vLLM 0\.24\.0 agree every 32 rounds"):
        vllm.release_options("0.24.0", server)
    server, _ = two_ranks("--engine-profile", "vllm-0.24")
    assert vllm.release_options("0.24.0", server) == []


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (CLUSTER, [], "--request-routing-policy LOAD: in front of several instances"),
        (
            CLUSTER,
            ["--request-routing-policy", "VLLM_DP:clients=2"],
            "--request-routing-policy VLLM_DP:clients=2",
        ),
        ("h100_gpt_oss_120b_afd.json", [], "an instance that gets no requests"),
    ],
)
def test_what_no_ranks_stand_for_is_refused(name: str, options: list[str], said: str) -> None:
    with pytest.raises(NotYetError, match=said):
        engine_stages(of_cluster(name, "--cost-source", "roofline", *options))


def test_the_ranks_of_a_mixture_are_one_server() -> None:
    server, _ = two_ranks()
    assert [one.info.index for one in server.groups] == [0, 1]


def test_the_balancer_chooses_among_the_ranks_of_a_server() -> None:
    (stage,) = engine_stages(
        of_cluster(CLUSTER, "--request-routing-policy", "VLLM_DP", "--cost-source", "roofline")
    )
    (server,) = stage.servers
    assert server.balances and server.lockstep is not None

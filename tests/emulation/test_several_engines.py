"""Coordinators and engines that hand KV over, before the clock: what waits for what."""

import asyncio
import selectors
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from emulation.test_emulation import CLUSTER, PULLS

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.core import KvTransferColumns
from llmsim.emulation.devices import Begun
from llmsim.emulation.in_engine.channel import Channel, News
from llmsim.emulation.in_engine.clock import EPOCH_S, ClockPage
from llmsim.emulation.in_engine.coordinator import Poller, ToTimekeeper, WholeMilliseconds
from llmsim.emulation.servers.links import Links, Prompts, PushLinks, WrittenLinks, outside_network
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.lowering import LoweredDeployment
from llmsim.simulation.run import simulate

MS = 10**9


class NoSteps:
    def posts_reads(self, posts_ps: int, now_ps: int) -> None:
        pass

    def step(self, items: list[Any], now_ps: int) -> Begun:
        raise AssertionError("nobody asks")

    def empty_step(self) -> None:
        raise AssertionError("nobody asks")


class FakeZmq:
    """Polls sockets of this process as pyzmq polls its own."""

    POLLIN = 1

    class Poller:
        def __init__(self) -> None:
            self._selector = selectors.DefaultSelector()

        def register(self, one: Any, flags: int) -> None:
            self._selector.register(one, selectors.EVENT_READ, one)

        def poll(self) -> list[tuple[Any, int]]:
            return [(key.data, 1) for key, _ in self._selector.select()]


class Coordinator(threading.Thread):
    """vLLM's loop: it reports at least 100 ms after its last report, or after 5 s without news. It
    passes on at once that a wave begins.
    """

    def __init__(self, keeper: Keeper) -> None:
        super().__init__(daemon=True)
        clock = ClockPage(str(keeper.clock_path))
        self._time, self._clock = WholeMilliseconds(clock), clock
        self.api_server, self._front = socket.socketpair()
        self.engine, self._back = socket.socketpair()
        self._poller = Poller(str(keeper.socket_path), clock, FakeZmq)
        for one in (self._front, self._back):
            self._poller.register(one, FakeZmq.POLLIN)
        self.reports: list[tuple[int, int]] = []
        """(when, how many messages of engines it had heard by then)."""

    def run(self) -> None:
        last_ms = heard = 0
        changed = False
        while True:
            elapsed = int(self._time.time() * 1000) - last_ms
            try:
                events = self._poller.poll(max(0, (100 if changed else 5000) - elapsed))
            except KeyboardInterrupt:
                return
            if not events:
                self.reports.append((self._clock.now_ps(), heard))
                changed, last_ms = False, int(self._time.time() * 1000)
                self._poller.publish(partial(self._front.send, b"r"))
            for one, _ in events:
                said = one.recv(1)
                heard += one is self._back
                changed |= said == b"x"
                if said == b"w":
                    self._poller.publish(partial(self._front.send, said))


def run_engine(
    keeper: Keeper,
    coordinator: Coordinator,
    times: list[int],
    tells_ps: int | None,
    wave_ps: int | None,
) -> None:
    """An engine core that reports its load at these times, in ps, or, at `wave_ps`, that a wave
    begins; at `tells_ps`, an API server tells of a request in its place.
    """
    channel = Channel(str(keeper.socket_path), 0)
    server = ToTimekeeper(str(keeper.socket_path), 0)
    for time in times:
        channel.wait(time)
        if time == tells_ps:
            server.asks("tells")
            coordinator.api_server.send(b"f")
        else:
            channel.reports()
            coordinator.engine.send(b"w" if time == wave_ps else b"x")
        channel.settle()
    channel.wait(times[-1] + 7000 * MS)
    channel.close()


def run_api_server(
    keeper: Keeper, coordinator: Coordinator, known: list[tuple[int, bytes]]
) -> None:
    """Notes when it hears what."""
    clock = ClockPage(str(keeper.clock_path))
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(keeper.socket_path))
        while said := coordinator.api_server.recv(1):
            known.append((clock.now_ps(), said))
            channel.sendall(b'["knows",0]\n')


async def reports_of(
    folder: Path,
    times: list[int],
    tells_ps: int | None = None,
    wave_ps: int | None = None,
    known: list[tuple[int, bytes]] | None = None,
) -> list[tuple[int, int]]:
    keeper = Keeper(folder, [NoSteps()])
    async with keeper.listening():
        coordinator = Coordinator(keeper)
        coordinator.api_server.send(b"s")  # it subscribes
        coordinator.start()
        while len(keeper.time.actors) < 2:
            await asyncio.sleep(0.01)
        heard: list[tuple[int, bytes]] = [] if known is None else known
        server = threading.Thread(
            target=run_api_server, args=(keeper, coordinator, heard), daemon=True
        )
        server.start()
        waits = asyncio.create_task(keeper.clients_wait(None))
        runs = asyncio.to_thread(run_engine, keeper, coordinator, times, tells_ps, wave_ps)
        await asyncio.wait_for(runs, 60)
        waits.cancel()
    return coordinator.reports


def test_a_coordinator_waits_in_virtual_time(tmp_path: Path) -> None:
    """Its first report is at zero. The fraction of a millisecond is that of the last message."""
    times = [30 * MS + 7, 40 * MS + 5, 250 * MS + 3]
    reports = asyncio.run(reports_of(tmp_path, times))
    assert reports == [(0, 0), (100 * MS + 5, 2), (250 * MS + 3, 3), (5250 * MS + 3, 3)]


def test_an_api_server_knows_at_once_that_a_wave_begins(tmp_path: Path) -> None:
    """Nothing else happens before, and the report comes behind that."""
    known: list[tuple[int, bytes]] = []
    times = [30 * MS + 7, 130 * MS + 5]
    asyncio.run(reports_of(tmp_path, times, wave_ps=130 * MS + 5, known=known))
    assert known[:3] == [(0, b"r"), (100 * MS + 7, b"r"), (130 * MS + 5, b"w")]


def test_a_coordinator_hears_of_first_requests(tmp_path: Path) -> None:
    """Up to vLLM 0.32: they are no news, but the report waits as from any other message."""
    times = [30 * MS + 7, 40 * MS + 9]
    reports = asyncio.run(reports_of(tmp_path, times, tells_ps=times[1]))
    assert reports == [(0, 0), (100 * MS + 9, 1), (5100 * MS + 9, 1)]


def test_whole_milliseconds_are_not_rounded(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, [])
    time = WholeMilliseconds(ClockPage(str(keeper.clock_path)))
    for now_ps in (0, 1, MS - 1, MS, 100 * MS, 999_999 * MS, 10**15 + MS - 1):
        keeper._page.write(now_ps)
        assert int(time.time() * 1000) - EPOCH_S * 1000 == now_ps // MS


LOAD = "synthetic:n=40,rate=200,input=uniform:200-3000,output=uniform:2-9,seed=5"


class HandedOver(NamedTuple):
    """A run with prefill and decode apart: when its KV moved, and between which groups."""

    lowered: LoweredDeployment
    columns: KvTransferColumns
    prefill: list[int]
    decode: list[int]
    prompts: Prompts


def handed_over(name: str, *options: str, load: str = LOAD) -> HandedOver:
    cluster = str(CLUSTER.with_name(name))
    words = ["--cluster-config", cluster, "--dataset", load, "--cost-source", "roofline"]
    prepared = prepare(checked_options([*words, *options]))
    results = simulate(prepared.lowered, prepared.workload, prepared.simulation)
    columns = results.kv_transfers
    assert columns is not None
    prefill, decode = columns.prefill_group.tolist(), results.requests.group.tolist()
    tokens = prepared.workload.input_tokens.tolist()
    prompts = Prompts(tokens.__getitem__, prefill.__getitem__)
    return HandedOver(prepared.lowered, columns, prefill, decode, prompts)


@pytest.mark.parametrize("name", ["h100_llama31_8b_pd.json", "h100_llama31_8b_pd_2p1d.json"])
def test_links_move_kv_as_the_run_does(name: str) -> None:
    """Fed with the run's reservations, they land each prompt at the run's time."""
    handed = handed_over(name, *PULLS)
    columns, prefill, decode = handed.columns, handed.prefill, handed.decode
    links = Links(handed.lowered, handed.prompts, outside_network(handed.lowered))
    landed: dict[int, list[tuple[int, int]]] = {}

    def pass_time(until_ps: int) -> None:
        while links.next_ps is not None and links.next_ps <= until_ps:
            now_ps = links.next_ps
            for core, row in links.landed(now_ps):
                landed.setdefault(row, []).append((core, now_ps))

    for row in np.argsort(columns.kv_reserved_ps, kind="stable").tolist():
        now_ps = int(columns.kv_reserved_ps[row])
        pass_time(now_ps)
        links.reserved(decode[row], row, 0, now_ps)
    pass_time(1 << 62)
    for row, at_ps in enumerate(columns.kv_landed_ps.tolist()):
        assert landed[row] == [(prefill[row], at_ps), (decode[row], at_ps)]


CHUNKED = ["--kv-transfer", "chunked"]
SHORT = LOAD.replace("200-3000", "20-200")
"""Prompts of which no chunk is cut."""


@pytest.mark.parametrize("name", ["h100_llama31_8b_pd.json", "h100_llama31_8b_pd_2p1d.json"])
def test_links_push_kv_as_the_run_does(name: str) -> None:
    """Prefill engines hear a message's time behind a reservation that they may push."""
    handed = handed_over(name, "--scheduler", "sglang", *CHUNKED, load=SHORT)
    columns, prefill, decode = handed.columns, handed.prefill, handed.decode
    links = PushLinks(handed.lowered, handed.prompts, outside_network(handed.lowered))
    reserved, computed = columns.kv_reserved_ps.tolist(), columns.prefill_end_ps.tolist()
    said = [(at_ps, decode[row], row) for row, at_ps in enumerate(reserved)]
    said += [(at_ps, prefill[row], row) for row, at_ps in enumerate(computed)]
    heard: dict[int, list[tuple[int, int, Any]]] = {row: [] for row in range(40)}

    def hear(now_ps: int) -> None:
        for core, (row, at_ps, what, more) in links.landed(now_ps):
            assert (at_ps, what) == (now_ps, News.LANDED if heard[row] else News.MAY_SEND)
            heard[row].append((core, now_ps, more))

    for now_ps, core, row in sorted(said):
        while links.next_ps is not None and links.next_ps <= now_ps:
            hear(links.next_ps)
        if now_ps == computed[row]:
            links.sent(core, row, handed.prompts.tokens(row), f"of {row}")
        else:
            links.reserved(core, row, 0, now_ps)
        assert links.next_ps == 0
        hear(now_ps)
    while links.next_ps is not None:
        hear(links.next_ps)
    for row, landed_ps in enumerate(columns.kv_landed_ps.tolist()):
        (core, told_ps, nothing), *landed = heard[row]
        assert (core, nothing) == (prefill[row], 0)
        assert reserved[row] < told_ps < computed[row]
        assert landed == [(one, landed_ps, f"of {row}") for one in (prefill[row], decode[row])]


@pytest.mark.parametrize("options", [["--kv-transfer-mode", "push"], CHUNKED])
@pytest.mark.parametrize("name", ["h100_llama31_8b_pd.json", "h100_llama31_8b_pd_2p1d.json"])
def test_links_write_kv_as_the_run_does(name: str, options: list[str]) -> None:
    """The proxy hears a message's time behind a reservation that the prompt may be computed, and
    both engines when its KV is there. Prompts of one chunk are sent with their ends.
    """
    handed = handed_over(name, "--kv-transfer", "whole", *options, load=SHORT)
    columns, prefill, decode = handed.columns, handed.prefill, handed.decode
    told: dict[int, int] = {}
    heard: dict[int, list[tuple[int, int]]] = {row: [] for row in range(40)}
    now_ps = 0
    links = WrittenLinks(
        handed.lowered,
        handed.prompts,
        outside_network(handed.lowered),
        lambda row: told.update({row: now_ps}),
    )
    reserved, computed = columns.kv_reserved_ps.tolist(), columns.prefill_end_ps.tolist()
    said = [(at_ps, decode[row], row, False) for row, at_ps in enumerate(reserved)]
    said += [(at_ps, prefill[row], row, True) for row, at_ps in enumerate(computed)]

    def hear() -> None:
        for core, row in links.landed(now_ps):
            heard[row].append((core, now_ps))

    for at_ps, core, row, ends in sorted(said):
        while links.next_ps is not None and links.next_ps <= at_ps:
            now_ps = links.next_ps
            hear()
        now_ps = at_ps
        if ends:
            links.sent(core, row, handed.prompts.tokens(row), "")  # the chunk that ends it
            links.sent(core, row, 0, "its end")
        else:
            links.reserved(core, row, 0, at_ps)
        hear()
    while links.next_ps is not None:
        now_ps = links.next_ps
        hear()
    for row, landed_ps in enumerate(columns.kv_landed_ps.tolist()):
        assert reserved[row] < told[row] < computed[row]
        assert heard[row] == [(one, landed_ps) for one in (prefill[row], decode[row])]


class LandsAt:
    """Links over which the KV of a prompt takes 3 ms from engine core 0."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, int]] = []

    @property
    def next_ps(self) -> int | None:
        return min(self._due)[0] if self._due else None

    def reserved(self, core: int, row: int, cached: int, now_ps: int) -> int:
        self._due.append((now_ps + 3 * MS, row, core))
        return 0

    def sent(self, core: int, row: int, tokens: int, metadata: str) -> None:
        raise AssertionError("nobody pushes")

    def withdrawn(self, core: int, row: int, now_ps: int) -> None:
        raise AssertionError("nobody leaves")

    def landed(self, now_ps: int) -> list[tuple[int, int]]:
        there = [(row, core) for due_ps, row, core in self._due if due_ps <= now_ps]
        self._due = [one for one in self._due if one[0] > now_ps]
        return [(core, row) for row, decode in there for core in (0, decode)]


def run_pair(keeper: Keeper) -> list[Any]:
    """Two engine cores; the second one rests until its KV is there, in a step without a batch."""
    clock, seen = ClockPage(str(keeper.clock_path)), []
    first, second = (Channel(str(keeper.socket_path), number) for number in (0, 1))
    first.knows(["cmpl-000000004-0-aa"])
    second.reserved("cmpl-000000004-0-bb", 0)
    first.park()
    seen.append(second.moved(2))
    second.rest()
    seen += [clock.now_ps(), second.moved(2)]
    for _ in range(2):
        second.rest()  # what it has been told is still to pass its queue of batches
    seen += [first.moved(2), clock.now_ps()]
    first.close()
    second.close()
    return seen


async def pair_of(folder: Path) -> list[Any]:
    keeper = Keeper(folder, [NoSteps(), NoSteps()], LandsAt())
    async with keeper.listening():
        waits = asyncio.create_task(keeper.clients_wait(None))
        seen = await asyncio.wait_for(asyncio.to_thread(run_pair, keeper), 60)
        waits.cancel()
    return seen


def test_an_engine_rests_until_its_kv_is_there(tmp_path: Path) -> None:
    moved = ["cmpl-000000004-0-bb"]
    assert asyncio.run(pair_of(tmp_path)) == [
        [],
        3 * MS,
        moved,
        ["cmpl-000000004-0-aa"],
        3 * MS,
    ]


@pytest.mark.parametrize("name", ["chatcmpl-x", "cmpl-12-0-a"])
def test_links_know_requests_by_their_rows(name: str) -> None:
    channel = Channel.__new__(Channel)
    channel._names = {}
    with pytest.raises(ValueError, match="no client sent"):
        channel.knows([name])

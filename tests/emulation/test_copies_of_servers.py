"""vLLM's own offloading before the clock: copies, engine cores that wait for them, and flags."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from emulation.test_devices import schedule_of
from emulation.test_emulation import CLUSTER, of_cluster

from llmsim import _native
from llmsim.api.preparation.prepare import prepare
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from llmsim.emulation.devices import Begun
from llmsim.emulation.engines.vllm import Vllm
from llmsim.emulation.in_engine.channel import Channel
from llmsim.emulation.in_engine.clock import ClockPage
from llmsim.emulation.servers.copies import HostCopies
from llmsim.emulation.servers.of_instances import engine_stages
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.simulation.run import simulate

MS = 10**9
DATASET = "synthetic:n=8,rate=200,input=uniform:20-90,output=uniform:2-12,seed=3"
OFFLOADS = ["--engine-profile", "vllm-0.33", "--kv-offloading-size", "1"]
TOKEN_BYTES, BYTES_PER_S = 1000, 10**9


def outside_copies() -> "_native.OutsideCopies":
    """Two groups, of which the second one offloads nothing: 1,000 tokens take 1 ms."""
    network = _native.NetworkConfig(_native.Sharing.FAIR)
    places = []
    for island in (0, 1):
        links = [network.add_link(BYTES_PER_S, 0) for _ in range(2)]
        places.append(network.add_place(island, (links[0], links[1]), (links[0], links[1])))
    device, host = places
    size = [TOKEN_BYTES]
    groups = [
        _native.OffloadingCopies([device], [host], size, size),
        _native.OffloadingCopies([], [], [], []),
    ]
    return _native.OutsideCopies(groups, network)


def ends_ms(copies: "_native.OutsideCopies") -> list[tuple[float, int]]:
    """When which copies end, as far as they have begun."""
    ends = []
    while (at_ps := copies.next_event_ps()) is not None:
        ends += [(at_ps / MS, job) for _, job in copies.advance(at_ps)]
    return ends


def test_copies_follow_the_step_that_asks_for_them_and_each_other() -> None:
    copies = outside_copies()
    copies.store(0, 1, 1000)
    copies.load(0, 2, 2000)
    copies.formed(0, True, 0)
    copies.launched(0, 5 * MS)
    copies.store(0, 3, 1000)
    copies.formed(0, False, MS)
    assert ends_ms(copies) == [(6, 1), (7, 2), (7, 3)]


@pytest.mark.parametrize(("kind", "opens_ms"), [("flush", 6), ("load_in_step", 7)])
def test_a_step_waits_for_copies_behind_the_steps_before(kind: str, opens_ms: int) -> None:
    """A store of the step before, or a load of its own; neither waits for the step itself."""
    copies = outside_copies()
    copies.store(0, 1, 1000)
    copies.formed(0, True, 0)
    copies.launched(0, 5 * MS)
    assert copies.is_open(0)
    if kind == "flush":
        copies.flush(0, 1)
    else:
        copies.load_in_step(0, 2, 2000)
    copies.formed(0, True, MS)
    opened = []
    while not copies.is_open(0):
        opened.append(copies.next_event_ps())
        copies.advance(opened[-1])
    assert opened[-1] == opens_ms * MS
    copies.flush(0, 1)
    copies.formed(0, True, 8 * MS)
    assert copies.is_open(0)  # a store that has ended holds nobody


def test_numbers_that_are_none_are_refused() -> None:
    copies = outside_copies()
    for group in (1, 2, -1):
        with pytest.raises(IndexError):
            copies.store(group, 1, 1000)
    with pytest.raises(IndexError, match="31 bits"):
        copies.store(0, 1 << 31, 1000)


class Steps:
    """Every step takes 5 ms."""

    def __init__(self) -> None:
        self.formed_ps: list[int] = []

    def forms(self, now_ps: int) -> None:
        self.formed_ps.append(now_ps)

    def step(self, items: list[Any], now_ps: int, *_: Any) -> Begun:
        return Begun(now_ps + 5 * MS, [], now_ps)


def copies_of(**asked: list[list[int]]) -> dict[str, list[list[int]]]:
    return asked


def run_engine(keeper: Keeper) -> list[Any]:
    """One store behind its step, for which the second step waits; then a load without a step."""
    clock, seen = ClockPage(str(keeper.clock_path)), []
    channel = Channel(str(keeper.socket_path), 0)
    channel.copies(copies_of(store=[[7, 1000]]), runs=True, waits=False)
    end_ps, _, looks_ps = channel.step([])
    seen += [end_ps, channel.arrived(2, looks_ps)]
    channel.copies(copies_of(flush=[[7]]), runs=True, waits=True)
    seen.append(clock.now_ps())
    end_ps, _, looks_ps = channel.step([])
    channel.wait(end_ps)
    seen += [end_ps, channel.arrived(2, looks_ps)]
    channel.copies(copies_of(load=[[8, 2000]]), runs=False, waits=False)
    channel.rest()  # the scheduler has still to hear of the step
    seen += [clock.now_ps(), channel.arrived(2)]
    channel.rest()
    seen += [clock.now_ps(), channel.arrived(2)]
    channel.close()
    return seen


async def engine_of(folder: Path) -> tuple[list[Any], Steps]:
    copies, steps = HostCopies.__new__(HostCopies), Steps()
    copies._copies = outside_copies()
    keeper = Keeper(folder, [steps], copies=copies)
    async with keeper.listening():
        waits = asyncio.create_task(keeper.clients_wait(None))
        seen = await asyncio.wait_for(asyncio.to_thread(run_engine, keeper), 60)
        waits.cancel()
    return seen, steps


def test_an_engine_waits_for_copies_in_virtual_time(tmp_path: Path) -> None:
    seen, steps = asyncio.run(engine_of(tmp_path))
    held_ms, hears_ms = 6, 11
    assert seen[:2] == [5 * MS, []]
    assert seen[2] == held_ms * MS
    assert seen[3:5] == [hears_ms * MS, [7]]
    assert seen[5:7] == [hears_ms * MS, []]
    assert seen[7:] == [(hears_ms + 2) * MS, [8]]
    assert steps.formed_ps == [0, 0]  # the batch that waits, too


def server_words(*options: str) -> list[str]:
    stages = engine_stages(of_cluster(CLUSTER.name, *options))
    (server,) = stages[0].servers
    return Vllm().command(Path("python"), server, Path(os.devnull).parent, 8000)


def test_the_server_has_vllms_own_connector(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("llmsim.emulation.engines.vllm.write_model", lambda *_: "model")
    words = server_words(*OFFLOADS, "--kv-offloading-blocks-per-chunk", "4")
    said = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert said["kv_connector"] == "SizedOffloading"
    extra = said["kv_connector_extra_config"]
    assert extra["blocks_per_chunk"] == 4
    assert extra["num_chunks"] == (1 << 30) // (4 * 16 * 131_072)


WAITS = "synthetic:n=40,rate=40,input=fixed:40,output=uniform:20-60,prefixes=6:tokens=1024,seed=1"


@pytest.mark.parametrize(("devices", "is_held"), [(1, True), (2, False)])
def test_the_engine_of_one_device_hears_of_nothing_while_a_step_waits(
    devices: int, is_held: bool, tmp_path: Path
) -> None:
    """Its worker waits in the engine's process, so that answers come when the wait is over."""
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    cluster["link_bw"] = 2
    cluster["nodes"][0]["instances"][0] |= {"num_npus": devices, "tp_size": devices}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    words = ["--cluster-config", str(path), "--dataset", WAITS, *OFFLOADS]
    words += ["--num-gpu-blocks-override", "300", "--max-model-len", "2048"]
    words += ["--kv-offloading-sync-load-budget-bytes", str(1 << 30)]
    prepared = prepare(checked_options(words))
    result = simulate(prepared.lowered, prepared.workload, prepared.simulation)
    finishes = set(result.requests.finish_ps.tolist())
    assert bool(finishes - set(schedule_of(prepared)["end_ps"])) == is_held


SMALL = [*OFFLOADS, "--num-gpu-blocks-override", "700", "--max-model-len", "8192"]
LONG = "synthetic:n=40,rate=30,input=lognormal:200,output=lognormal:60,prefixes=20:tokens=2048"


@pytest.mark.skipif(
    "LLMSIM_ENGINE_PYTHON" not in os.environ,
    reason="LLMSIM_ENGINE_PYTHON names no interpreter with vLLM",
)
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--kv-offloading-sync-load-budget-bytes", "300000000", "--no-kv-offloading-prompt-only"],
        ["--kv-offloading-eviction-policy", "arc", "--kv-offloading-blocks-per-chunk", "4"],
    ],
)
def test_vllm_itself_offloads_as_the_simulation(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["emulate", "vllm", "--engine-python", os.environ["LLMSIM_ENGINE_PYTHON"], "--json"]
    given = ["--cluster-config", str(CLUSTER), "--dataset", LONG, *SMALL, *options]
    assert main([*words, *given, "--run-dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["same_as_run"] is True

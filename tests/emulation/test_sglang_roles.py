"""Prefill and decode servers of SGLang: what waits for KV, and both of them between clients, clock
and links; SGLang itself where there is one.
"""

import asyncio
import ctypes
import itertools
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from emulation.same_bytes import check_same_bytes
from emulation.stand_in_pair import Decode, Prefill
from emulation.test_emulation import CLUSTER, DATASET
from emulation.test_sglang import of_sglang

from llmsim.api.preparation.prepare import Prepared
from llmsim.config.errors import NotYetError
from llmsim.emulation.devices import Devices
from llmsim.emulation.emulate import Asked, Emulated, _Emulation, door_of
from llmsim.emulation.engines.sglang import Sglang
from llmsim.emulation.engines.sglang_api import Generate
from llmsim.emulation.engines.sglang_flags import server_flags
from llmsim.emulation.in_engine.channel import News
from llmsim.emulation.in_engine.clock import ClockPage
from llmsim.emulation.in_engine.sglang import transfers as backend
from llmsim.emulation.in_engine.sglang.transfers import Transfers
from llmsim.emulation.load import Answer, Clients
from llmsim.emulation.outcome import difference
from llmsim.emulation.requests import engine_requests
from llmsim.emulation.servers.doors import Stage
from llmsim.emulation.servers.links import Prompts, PushLinks, outside_network
from llmsim.emulation.servers.of_instances import engine_stages, handover_of
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.scheduling.conformance.model_runner import ModelRunner
from llmsim.simulation.run import simulate

PAIR = "h100_llama31_8b_pd.json"
PAIRS = "h100_llama31_8b_pd_2p1d.json"
RANKS = "single_node_moe_dp_ep_instance.json"


class Kv:
    """A channel and a clock for what has moved."""

    def __init__(self) -> None:
        self.now = 0
        self.news: list[tuple[int, int, str, Any]] = []
        self.said: list[Any] = []

    def now_ps(self) -> int:
        return self.now

    def transfers(self) -> list[tuple[int, int, str, Any]]:
        news, self.news = self.news, []
        return news

    def reserved_row(self, row: int, cached: int) -> None:
        self.said.append((row, cached))

    def sent(self, row: int, tokens: int, metadata: str) -> None:
        self.said.append((row, tokens, metadata))

    def withdrawn(self, row: int) -> None:
        self.said.append((row, "withdrawn"))


def transfers_of(kv: Kv) -> Transfers:
    return Transfers(kv, kv)  # type: ignore[arg-type]


def test_what_lands_at_the_end_of_a_step_is_heard_of_later() -> None:
    kv = Kv()
    one = transfers_of(kv)
    one.runs()
    kv.now, kv.news = 50, [(3, 50, News.LANDED, "m")]
    assert one.landed(3) is None
    kv.now = 51
    assert one.landed(3) == "m"
    assert one.landed(3) is None  # it is told once


def test_who_runs_nothing_hears_of_it_at_once() -> None:
    kv = Kv()
    one = transfers_of(kv)
    kv.now, kv.news = 50, [(3, 50, News.LANDED, "m")]
    assert one.landed(3) is None
    assert one.finds_more()
    one.begins_pass()
    assert one.landed(3) == "m"
    assert one.finds_more(), "what it held is free"
    one.begins_pass()
    assert not one.finds_more()


def test_a_prompt_waits_for_memory_of_the_decode_server() -> None:
    kv = Kv()
    one = transfers_of(kv)
    assert not one.may_send(4)
    kv.now, kv.news = 9, [(4, 9, News.MAY_SEND, 32)]
    assert one.may_send(4)
    assert one.known(4) == 32
    assert not one.may_send(5)


@pytest.mark.parametrize(
    ("what", "asks"), [(News.REFUSED, "is_refused"), (News.DRAINED, "is_drained")]
)
def test_the_other_server_ends_a_transfer(what: str, asks: str) -> None:
    """News that nobody waits for are taken all the same: they would wake the scheduler again."""
    kv = Kv()
    one = transfers_of(kv)
    one.runs()
    kv.now, kv.news = 50, [(3, 50, what, None)]
    assert not getattr(one, asks)(3)
    assert one.finds_more()
    one.begins_pass()
    assert getattr(one, asks)(3)
    kv.now, kv.news = 60, [(8, 60, what, None)]
    assert not one.finds_more()
    assert not kv.news


class _Fake:
    """As much of a fake sender and receiver of SGLang as ours stand on."""

    def __init__(self, mgr: Any, address: str, room: int) -> None:
        self.kv_mgr, self.bootstrap_room = mgr, room
        self.conclude_state: str | None = None
        self.has_sent = self.inited = self.has_sent_metadata = self.abort_notified = False

    def init(self, *_: Any) -> None:
        self.inited = True

    def send_metadata(self, *_: Any) -> None:
        self.has_sent_metadata = True

    def poll(self) -> Any:
        if self.conclude_state is not None:
            return self.conclude_state
        return "Success" if self.has_sent_metadata else "WaitingForInput"

    def abort(self) -> None:
        self.conclude_state = "Failed"


class _Memory:
    """Rows of two metadata buffers."""

    def __init__(self) -> None:
        self.buffers = [ctypes.create_string_buffer(4 * size) for size in (2, 3)]
        self.aux_data_ptrs = [ctypes.addressof(one) for one in self.buffers]
        self.aux_item_lens = [2, 3]

    @property
    def kv_args(self) -> "_Memory":
        return self


@pytest.fixture
def kv(monkeypatch: pytest.MonkeyPatch) -> Kv:
    """The transfers of this process, with SGLang's names of states."""
    names = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success")
    base = types.ModuleType("sglang.srt.disaggregation.base")
    states = types.SimpleNamespace(**{name: name for name in names})
    base.KVPoll = states  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.disaggregation"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    kv = Kv()
    monkeypatch.setattr(backend, "_TRANSFERS", transfers_of(kv))
    return kv


def test_a_senders_states_change_with_the_links(kv: Kv) -> None:
    sender = backend._sender(_Fake)(_Memory(), "localhost:8998", backend.room_of(6))
    assert sender.poll() == "Bootstrapping"
    kv.now, kv.news = 5, [(6, 5, News.MAY_SEND, 16)]
    assert sender.poll() == "WaitingForInput"
    assert sender.pop_decode_prefix_len() == 16
    sender.init(3, 1)
    backend._transfers().computed([(6, 55)])
    sender.send([0, 1], None, 32)
    assert sender.poll() == "WaitingForInput"
    sender.send([2], None, 7)
    first, last = kv.said
    assert first == (6, 32, ""), "the end alone has metadata"
    assert last[:2] == (6, 7) and last[2]
    assert sender.poll() == "Transferring"
    kv.now, kv.news = 70, [(6, 60, News.LANDED, "m")]
    assert sender.poll() == "Success"
    assert sender.poll() == "Success"


def test_what_nobody_wants_is_not_sent(kv: Kv) -> None:
    sender = backend._sender(_Fake)(_Memory(), "localhost:8998", backend.room_of(6))
    sender.init(1, 1)
    kv.now, kv.news = 70, [(6, 60, News.REFUSED, None)]
    sender.send([0], None, 4)
    assert kv.said == []
    assert sender.poll() == "Failed"


def test_a_receiver_keeps_its_memory_until_nothing_comes_any_more(kv: Kv) -> None:
    manager = backend._manager(_Memory)()
    receiver = backend._receiver(_Fake)(manager, "localhost:8998", backend.room_of(6))
    receiver.send_metadata([0], 2, None, 0)
    receiver.abort()
    receiver.ensure_abort_notified(force_arm=True)
    assert kv.said[1:] == [(6, "withdrawn")], "it is told once"
    assert (receiver.poll(), receiver.abort_notified) == ("Failed", True)
    assert not manager.is_abort_release_safe(backend.room_of(6), 1)
    kv.now, kv.news = 90, [(6, 80, News.DRAINED, None)]
    backend._transfers().begins_pass()
    assert manager.is_abort_release_safe(backend.room_of(6), 1)


def test_a_receiver_without_memory_leaves_at_once(kv: Kv) -> None:
    receiver = backend._receiver(_Fake)(_Memory(), "localhost:8998", backend.room_of(6))
    receiver.abort()
    assert (receiver.poll(), receiver.abort_notified, kv.said) == ("Failed", False, [])


def test_what_goes_along_with_the_kv_is_a_row_of_metadata(kv: Kv) -> None:
    there, here = _Memory(), _Memory()
    for buffer, content in zip(there.buffers, (b"..ab....", b"......cde..."), strict=True):
        buffer.raw = content.ljust(len(buffer), b".")
    sender = backend._sender(_Fake)(there, "localhost:8998", backend.room_of(6))
    sender.init(1, 1)
    there.buffers[1].raw = b"...cde......"
    backend._transfers().computed([(6, 3)])
    sender.send([0], None, 3)
    ((_, _, metadata),) = kv.said
    receiver = backend._receiver(_Fake)(here, "localhost:8998", backend.room_of(6))
    assert receiver.poll() == "WaitingForInput"
    receiver.send_metadata([0], 2, None, 17)
    assert kv.said[-1] == (6, 17)
    assert receiver.poll() == "Transferring"
    kv.now, kv.news = 70, [(6, 60, News.LANDED, metadata)]
    assert receiver.poll() == "Success"
    assert here.buffers[0].raw[4:6] + here.buffers[1].raw[6:9] == b"abcde"


def test_flags_say_the_role() -> None:
    options = ["--sglang-reserved-tokens", "77", "--enable-prefix-caching"]
    prefill, decode = of_sglang(*options, cluster=PAIR).lowered.groups
    words = server_flags(prefill, "m")
    assert dict(itertools.pairwise(words))["--disaggregation-mode"] == "prefill"
    assert not {"--num-reserved-decode-tokens", "--disable-radix-cache"} & set(words)
    words = server_flags(decode, "m")
    values = dict(itertools.pairwise(words))
    assert values["--disaggregation-mode"] == "decode"
    assert values["--num-reserved-decode-tokens"] == "77"
    assert "--disaggregation-decode-enable-radix-cache" in words


def test_a_decode_server_decides_itself_to_have_no_prefix_cache() -> None:
    _, decode = of_sglang(cluster=PAIR).lowered.groups
    assert not {"--disable-radix-cache", "--disaggregation-decode-enable-radix-cache"} & set(
        server_flags(decode, "m")
    )


def test_both_servers_know_a_request_by_its_room() -> None:
    prepared = of_sglang(cluster=PAIR)
    requests = engine_requests(prepared.workload, stops=False)
    stages = engine_stages(prepared)
    rooms = {
        Sglang().endpoint(stage.servers[0]).body(one, "m", prompt_alone=False)["bootstrap_room"]
        for stage in stages
        for one in requests[:2]
    }
    assert rooms == {1, 2}, "SGLang takes 0 for none"
    alone = Generate(4096).body(requests[0], "m", prompt_alone=False)
    assert "bootstrap_room" not in alone


@pytest.mark.parametrize(
    ("cluster", "options", "said"),
    [
        (PAIRS, [], r"KV that SGLang's servers push by layer \(--kv-transfer layerwise\)"),
        (PAIR, ["--kv-transfer-mode", "pull"], "KV that SGLang's servers pull"),
    ],
)
def test_pairs_that_are_not_emulated_are_refused(
    cluster: str, options: list[str], said: str
) -> None:
    prepared = of_sglang(*options, cluster=cluster)
    with pytest.raises(NotYetError, match=f"^{said}"):
        Sglang().check(prepared, [])
        engine_stages(prepared)


def test_kv_leaves_when_the_step_has_ended_that_computes_it() -> None:
    """With pipeline stages SGLang sends a chunk as soon as it has launched its step."""
    kv = Kv()
    one = transfers_of(kv)
    kv.news = [(3, 0, News.MAY_SEND, 16)]
    assert one.may_send(3)
    one.sent(3, 48, "")
    one.sent(3, 40, "")
    assert kv.said == []
    one.computed([(3, 70)])
    assert kv.said == [(3, 48, "")]
    one.computed([(5, 100), (3, 104)])
    assert kv.said[1:] == [(3, 40, "")]
    one.sent(3, 0, "m")
    assert kv.said[2:] == [(3, 0, "m")]


def staged_pair(folder: Path, prefill: int, decode: int, *, nodes: int = 1) -> str:
    """A cluster file with a prefill and a decode instance of so many stages, on one node, where
    hidden states and KV share ports, or on two.
    """
    cluster = json.loads(CLUSTER.with_name(PAIR).read_text(encoding="utf-8"))
    (node,) = cluster["nodes"]
    instances = [
        one | {"num_npus": stages, "pp_size": stages}
        for one, stages in zip(node["instances"], (prefill, decode), strict=True)
    ]
    cluster["link_bw"], cluster["link_latency"] = [450, 32], [1000, 1000]
    node |= {"num_instances": 2, "instances": instances}
    if nodes == 2:
        cluster["num_nodes"] = 2
        cluster["nodes"] = [node | {"num_instances": 1, "instances": [one]} for one in instances]
    path = folder / "stages.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    return str(path)


def test_steps_that_meet_kv_have_numbers(tmp_path: Path) -> None:
    """When one ends is known when its hidden states have landed."""
    prepared = of_sglang(cluster=staged_pair(tmp_path, 2, 1))
    Sglang().check(prepared, [])
    prefill, decode = (stage.servers[0] for stage in engine_stages(prepared))
    assert (prefill.runs_rounds, decode.runs_rounds) == (True, False)
    assert (prefill.lockstep, prefill.contended is None) == (None, False)
    apart = of_sglang(cluster=staged_pair(tmp_path, 2, 1, nodes=2))
    assert not any(stage.servers[0].runs_rounds for stage in engine_stages(apart))


async def served(prepared: Prepared, folder: Path) -> Emulated:
    stages = engine_stages(prepared)
    groups = [server.first for stage in stages for server in stage.servers]
    requests = engine_requests(prepared.workload, stops=False)
    devices = [Devices(one, ModelRunner(requests, one.scheduler.speculation)) for one in groups]
    tokens = prepared.workload.input_tokens.tolist()
    senders: list[Clients] = []
    prompts = Prompts(tokens.__getitem__, lambda row: senders[0].passed[row][0])
    keeper = Keeper(
        folder, devices, PushLinks(prepared.lowered, prompts, outside_network(prepared.lowered))
    )
    path, clock = str(keeper.socket_path), ClockPage(str(keeper.clock_path))
    kinds = [
        kind for stage, kind in zip(stages, (Prefill, Decode), strict=True) for _ in stage.servers
    ]
    async with keeper.listening():
        engines = [
            await asyncio.to_thread(kind, path, clock, number) for number, kind in enumerate(kinds)
        ]
        doors = iter(
            door_of(group, engine.port, prepared.workload)
            for engine, group in zip(engines, groups, strict=True)
        )
        each = [Stage([next(doors) for _ in one.servers], one.router) for one in stages]
        endpoint = Sglang().endpoint(stages[0].servers[0])
        clients = Clients(
            keeper,
            prepared.workload,
            requests,
            "m",
            each,
            endpoint,
            handover=handover_of(prepared.lowered),
        )
        senders.append(clients)
        await asyncio.wait_for(clients.run(), 60)
        keeper.close()
        for engine in engines:
            await asyncio.to_thread(engine.close)
    asked = Asked(
        [str(row) for row in range(len(requests))],
        tokens,
        prepared.workload.output_tokens.tolist(),
    )
    schedules = [one.schedule for one in devices]
    return Emulated("stand-in", asked, clients.answers, schedules, 0, 0, 1.0, 0.0, 1.0, (), None)


LOAD = "synthetic:n=24,rate=400,input=uniform:200-900,output=uniform:1-9,seed=3"
NO_OVERLAP = ["--no-sglang-overlap", "--cost-source", "roofline", "--kv-transfer", "chunked"]


LOR = ["--request-routing-policy", "LOR", "--decode-routing-policy", "LOR"]


def two_pairs(folder: Path) -> str:
    """A cluster file with two prefill and two decode instances."""
    cluster = json.loads(CLUSTER.with_name(PAIR).read_text(encoding="utf-8"))
    node = cluster["nodes"][0]
    prefill, decode = node["instances"]
    node |= {"num_instances": 4, "instances": [prefill, prefill, decode, decode]}
    path = folder / "pairs.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    return str(path)


def ranks_by_role(folder: Path, ranks: tuple[int, int], nodes: int = 2) -> str:
    """A cluster file with so many data-parallel ranks that prefill, and that decode. On nodes of
    their own, KV passes the network cards, and the ranks' collectives do not; on one, both pass the
    ports to its switch.
    """
    cluster = json.loads(CLUSTER.with_name(RANKS).read_text(encoding="utf-8"))
    (node,) = cluster["nodes"]
    rank = node["instances"][0] | {"num_npus": 1, "tp_size": 1}
    cluster["nodes"] = [
        node
        | {
            "num_instances": number,
            "instances": [rank | {"pd_type": role, "dp_group": role, "ep_size": number}] * number,
        }
        for role, number in zip(("prefill", "decode"), ranks, strict=True)
    ]
    cluster |= {"num_nodes": 2, "link_bw": [450, 450, 50], "link_latency": [1000, 1000, 2000]}
    if nodes == 1:
        instances = [one for node in cluster["nodes"] for one in node["instances"]]
        cluster["nodes"] = [node | {"num_instances": len(instances), "instances": instances}]
        cluster |= {"num_nodes": 1, "link_bw": [450, 64], "link_latency": [1000, 1000]}
    path = folder / "ranks.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("ranks", [(2, 2), (2, 1), (1, 2)])
def test_ranks_of_a_role_are_one_server(ranks: tuple[int, int], tmp_path: Path) -> None:
    prepared = of_sglang(*LOR, cluster=ranks_by_role(tmp_path, ranks))
    Sglang().check(prepared, [])
    stages = engine_stages(prepared)
    servers = [one for stage in stages for one in stage.servers]
    assert [len(one.groups) for one in servers] == list(ranks)
    assert [one.lockstep is not None for one in servers] == [number > 1 for number in ranks]
    for one, mode in zip(servers, ("prefill", "decode"), strict=True):
        words = server_flags(one.first, "m", len(one.groups))
        assert dict(itertools.pairwise(words))["--disaggregation-mode"] == mode
        assert ("--enable-dp-attention" in words) == (len(one.groups) > 1)


def test_a_routers_ranks_are_those_of_all_servers(tmp_path: Path) -> None:
    prepared = of_sglang(cluster=ranks_by_role(tmp_path, (2, 1)))
    with pytest.raises(NotYetError, match=r"^--request-routing-policy"):
        engine_stages(prepared)


@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        (PAIR, []),
        (PAIRS, ["--request-routing-policy", "RR"]),
        (PAIRS, LOR),
        ("", LOR),
    ],
)
def test_a_pair_between_clients_and_links_is_the_simulation(
    cluster: str, options: list[str], tmp_path: Path
) -> None:
    """The stand-ins schedule as SGLang does where memory is plenty."""
    cluster = cluster or two_pairs(tmp_path)
    prepared = of_sglang("--dataset", LOAD, *NO_OVERLAP, *options, cluster=cluster)
    outcome = asyncio.run(served(prepared, tmp_path))
    assert difference(outcome, prepared) == ""
    run = simulate(prepared.lowered, prepared.workload, prepared.simulation).requests
    for row, answer in outcome.answers.items():
        assert answer.token_ps[0] == run.first_token_ps[row]
        assert answer.token_ps[-1] == run.finish_ps[row]
        assert len(answer.token_ps) == run.emitted_tokens[row]


SMALL = ["--block-size", "16", "--num-gpu-blocks-override", "100", "--sglang-reserved-tokens", "8"]
SMALL += ["--dataset", "synthetic:n=20,rate=40,input=uniform:20-400,output=fixed:150,seed=4"]
"""The pool of the decode server is too small for all."""


@pytest.mark.skipif(
    "LLMSIM_SGLANG_PYTHON" not in os.environ,
    reason="LLMSIM_SGLANG_PYTHON names no interpreter with SGLang",
)
@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        (PAIR, ["--max-num-scheduled-tokens", "256"]),
        (
            PAIR,
            ["--no-sglang-overlap", *SMALL],
        ),
        ("", LOR),
    ],
)
def test_sglangs_pairs_are_the_simulation(
    cluster: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two emulations give the same bytes."""
    words = ["emulate", "sglang", "--engine-python", os.environ["LLMSIM_SGLANG_PYTHON"]]
    cluster = str(CLUSTER.with_name(cluster)) if cluster else two_pairs(tmp_path)
    given = ["--cluster-config", cluster, *options]
    given += [] if "--dataset" in options else ["--dataset", DATASET]
    check_same_bytes([*words, *given], tmp_path, capsys)


@pytest.mark.skipif(
    "LLMSIM_SGLANG_PYTHON" not in os.environ,
    reason="LLMSIM_SGLANG_PYTHON names no interpreter with SGLang",
)
@pytest.mark.parametrize(
    ("ranks", "nodes", "options"),
    [
        ((2, 2), 2, LOR),
        ((2, 1), 2, ["--request-routing-policy", "RR", "--no-sglang-overlap", *SMALL]),
        ((1, 2), 2, ["--decode-routing-policy", "LOR", *SMALL]),
        ((2, 2), 1, LOR),
        ((2, 1), 1, ["--request-routing-policy", "RR", "--no-sglang-overlap", *SMALL]),
        ((1, 2), 1, ["--decode-routing-policy", "LOR", *SMALL]),
    ],
)
def test_ranks_of_sglangs_pairs_are_the_simulation(
    ranks: tuple[int, int],
    nodes: int,
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["emulate", "sglang", "--engine-python", os.environ["LLMSIM_SGLANG_PYTHON"]]
    given = ["--cluster-config", ranks_by_role(tmp_path, ranks, nodes), *options]
    given += [] if "--dataset" in options else ["--dataset", DATASET]
    check_same_bytes([*words, *given], tmp_path, capsys)


LONG = "synthetic:n=30,rate=20,input=lognormal:900,output=lognormal:20,seed=5"
"""Prompts that are computed in chunks."""


@pytest.mark.skipif(
    "LLMSIM_SGLANG_PYTHON" not in os.environ,
    reason="LLMSIM_SGLANG_PYTHON names no interpreter with SGLang",
)
@pytest.mark.parametrize(
    ("prefill", "decode", "nodes", "options"),
    [
        (2, 1, 2, ["--dataset", LONG, "--max-num-scheduled-tokens", "256"]),
        (2, 1, 1, ["--dataset", LONG, "--max-num-scheduled-tokens", "512"]),
        (1, 2, 1, ["--dataset", LONG]),
        (2, 4, 1, SMALL),
        (2, 2, 1, ["--dataset", LONG, "--request-timeout", "0.7"]),
    ],
)
def test_stages_of_sglangs_pairs_are_the_simulation(
    prefill: int,
    decode: int,
    nodes: int,
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["emulate", "sglang", "--engine-python", os.environ["LLMSIM_SGLANG_PYTHON"]]
    cluster = staged_pair(tmp_path, prefill, decode, nodes=nodes)
    check_same_bytes([*words, "--cluster-config", cluster, *options], tmp_path, capsys)


def test_what_engines_run_behind_the_last_answer_does_not_count() -> None:
    """SGLang's decode servers compute a step more, which may end before somebody looks."""
    one = _Emulation.__new__(_Emulation)
    one._relay = None
    clock = types.SimpleNamespace(now_ps=99)
    one._keeper = types.SimpleNamespace(time=clock)  # type: ignore[assignment]
    answers = {0: Answer(5, [20, 40]), 1: Answer(30)}
    assert one._ended_ps(answers, goes_on=False) == 40
    assert one._ended_ps(answers | {2: Answer(60, refused="no")}, goes_on=False) == 60
    assert one._ended_ps(answers, goes_on=True) == 99
    answers[1].gave_up = True
    assert one._ended_ps(answers, goes_on=False) == 99

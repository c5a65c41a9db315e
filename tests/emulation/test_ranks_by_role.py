"""Prefill and decode servers whose data-parallel ranks run in lock-step."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from emulation.same_bytes import check_same_bytes
from emulation.test_emulation import CLUSTER, EAGLE, NGRAM
from emulation.test_lockstep import Answers, items

from llmsim.api.preparation.prepare import Prepared, prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import NotYetError
from llmsim.emulation.engines.vllm import Vllm
from llmsim.emulation.lockstep import RankDevices, Rounds
from llmsim.emulation.servers.of_instances import EngineServer, engine_stages
from llmsim.emulation.timekeeping.coordinators import Coordinators
from llmsim.emulation.timekeeping.kv_moves import KvMoves
from llmsim.emulation.timekeeping.resting import Resting
from llmsim.emulation.timekeeping.timekeeper import Actor, Timekeeper

RANKS = "rtxpro6000_qwen3_30b_a3b_dp2_ep2.json"
LOAD = "synthetic:n=12,rate=20,input=uniform:20-900,output=uniform:2-20,prefixes=3:tokens=64,seed=3"
RR = ["--request-routing-policy", "RR", "--decode-routing-policy", "RR"]
BALANCED = ["--request-routing-policy", "VLLM_DP", "--decode-routing-policy", "VLLM_DP"]


def cluster_of(folder: Path, prefill: list[int], decode: list[int]) -> str:
    """A node of prefill and a node of decode servers with so many ranks each."""
    cluster = json.loads(CLUSTER.with_name(RANKS).read_text(encoding="utf-8"))
    (node,) = cluster["nodes"]
    rank = {name: value for name, value in node["instances"][0].items() if name != "dp_group"}

    def side(role: str, sizes: list[int]) -> dict[str, Any]:
        instances: list[dict[str, Any]] = [
            rank
            | {"pd_type": role, "ep_size": size}
            | ({"dp_group": f"{role} {number}"} if size > 1 else {})
            for number, size in enumerate(sizes)
            for _ in range(size)
        ]
        return {**node, "instances": instances, "num_instances": len(instances)}

    cluster |= {"nodes": [side("prefill", prefill), side("decode", decode)], "num_nodes": 2}
    cluster["link_bw"], cluster["link_latency"] = [64, 64, 12.5], [1000, 1000, 2000]
    path = folder / f"p{prefill}d{decode}.json".replace(" ", "")
    path.write_text(json.dumps(cluster), encoding="utf-8")
    return str(path)


def given(folder: Path, prefill: list[int], decode: list[int], *options: str) -> list[str]:
    path = cluster_of(folder, prefill, decode)
    words = ["--cluster-config", path, "--dataset", LOAD, "--cost-source", "roofline"]
    return [*words, *options]


def prepared_ranks(folder: Path, prefill: list[int], decode: list[int], *options: str) -> Prepared:
    return prepare(checked_options(given(folder, prefill, decode, *options)))


def servers_of(prepared: Prepared) -> list[list[EngineServer]]:
    return [list(stage.servers) for stage in engine_stages(prepared)]


def test_ranks_of_a_role_are_a_server(tmp_path: Path) -> None:
    prepared = prepared_ranks(tmp_path, [2, 1], [1, 2], *RR, "--engine-profile", "vllm-0.33")
    stages = servers_of(prepared)
    numbers = [[[one.info.index for one in each.groups] for each in stage] for stage in stages]
    assert numbers == [[[0, 1], [2]], [[3], [4, 5]]]
    in_lockstep = [[each.lockstep is not None for each in stage] for stage in stages]
    assert in_lockstep == [[True, False], [False, True]]
    roles = [[each.connector["extra"]["remote"] for each in stage] for stage in stages]  # type: ignore[index]
    assert roles == [[False, False], [True, True]]
    vllm = Vllm()
    words = [vllm.release_options("0.33.0", each) for stage in stages for each in stage]
    assert words == [["--dp-sync-interval", "16"], [], [], ["--dp-sync-interval", "16"]]


def test_each_server_reads_a_model_of_its_own(tmp_path: Path) -> None:
    """Ranks have experts, an instance alone has none; drafters are dense."""
    prepared = prepared_ranks(tmp_path, [2], [1], *RR)
    (ranks,), (alone,) = servers_of(prepared)
    experts: list[int | None] = []
    for server in (ranks, alone):
        folder = tmp_path / str(len(experts))
        folder.mkdir()
        Vllm().command(Path("python"), server, folder, 1)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        experts.append(config.get("num_local_experts"))
    assert experts == [128, None]
    drafter = json.loads((tmp_path / "0" / "drafter" / "config.json").read_text(encoding="utf-8"))
    assert "num_local_experts" not in drafter


def test_the_balancer_of_a_server_chooses_its_ranks(tmp_path: Path) -> None:
    (prefill,), (decode,) = servers_of(prepared_ranks(tmp_path, [2], [2], *BALANCED))
    assert (prefill.balances, decode.balances) == (True, True)
    (prefill,), (decode,) = servers_of(prepared_ranks(tmp_path, [2], [1], *BALANCED))
    assert (prefill.balances, decode.balances) == (True, False)
    (prefill,), _ = servers_of(prepared_ranks(tmp_path, [1, 1], [2], *BALANCED))
    assert len(prefill.groups) == 2 and prefill.lockstep is None


@pytest.mark.parametrize(
    ("prefill", "options", "said"),
    [
        ([2, 2], [], "several dp_group of one pd_type behind --request-routing-policy VLLM_DP"),
        ([2, 1], [], "several dp_group of one pd_type behind --request-routing-policy VLLM_DP"),
        ([2], ["--kv-transfer-mode", "push"], "VLLM_DP where KV is pushed"),
    ],
)
def test_what_no_balancer_stands_for_is_refused(
    prefill: list[int], options: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(NotYetError, match=said):
        engine_stages(prepared_ranks(tmp_path, prefill, [2], *BALANCED, *options))


def decode_ranks(folder: Path, *options: str) -> list[RankDevices]:
    _, (server,) = servers_of(prepared_ranks(folder, [1], [2], *RR, *options))
    assert server.lockstep is not None
    rounds = Rounds(server.groups, server.lockstep.expanded)
    return [RankDevices(one, Answers(), rounds, m) for m, one in enumerate(server.groups)]


def test_all_ranks_wait_for_reads_that_one_of_them_posts(tmp_path: Path) -> None:
    """The rank's workers look for KV when they have posted, and the others at the launch."""
    ends, posts_ps = [], 50 * 10**9
    for posted_ps in (0, posts_ps):
        first, second = decode_ranks(tmp_path)
        first.posts_reads(posted_ps, 0)
        first.step(items(0, 100, 0), 0)
        assert first.looks_ps(0) is None, "the other has still to join"
        second.step(items(1, 100, 0), 7)
        assert (first.looks_ps(0), second.looks_ps(0)) == (max(7 + posted_ps, 7), 7)
        assert first.end_ps(0) == second.end_ps(0)
        ends.append(first.end_ps(0) or 0)
    assert ends[0] < posts_ps < ends[1]


def test_ranks_take_time_to_draft(tmp_path: Path) -> None:
    ends = []
    for options in ([], ["--speculative-config", EAGLE]):
        first, second = decode_ranks(tmp_path, *options)
        first.step(items(0, 100, 0), 0)
        second.dummy(0)
        ends.append(first.end_ps(0) or 0)
    assert 0 < ends[0] < ends[1]


class Said:
    """What actors are answered."""

    def __init__(self) -> None:
        self.answers: list[tuple[Actor, Any]] = []

    def __call__(self, actor: Actor, answer: Any) -> None:
        self.answers.append((actor, answer))


def test_a_coordinator_hears_of_its_own_api_server() -> None:
    """It wakes its own ranks alone."""
    time, said = Timekeeper(), Said()
    coordinators = Coordinators(time, [range(2), range(3, 7)], said)
    first, second = coordinators.join([0, 11]), coordinators.join([3, 12])
    for one in (first, second):
        coordinators.hear(one, "publishes", [])
    coordinators.hear_api_server("knows", 3)
    coordinators.hear_api_server("knows", 0)
    assert said.answers[2:] == [(second, "known"), (first, "known")]
    coordinators.hear(second, "wait", [1, 10, 0, 1])
    assert time.waves_under_way == 4
    assert (coordinators.waits(first), coordinators.waits(second)) == (False, True)
    with pytest.raises(ValueError, match="not under the clock"):
        coordinators.hear_api_server("knows", 0)


class Landing:
    """Links over which two prompts land, one after the other."""

    next_ps = None

    def __init__(self) -> None:
        self.rows = [1]

    def landed(self, now_ps: int) -> list[tuple[int, Any]]:
        rows, self.rows = self.rows, []
        return [(0, row) for row in rows]


def test_a_call_without_a_batch_leaves_a_step_what_that_has_found() -> None:
    time, said, links = Timekeeper(), Said(), Landing()
    moves = KvMoves(time, links, said, Resting(time, said), {})  # type: ignore[arg-type]
    core = time.join("engine core 0")
    moves.joins(core, 0)
    time.passes(10)
    moves.land()
    links.rows = [2]
    time.passes(30)
    moves.land()
    moves.hear(core, "moved", [None, 20])
    moves.hear(core, "moved", [20, -1])
    moves.hear(core, "moved", [None, -1])
    assert [answer for _, answer in said.answers] == [[2], [1], []]


ENGINE = "LLMSIM_ENGINE_PYTHON"
PRESSED = ["--num-gpu-blocks-override", "300", "--max-model-len", "2048"]


@pytest.mark.skipif(ENGINE not in os.environ, reason=f"{ENGINE} names no interpreter with vLLM")
@pytest.mark.parametrize(
    ("prefill", "decode", "options"),
    [
        ([2], [1], RR),
        ([1], [2], [*RR, *PRESSED, "--no-async-scheduling"]),
        ([2, 1], [1, 2], [*RR, "--speculative-config", NGRAM]),
        ([2], [2], [*RR, "--kv-transfer", "chunked", "--max-num-batched-tokens", "512"]),
        ([2], [2], BALANCED),
    ],
)
def test_vllms_ranks_by_role_are_the_simulation(
    prefill: list[int],
    decode: list[int],
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["emulate", "vllm", "--engine-python", os.environ[ENGINE]]
    check_same_bytes([*words, *given(tmp_path, prefill, decode, *options)], tmp_path, capsys)

"""Clients, clock and devices around an engine: the stand-in here, vLLM's own server where there is
one.
"""

import asyncio
import json
import os
from pathlib import Path

import pytest
from emulation.stand_in_engine import StandIn

from llmsim.api.preparation.prepare import Prepared, prepare
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import NotYetError
from llmsim.emulation.devices import Devices
from llmsim.emulation.emulate import Asked, Emulated, door_of
from llmsim.emulation.engines.engine import Endpoint
from llmsim.emulation.in_engine.channel import row_of
from llmsim.emulation.load import Clients
from llmsim.emulation.outcome import client_figures, difference, write_folder
from llmsim.emulation.requests import check_workload, engine_requests
from llmsim.emulation.servers.doors import Door, Stage
from llmsim.emulation.servers.of_instances import Handover, engine_stages, handover_of
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.scheduling.conformance.model_runner import ModelRunner
from llmsim.validation.logs.reader import read_recording

CLUSTER = Path(__file__).parents[2] / "cluster_config" / "h100_llama31_8b.json"


def prepared_run(dataset: str, *options: str) -> Prepared:
    words = ["--cluster-config", str(CLUSTER), "--dataset", dataset, "--cost-source", "roofline"]
    return prepare(checked_options([*words, "--no-async-scheduling", *options]))


async def answered(
    prepared: Prepared, folder: Path, endpoint: Endpoint | None = None
) -> tuple[Clients, list[Devices], Keeper]:
    (stage,) = engine_stages(prepared)
    groups = [server.first for server in stage.servers]
    requests = engine_requests(prepared.workload, stops=False)
    devices = [Devices(one, ModelRunner(requests, one.scheduler.speculation)) for one in groups]
    keeper = Keeper(folder, devices)
    path = str(keeper.socket_path)
    async with keeper.listening():
        numbers = range(len(groups))
        engines = [await asyncio.to_thread(StandIn, path, 0, number) for number in numbers]
        doors = [
            door_of(group, engine.port, prepared.workload)
            for engine, group in zip(engines, groups, strict=True)
        ]
        stages, loop = [Stage(doors, stage.router)], prepared.simulation.clients
        clients = Clients(keeper, prepared.workload, requests, "m", stages, endpoint, loop)
        await asyncio.wait_for(clients.run(), 60)
        keeper.close()
        for engine in engines:
            await asyncio.to_thread(engine.close)
    return clients, devices, keeper


def emulated(prepared: Prepared, folder: Path, endpoint: Endpoint | None = None) -> Emulated:
    clients, devices, keeper = asyncio.run(answered(prepared, folder, endpoint))
    time = keeper.time
    return Emulated(
        version="stand-in",
        asked=Asked(
            [str(row) for row in range(len(prepared.workload))],
            prepared.workload.input_tokens.tolist(),
            prepared.workload.output_tokens.tolist(),
        ),
        answers=clients.answers,
        schedules=[one.schedule for one in devices],
        virtual_ps=time.now_ps,
        jumps=time.jumps,
        wall_s=1.0,
        start_s=0.0,
        cpu_s=1.0,
        reasons=(),
        failure=None,
    )


DATASET = "synthetic:n=12,rate=20,input=uniform:20-90,output=uniform:2-9,seed=3"


def test_clients_see_what_the_simulation_says(tmp_path: Path) -> None:
    """The stand-in schedules as vLLM does where nothing has to wait: every step is the run's."""
    prepared = prepared_run(DATASET)
    outcome = emulated(prepared, tmp_path)
    assert difference(outcome, prepared) == ""
    figures = client_figures(outcome)
    assert (figures["completed"], figures["failed"]) == (12, 0)
    write_folder(tmp_path / "run", outcome, "m", figures, {"engine": "stand-in"})
    folder = read_recording(tmp_path / "run")
    client = read_recording(tmp_path / "run" / "client.json")
    assert folder.ttft_s == pytest.approx(client.ttft_s)
    assert folder.latency_s == pytest.approx(client.latency_s)


def test_two_emulations_are_the_same(tmp_path: Path) -> None:
    prepared = prepared_run(DATASET)
    one, other = (tmp_path / "one", tmp_path / "other")
    one.mkdir()
    other.mkdir()
    assert emulated(prepared, one).answers == emulated(prepared, other).answers


def test_calls_of_a_session_follow_each_other(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    calls = [
        {"input_toks": 40, "output_toks": 3, "tool_duration_ns": 5_000_000},
        {"input_toks": 60, "output_toks": 4},
    ]
    trace.write_text(
        json.dumps({"session_id": "a", "arrival_time_ns": 0, "sub_requests": calls}) + "\n"
    )
    prepared = prepared_run(str(trace))
    outcome = emulated(prepared, tmp_path)
    assert difference(outcome, prepared) == ""
    first, second = outcome.answers[0], outcome.answers[1]
    assert second.arrival_ps == first.token_ps[-1] + 5_000_000_000


def test_what_the_server_refuses_is_kept(tmp_path: Path) -> None:
    prepared = prepared_run("synthetic:n=2,rate=1,input=fixed:2000,output=fixed:3,seed=1")
    outcome = emulated(prepared, tmp_path)
    assert "too long" in outcome.answers[0].refused
    assert client_figures(outcome)["failed"] == 2


def test_a_difference_names_step_and_request(tmp_path: Path) -> None:
    prepared = prepared_run(DATASET)
    outcome = emulated(prepared, tmp_path)
    row, tokens, before = outcome.schedules[0].items[3][0]
    outcome.schedules[0].items[3][0] = (row, tokens + 1, before)
    said = difference(outcome, prepared)
    assert said.startswith("step 3 at ")
    assert f"the engine computes {tokens + 1} tokens of row {row} after {before}" in said


def test_names_of_requests() -> None:
    assert row_of("cmpl-000000012-0-1a2b3c4d") == 12
    with pytest.raises(ValueError, match="no client sent"):
        row_of("chatcmpl-x")


def test_what_is_not_emulated_is_refused() -> None:
    prepared = prepared_run(DATASET, "--request-timeout", "2")
    check_workload(prepared.workload, hands_over=False)
    with pytest.raises(NotYetError, match="--request-timeout"):
        check_workload(prepared.workload, hands_over=True, stays=True)


NGRAM = '{"method":"ngram","num_speculative_tokens":3,"acceptance_rate":0.6}'
EAGLE = '{"method":"eagle","num_speculative_tokens":3,"acceptance_rate":0.6}'
PULLS = ["--kv-transfer", "whole", "--kv-transfer-mode", "pull"]


def of_cluster(name: str, *options: str) -> Prepared:
    dataset = DATASET + ",model=Qwen/Qwen3-8B" * ("mixed" in name)
    words = ["--cluster-config", str(CLUSTER.with_name(name)), "--dataset", dataset, *options]
    return prepare(checked_options(words))


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("h100_multi_instance.json", [], "several instances behind the router LOAD"),
        (
            "h100_multi_instance.json",
            ["--request-routing-policy", "VLLM_DP:clients=2"],
            "several instances behind the router VLLM_DP:clients=2",
        ),
        ("h100_mixed_models.json", ["--request-routing-policy", "VLLM_DP"], "several models"),
        (
            "h100_llama31_8b_pd_2p1d.json",
            PULLS,
            "--request-routing-policy LOAD: in front of several instances",
        ),
        (
            "h100_mixed_models.json",
            ["--request-routing-policy", "RR"],
            "several models",
        ),
        (
            "h100_llama31_8b_pd.json",
            ["--kv-transfer", "layerwise"],
            r"KV that moves within a step \(--kv-transfer layerwise\)",
        ),
        ("rtxpro6000_qwen3_30b_a3b_dp2_ep2.json", [], "--request-routing-policy LOAD"),
    ],
)
def test_what_no_servers_stand_for_is_refused(name: str, options: list[str], said: str) -> None:
    with pytest.raises(NotYetError, match=said):
        engine_stages(of_cluster(name, *options))


def places(name: str, *options: str) -> list[list[list[int]]]:
    """The numbers of the groups of each server of each stage."""
    return [
        [[group.info.index for group in server.groups] for server in stage.servers]
        for stage in engine_stages(of_cluster(name, *options))
    ]


def test_instances_are_ranks_of_a_server_or_servers() -> None:
    several = "h100_multi_instance.json"
    assert places(several, "--request-routing-policy", "VLLM_DP") == [[[0, 1]]]
    assert places(several, "--request-routing-policy", "LOR") == [[[0], [1]]]
    apart = "h100_llama31_8b_pd_2p1d.json"
    assert places(apart, *PULLS, "--request-routing-policy", "RR") == [[[0], [1]], [[2]]]
    (ranks,) = engine_stages(of_cluster(several, "--request-routing-policy", "VLLM_DP"))
    assert ranks.servers[0].connector is None


@pytest.mark.parametrize(
    ("options", "writes", "handover"),
    [
        (PULLS, "", Handover.PULLED),
        (["--kv-transfer-mode", "push"], "prompts", Handover.WRITTEN),
        (["--kv-transfer", "chunked"], "chunks", Handover.WRITTEN),
    ],
)
def test_connectors_of_a_pair(options: list[str], writes: str, handover: Handover) -> None:
    prepared = of_cluster("h100_llama31_8b_pd.json", *options)
    prefill, decode = (stage.servers[0].connector for stage in engine_stages(prepared))
    extra = {"remote": False, "keeps_finished": True, "all_but_last": False, "writes": writes}
    assert prefill == {"kind": "handover", "extra": extra}
    extra = {"remote": True, "keeps_finished": False, "all_but_last": False, "writes": ""}
    assert decode == {"kind": "handover", "extra": extra}
    assert handover_of(prepared.lowered) is handover


@pytest.mark.parametrize("method", ["ngram", "eagle"])
def test_servers_of_a_pair_draft(method: str) -> None:
    drafts = {"method": method, "num_speculative_tokens": 3, "acceptance_rate": 0.6}
    options = [*PULLS, "--speculative-config", json.dumps(drafts)]
    stages = engine_stages(of_cluster("h100_llama31_8b_pd.json", *options))
    speculations = [stage.servers[0].first.engine.speculation for stage in stages]
    assert [one.method for one in speculations if one is not None] == [method, method]


@pytest.mark.parametrize("router", ["RR", "LOR"])
def test_requests_go_to_the_servers_that_the_run_chooses(router: str, tmp_path: Path) -> None:
    """Each server's steps are those of its instance, and so are the ties between them."""
    options = ["--cost-source", "roofline", "--no-async-scheduling"]
    prepared = of_cluster("h100_multi_instance.json", "--request-routing-policy", router, *options)
    outcome = emulated(prepared, tmp_path)
    assert difference(outcome, prepared) == ""
    assert all(len(schedule.items) > 3 for schedule in outcome.schedules)


def test_a_door_in_turn_or_with_the_fewest_outstanding() -> None:
    in_turn = Stage([Door(1, []), Door(2, []), Door(3, [])])
    assert [in_turn.choose() for _ in range(5)] == [0, 1, 2, 0, 1]
    fewest = Stage([Door(1, []), Door(2, [])], "LOR")
    assert [fewest.choose() for _ in range(3)] == [0, 1, 0]
    fewest.left(0)
    fewest.left(0)
    assert [fewest.choose() for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tgi"], 'ENGINE is "tgi"; this version emulates vllm and sglang'),
        (["vllm", "--engine-python", "/dev/null"], "is no Python interpreter that runs"),
        (["vllm", "--engine-python", "/bin/true"], "runs, but is no Python interpreter; name one"),
        (["vllm", "--engine-args", "'"], "--engine-args"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*words, "--cluster-config", str(CLUSTER), "--dataset", DATASET]
    assert main(["emulate", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.skipif(
    "LLMSIM_ENGINE_PYTHON" not in os.environ,
    reason="LLMSIM_ENGINE_PYTHON names no interpreter with vLLM",
)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("h100_llama31_8b.json", []),
        ("h100_llama31_8b.json", ["--speculative-config", NGRAM]),
        ("h100_llama31_8b.json", ["--speculative-config", EAGLE]),
        ("h100_llama31_8b.json", ["--request-timeout", "0.03", "--max-concurrency", "4"]),
        ("h100_llama31_8b.json", ["--endpoint", "chat"]),
        ("h100_llama31_70b_tp4_pp2.json", []),
        ("h100_multi_instance.json", ["--request-routing-policy", "VLLM_DP"]),
        ("h100_multi_instance.json", ["--request-routing-policy", "RR"]),
        ("h100_llama31_8b_pd.json", []),
        ("h100_llama31_8b_pd_2p1d.json", [*PULLS, "--request-routing-policy", "LOR"]),
    ],
)
def test_vllm_itself_is_the_simulation(
    name: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["emulate", "vllm", "--engine-python", os.environ["LLMSIM_ENGINE_PYTHON"], "--json"]
    given = ["--cluster-config", str(CLUSTER.with_name(name)), "--dataset", DATASET]
    assert main([*words, *given, *options, "--run-dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["same_as_run"] is True

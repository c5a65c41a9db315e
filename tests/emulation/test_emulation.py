"""Clients, clock and devices around an engine: the stand-in here, vLLM's own server where there is
one.
"""

import asyncio
import json
import os
from pathlib import Path

import pytest
from emulation.stand_in_engine import StandIn

from llmsim.api.prepare import Prepared, prepare
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import NotYetError
from llmsim.emulation.devices import Devices
from llmsim.emulation.emulate import Asked, Emulated
from llmsim.emulation.in_engine.channel import row_of
from llmsim.emulation.keeper import Keeper
from llmsim.emulation.load import Clients, Stage
from llmsim.emulation.outcome import client_figures, difference, write_folder
from llmsim.emulation.requests import check_workload, engine_requests
from llmsim.emulation.servers import engine_servers
from llmsim.scheduling.conformance.model_runner import ModelRunner
from llmsim.validation.logs.reader import read_recording

CLUSTER = Path(__file__).parents[2] / "cluster_config" / "h100_llama31_8b.json"


def prepared_run(dataset: str, *options: str) -> Prepared:
    words = ["--cluster-config", str(CLUSTER), "--dataset", dataset, "--cost-source", "roofline"]
    return prepare(checked_options([*words, "--no-async-scheduling", *options]))


async def answered(prepared: Prepared, folder: Path) -> tuple[Clients, Devices, Keeper]:
    group = engine_servers(prepared)[0].first
    requests = engine_requests(prepared.workload, stops=False)
    devices = Devices(group, ModelRunner(requests, group.scheduler.speculation))
    keeper = Keeper(folder, [devices])
    listener = await keeper.listen()
    engine = await asyncio.to_thread(StandIn, str(keeper.socket_path))
    api_ps = [group.native.api_latency_ps] * len(requests)
    clients = Clients(keeper, prepared.workload, requests, "m", [Stage(engine.port, api_ps)])
    await asyncio.wait_for(clients.run(), 60)
    await asyncio.to_thread(engine.close)
    listener.close()
    return clients, devices, keeper


def emulated(prepared: Prepared, folder: Path) -> Emulated:
    clients, devices, keeper = asyncio.run(answered(prepared, folder))
    time = keeper.time
    return Emulated(
        version="stand-in",
        asked=Asked(
            [str(row) for row in range(len(prepared.workload))],
            prepared.workload.input_tokens.tolist(),
            prepared.workload.output_tokens.tolist(),
        ),
        answers=clients.answers,
        schedules=[devices.schedule],
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
    prepared = prepared_run(DATASET, "--max-concurrency", "2")
    with pytest.raises(NotYetError, match="--max-concurrency"):
        check_workload(prepared.workload, prepared.simulation.clients)


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
        ("h100_llama31_8b_pd_2p1d.json", [], "more than one instance each"),
        ("h100_llama31_8b_pd.json", ["--kv-transfer-mode", "push"], "KV that is pushed"),
        ("rtxpro6000_qwen3_30b_a3b_dp2_ep2.json", [], "in lock-step"),
    ],
)
def test_what_no_servers_stand_for_is_refused(name: str, options: list[str], said: str) -> None:
    with pytest.raises(NotYetError, match=said):
        engine_servers(of_cluster(name, *options))


def test_instances_are_ranks_of_a_server_or_two_servers() -> None:
    ranks = engine_servers(
        of_cluster("h100_multi_instance.json", "--request-routing-policy", "VLLM_DP")
    )
    assert [[group.info.index for group in one.groups] for one in ranks] == [[0, 1]]
    assert ranks[0].connector is None
    prefill, decode = engine_servers(of_cluster("h100_llama31_8b_pd.json"))
    assert prefill.connector == {"remote": False, "keeps_finished": True, "all_but_last": False}
    assert decode.connector == {"remote": True, "keeps_finished": False, "all_but_last": False}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tgi"], 'ENGINE is "tgi"; this version emulates vllm'),
        (["vllm", "--engine-python", "/dev/null"], "is no Python interpreter that runs"),
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
    "name", ["h100_llama31_8b.json", "h100_multi_instance.json", "h100_llama31_8b_pd.json"]
)
def test_vllm_itself_is_the_simulation(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["emulate", "vllm", "--engine-python", os.environ["LLMSIM_ENGINE_PYTHON"], "--json"]
    given = ["--cluster-config", str(CLUSTER.with_name(name)), "--dataset", DATASET]
    given += ["--engine-profile", "vllm-0.33", "--request-routing-policy", "VLLM_DP"]
    assert main([*words, *given, "--run-dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["same_as_run"] is True

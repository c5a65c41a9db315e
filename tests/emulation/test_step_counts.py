"""Adapters and encoder inputs of a trace: what their steps take, and what servers are told."""

import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from emulation.test_devices import schedule_of
from emulation.test_emulation import CLUSTER

from llmsim.api.preparation.prepare import Prepared, prepare
from llmsim.cli import main
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import NotYetError
from llmsim.emulation.devices import Devices
from llmsim.emulation.engines.vllm import Completions, TokensWithImages, Vllm
from llmsim.emulation.requests import check_workload, engine_requests
from llmsim.emulation.servers.of_instances import EngineServer, engine_stages
from llmsim.emulation.step_counts import StepCounts
from llmsim.scheduling.conformance.model_runner import ModelRunner

PROFILE = ["--engine-profile", "vllm-0.33"]
SLOTS = [*PROFILE, "--max-loras", "2", "--max-lora-rank", "64", "--max-cpu-loras", "3"]
VISION = "Qwen/Qwen3.5-27B"
NAMES = ("", "sql", "chat", "code", "math")


def trace(folder: Path, number: int, **beside: Any) -> Path:
    """Requests, each with what `beside` says of its number."""
    lines = [
        {
            "input_toks": 40 + 37 * i % 400,
            "output_toks": 3 + i % 9,
            "arrival_time_ns": i * 9 * 10**6,
        }
        | {key: value(i) for key, value in beside.items()}
        for i in range(number)
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    return path


def with_adapters(folder: Path) -> Path:
    return trace(folder, 40, adapter=lambda i: NAMES[i * i % 5])


def with_images(folder: Path) -> Path:
    """Every second prompt has one, and each of the first four comes twice."""

    def images(i: int) -> list[dict[str, Any]]:
        return [] if i % 2 else [{"offset": 5, "tokens": 30 + i % 8, "id": f"image {i % 8}"}]

    return trace(folder, 24, encoder_inputs=images)


def with_vision(folder: Path) -> Path:
    """The cluster with a model that sees images."""
    cluster = json.loads(CLUSTER.read_text(encoding="utf-8"))
    cluster["nodes"][0]["instances"][0]["model_name"] = VISION
    path = folder / "cluster.json"
    path.write_text(json.dumps(cluster), encoding="utf-8")
    return path


def prepared_on(cluster: Path, dataset: Path, *options: str) -> Prepared:
    words = ["--cluster-config", str(cluster), "--dataset", str(dataset), *options]
    return prepare(checked_options(words))


def server_of(prepared: Prepared) -> EngineServer:
    (stage,) = engine_stages(prepared)
    return stage.servers[0]


def devices_of(prepared: Prepared) -> Devices:
    (group,) = prepared.lowered.groups
    assert group.scheduler is not None
    requests = engine_requests(prepared.workload, stops=False)
    counts = StepCounts(group, prepared.workload).begin_step
    return Devices(group, ModelRunner(requests, group.scheduler.speculation), counts=counts)


def test_adapters_take_the_time_of_the_run(tmp_path: Path) -> None:
    prepared = prepared_on(CLUSTER, with_adapters(tmp_path), *SLOTS)
    devices, schedule = devices_of(prepared), schedule_of(prepared)
    names, started = ("item_request", "item_tokens", "item_computed"), set()
    for number, (first, last) in enumerate(pairwise(schedule["item_offsets"])):
        rows = (schedule[name][first:last] for name in names)
        items = [
            [f"cmpl-{row:09d}-0-aa", tokens, before, 0, row not in started]
            for row, tokens, before in zip(*rows, strict=True)
        ]
        started |= set(schedule["item_request"][first:last])
        if items:
            end_ps, *_ = devices.step(items, schedule["time_ps"][number])
            assert end_ps == schedule["end_ps"][number]
    assert len(started) == 40


def test_the_server_knows_adapters_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmsim.emulation.engines.vllm.write_model", lambda *_: "model")
    server = server_of(prepared_on(CLUSTER, with_adapters(tmp_path), *SLOTS))
    words = Vllm().command(Path("python"), server, tmp_path, 8000)
    first = words.index("--lora-modules") + 1
    named = list(dict.fromkeys(NAMES[i * i % 5] for i in range(40) if i * i % 5))
    words_of_modules = words[first : first + len(named)]
    assert [json.loads(one)["name"] for one in words_of_modules] == named
    assert words[words.index("--max-lora-rank") + 1] == "64"
    assert isinstance(Vllm().endpoint(server), Completions)


def test_encoder_inputs_go_by_their_places(tmp_path: Path) -> None:
    prepared = prepared_on(with_vision(tmp_path), with_images(tmp_path), *PROFILE)
    server = server_of(prepared)
    endpoint = Vllm().endpoint(server)
    assert isinstance(endpoint, TokensWithImages)
    requests = engine_requests(prepared.workload, stops=False)
    features = endpoint.body(requests[8], "m", prompt_alone=False)["features"]
    assert features["mm_placeholders"] == {"image": [{"offset": 5, "length": 30}]}
    first = endpoint.body(requests[0], "m", prompt_alone=False)["features"]
    assert features["mm_hashes"] == first["mm_hashes"]
    assert "features" not in endpoint.body(requests[1], "m", prompt_alone=False)


def test_an_encoder_takes_the_time_of_the_run(tmp_path: Path) -> None:
    prepared = prepared_on(with_vision(tmp_path), with_images(tmp_path), *PROFILE)
    schedule, name = schedule_of(prepared), f"cmpl-{0:09d}-0-aa"
    tokens, end_ps = schedule["item_tokens"][0], schedule["end_ps"][0]
    item = [name, tokens, 0, 0, True]
    encodes, is_blind = (
        devices_of(prepared).step([item], 0, None, {name: [0]}),
        devices_of(prepared).step([item], 0),
    )
    assert schedule["item_offsets"][1] == 1
    begun_ps = schedule["time_ps"][0]
    assert encodes.end == end_ps - begun_ps > is_blind.end


@pytest.mark.parametrize(
    ("make", "said"), [(with_adapters, "--max-loras"), (with_images, "encoder_inputs")]
)
def test_what_no_server_takes_is_refused(make: Any, said: str, tmp_path: Path) -> None:
    prepared = prepared_on(CLUSTER, make(tmp_path), "--engine-profile", "vllm-0.19")
    server = server_of(prepared)
    assert not server.adapters and server.encoder is None
    with pytest.raises(NotYetError, match=said):
        check_workload(prepared.workload, hands_over=False)


@pytest.mark.skipif(
    "LLMSIM_ENGINE_PYTHON" not in os.environ,
    reason="LLMSIM_ENGINE_PYTHON names no interpreter with vLLM",
)
@pytest.mark.parametrize(
    ("cluster", "make", "options"),
    [(lambda _: CLUSTER, with_adapters, SLOTS), (with_vision, with_images, PROFILE)],
)
def test_vllm_itself_is_the_simulation(
    cluster: Callable[[Path], Path],
    make: Callable[[Path], Path],
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["emulate", "vllm", "--engine-python", os.environ["LLMSIM_ENGINE_PYTHON"], "--json"]
    given = ["--cluster-config", str(cluster(tmp_path))]
    given += ["--dataset", str(make(tmp_path)), *options]
    assert main([*words, *given, "--run-dir", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["same_as_run"] is True

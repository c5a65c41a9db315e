"""KV that leaves layer by layer, and stages that are scheduled ahead, of groups whose collectives
meet those of another group.
"""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

import llmsim
from llmsim._native import engine
from llmsim.api.result import Result
from llmsim.config.topology.file import load_topology
from llmsim.export.step_graph.graph import Round
from llmsim.rounds.recorded import recorded_run

MEMORY = {"mem_size": 79.1, "mem_bw": 3350, "mem_latency": 0}
OTHER = "Qwen/Qwen3-8B"
TRACE = "synthetic:n=20,rate=40,input=lognormal:700:max=2500,output=fixed:9,seed=3"
LAYERS = 32


def network() -> dict[str, Any]:
    """Rings of the devices 0 and 1, and of 4 and 5, cross the link between two switches. Everything
    else goes by a port of each device to one switch in the middle, and meets nothing.
    """
    links = [
        *((str(device), switch, 40, 500) for device, switch in ((0, "a"), (4, "a"))),
        *((str(device), switch, 40, 500) for device, switch in ((1, "b"), (5, "b"))),
        ("a", "b", 40, 500),
        ("2", "c", 40, 500),
        ("c", "d", 40, 500),
        ("3", "d", 40, 500),
    ]
    for device in range(6):
        links += [(str(device), f"port{device}", 50, 50), (f"port{device}", "middle", 50, 900)]
    names = dict.fromkeys(name for a, b, *_ in links for name in (a, b) if not name.isdigit())
    return {
        "devices": 6,
        "hardware": "H100",
        "switches": [{"name": name} for name in names],
        "links": [
            {"a": a, "b": b, "bandwidth_gb_per_s": rate, "latency_ns": latency}
            for a, b, rate, latency in links
        ],
    }


def instance(devices: list[int], **more: Any) -> dict[str, Any]:
    base = {"model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100", "npu_mem": MEMORY}
    size = {"num_npus": len(devices), "tp_size": 2, "topology_devices": devices}
    return {**base, **size, **more}


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("layers") / "network.json"
    path.write_text(json.dumps(network()), encoding="utf-8")
    return str(path)


def run(topology: str, *instances: dict[str, Any], trace: Any = TRACE, **options: Any) -> Result:
    nodes = [{"num_instances": len(instances), "instances": list(instances)}]
    document = {"link_bw": 50, "link_latency": 1000, "topology": topology, "nodes": nodes}
    return llmsim.run(document, trace, collective_costs="links", **options)


def disaggregated() -> tuple[dict[str, Any], ...]:
    beside = instance([4, 5], model_name=OTHER)
    return instance([0, 1], pd_type="prefill"), instance([2, 3], pd_type="decode"), beside


def of_both_models(tokens: int) -> pd.DataFrame:
    """A prompt of each model at time 0."""
    rows = [
        {"input_toks": tokens, "output_toks": 2, "arrival_time_ns": 0, "model": model}
        for model in ("meta-llama/Llama-3.1-8B", OTHER)
    ]
    return pd.DataFrame(rows)


def columns(result: Result) -> dict[str, list[int]]:
    """All times of all requests."""
    found = result.requests
    return {name: list(found[name]) for name in found if name.endswith("_ps")}


@pytest.mark.parametrize(
    "ahead",
    [
        {"async_scheduling": False},
        {"async_scheduling": True, "use_v2_model_runner": True},
        {"async_scheduling": True, "use_v2_model_runner": False},
    ],
    ids=["sync", "runner-v2", "runner-v1"],
)
def test_stages_beside_an_idle_group_take_their_times_alone(
    topology: str, ahead: dict[str, bool]
) -> None:
    stages = instance([0, 1, 2, 3], pp_size=2, **ahead)
    both = (stages, instance([4, 5], model_name=OTHER))
    model = "meta-llama/Llama-3.1-8B"
    meets = run(topology, *both, trace=f"{TRACE},model={model}")
    alone = run(topology, stages)
    assert len(meets._prepared.lowered.contended) == 2
    assert alone._prepared.lowered.network is None
    assert columns(meets) == columns(alone)
    assert meets.summary["communication"]["lost_s"] == 0


LAYERWISE = {"kv_transfer_mode": "push", "kv_transfer": "layerwise"}


def test_layers_beside_an_idle_group_leave_as_they_do_alone(topology: str) -> None:
    trace = f"{TRACE},model=meta-llama/Llama-3.1-8B"
    meets = run(topology, *disaggregated(), trace=trace, **LAYERWISE)
    off = {"collective_contention": "off", **LAYERWISE}
    alone = run(topology, *disaggregated(), trace=trace, **off)
    assert [domain.groups for domain in meets._prepared.lowered.contended] == [(0,), (2,)]
    assert alone._prepared.lowered.contended == ()
    assert columns(meets) == columns(alone)
    (first, second) = (one._results.kv_transfers for one in (meets, alone))
    for name, column in vars(first).items():
        assert np.array_equal(column, getattr(second, name)), name


def prompt_of_1500(topology: str, contention: str) -> tuple[Round, list[int]]:
    """The step of a prompt beside one of the other model, and when KV of the first rank leaves."""
    options = {"collective_contention": contention, **LAYERWISE}
    result = run(topology, *disaggregated(), trace=of_both_models(1500), **options)
    prepared = result._prepared
    steps = recorded_run(prepared.lowered, prepared.workload, prepared.simulation, 0)
    batch = steps.round(0)
    moved = pd.DataFrame(batch.transfers)
    kv = moved[(moved["purpose"] == 0) & (moved["bytes"] > 0) & (moved["sender"] == 0)]
    return batch, sorted(kv["start_ps"] - batch.times_ps[0][0])


def test_layers_wait_for_the_collectives_before_them(topology: str) -> None:
    """Each by what the step had lost until its attention had run: an all-reduce behind the
    embedding, and two of each layer before. The engine says how long these take alone.
    """
    batch, leaves_ps = prompt_of_1500(topology, "on")
    _, alone_ps = prompt_of_1500(topology, "off")
    assert len(leaves_ps) == len(alone_ps) == LAYERS
    one = engine.ConcurrentDurations(
        load_topology(topology).build(engine),
        engine.NetworkKind.FAIR_SHARE,
        [[0, 1]],
        engine.CollectiveKind.ALL_REDUCE,
    )
    reduce_ps = int(one.durations_ps(np.array([1500 * 4096 * 2], np.int64))[0])
    exchanges = batch.exchanges[0].values()
    took = sorted(([end - start for start, end in spans] for spans in exchanges), key=len)
    behind_embedding, *in_layers = [ps for ps in took if ps[0] >= reduce_ps]
    assert [len(behind_embedding), *map(len, in_layers)] == [1, LAYERS, LAYERS]
    lost_ps = behind_embedding[0] - reduce_ps
    for layer in range(LAYERS):
        assert leaves_ps[layer] == alone_ps[layer] + lost_ps
        lost_ps += sum(each[layer] - reduce_ps for each in in_layers)
    assert lost_ps > LAYERS * reduce_ps // 2
    assert leaves_ps[-1] < batch.times_ps[0][1] - batch.times_ps[0][0]

"""Switches of layouts beside options that hold for all layouts: how KV is handed over, another
program that times steps, an API server, and KV in host memory by vLLM's own rules.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_files import LINKS
from triggers import WHENS

import llmsim
from llmsim.config.errors import InfeasibleError, InputError

MODEL = "Qwen/Qwen3-0.6B"
LOAD = "synthetic:n=40,rate=200,input=lognormal:250,output=lognormal:40,seed=2"
SESSIONS = (
    "synthetic:reasoning,n=12,rate=20,rounds=uniform:2-5,new=lognormal:250,output=lognormal:20,"
    "tool_ms=30,seed=2"
)
NODE = {"devices": 8, "cpu_mem": {"mem_size": 64, "mem_bw": 100, "mem_latency": 0}}
OFFLOADING: dict[str, Any] = {
    "engine_profile": "vllm-0.33",
    "kv_offloading_size": 1.0,
    "num_gpu_blocks_override": 140,
    "max_num_batched_tokens": 512,
}
SERVED = {"engine": {"endpoint": "completions", "api_chunk_ns": 300_000}}


def instance(**keys: Any) -> dict[str, Any]:
    return {"model_name": MODEL, "hardware": "H100", **keys}


MANY, WIDE = [instance(count=2)], [instance(tp_size=2)]
APART = [instance(pd_type="prefill"), instance(pd_type="decode")]


def cluster(*whens: dict[str, Any], first: Any = MANY, second: Any = WIDE, **more: Any) -> Any:
    """Two layouts that alternate whenever the next trigger is met."""
    names = ["second", "first"] * len(whens)
    switch = [{"to": name, "when": when} for name, when in zip(names, whens, strict=False)]
    return {**LINKS, "layouts": {"first": first, "second": second}, "switch": switch, **more}


def pinned(layout: Any, engine: Any = None, **node: Any) -> dict[str, Any]:
    """The layout alone, as a node."""
    instances = [
        {key: value for key, value in one.items() if key != "count"}
        for one in layout
        for _ in range(one.get("count", 1))
    ]
    return {**LINKS, "nodes": [{"instances": instances, **node}], "engine": engine or {}}


def run(fields: dict[str, Any], load: Any = LOAD, **options: Any) -> llmsim.Result:
    result = llmsim.run(
        fields, load, cost_source="roofline", max_model_len=4096, check_every_step=True, **options
    )
    assert set(result.summary["invariants"].values()) == {"ok"}
    return result


def assert_same_times(one: llmsim.Result, other: llmsim.Result, later_ps: int = 0) -> None:
    for name in ("scheduled_ps", "first_token_ps", "finish_ps"):
        assert (one.requests[name] - later_ps).equals(other.requests[name]), name


def total_ps(result: llmsim.Result) -> int:
    """What the switch took, in full."""
    [row] = result.summary["reconfigurations"]
    return round(row["opened_s"] * 1e12)


@pytest.mark.parametrize(
    "option", [{"kv_transfer": "layerwise"}, {"kv_transfer_mode": "push"}, {"kv_transfer": "whole"}]
)
@pytest.mark.parametrize("first", [MANY, APART])
def test_hand_overs_by_the_command_line(first: Any, option: dict[str, str]) -> None:
    """Of the layouts one has no roles; the option says the same as the key of the file."""
    second = APART if first is MANY else MANY
    fields = cluster({"at_s": 0.1}, first=first, second=second)
    given, written = run(fields, **option), run({**fields, **option})
    assert_same_times(given, written)


def test_hand_overs_that_no_layout_has() -> None:
    with pytest.raises(InputError, match=r"no instance of .* has a pd_type"):
        run(cluster({"at_s": 0.1}), kv_transfer="layerwise")


def test_another_program_times_the_steps_of_all_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMSIM_CACHE", str(tmp_path / "cache"))
    load = "synthetic:n=8,rate=100,input=lognormal:100,output=fixed:6,seed=4"
    strict = {"network_backend": "strict", "async_scheduling": False, "launch_ns": 0}
    alone = run(pinned(MANY), load, **strict)
    never = run(cluster({"at_s": 1e5}), load, **strict)
    assert_same_times(never, alone)
    burst = [llmsim.Request(0.0, 60 + 7 * i, 5) for i in range(6)]
    switched = run(cluster({"at_s": 0}), burst, **strict)
    assert_same_times(switched, run(pinned(WIDE), burst, **strict), total_ps(switched))
    both = run(cluster({"at_s": 0.09}, second=APART), load, **strict)
    [row] = both.summary["reconfigurations"]
    assert row["requests"] > 0 and both.summary["completed"] == 8
    assert both.summary["network_backend"]["steps"] == len(both.steps)


def test_an_api_server_beside_layouts() -> None:
    alone, never = run(pinned(MANY, **SERVED)), run(cluster({"at_s": 1e5}, **SERVED))
    assert_same_times(never, alone)
    burst = [llmsim.Request(0.0, 200 + 7 * i, 30 + i) for i in range(30)]
    switched = run(cluster({"at_s": 0}, **SERVED), burst)
    assert_same_times(switched, run(pinned(WIDE, **SERVED), burst), total_ps(switched))


def test_the_drain_ends_when_clients_have_all_tokens() -> None:
    """Chunks of 2 ms each: the last step ends long before its tokens have been sent."""
    slow = {"endpoint": "completions", "api_chunk_ns": 2_000_000}
    for kv in ("recompute", "move", "drop"):
        result = run(cluster({"at_s": 0.1}, reconfiguration={"kv": kv}, engine=slow))
        [row] = result.summary["reconfigurations"]
        before = result.steps[result.steps.group < 2].end_ps.max() / 1e12
        assert row["asked_s"] + row["drain_s"] > before
        assert result.summary["completed"] == 40


@settings(max_examples=60, deadline=None)
@given(
    whens=st.lists(WHENS, min_size=1, max_size=3),
    kv=st.sampled_from(["move", "recompute", "drop"]),
    chunk_ns=st.sampled_from([0, 40_000, 900_000]),
    request_ns=st.sampled_from([0, 2_000_000, 20_000_000]),
    processes=st.integers(1, 3),
    timeout=st.sampled_from([None, 0.05, 0.1]),
)
def test_nothing_is_lost_in_api_servers(
    whens: Any, kv: str, chunk_ns: int, request_ns: int, processes: int, timeout: float | None
) -> None:
    """With clients that give up while their prompts wait for a process."""
    given_up = {} if timeout is None else {"request_timeout": timeout}
    engine = {
        **{"endpoint": "chat", "api_server_count": processes},
        **{"api_chunk_ns": chunk_ns, "api_request_ns": request_ns},
    }
    result = run(cluster(*whens, reconfiguration={"kv": kv}, engine=engine), **given_up)
    summary = result.summary
    assert summary["completed"] + summary["cancelled"] == 40


@settings(max_examples=40, deadline=None)
@given(
    whens=st.lists(WHENS, min_size=1, max_size=3),
    kv=st.sampled_from(["move", "recompute", "drop"]),
    chunk=st.sampled_from([1, 4]),
    first=st.sampled_from([MANY, WIDE]),
)
def test_nothing_is_lost_in_host_memory(whens: Any, kv: str, chunk: int, first: Any) -> None:
    second = WIDE if first is MANY else MANY
    fields = cluster(*whens, first=first, second=second, reconfiguration={"kv": kv}, node=NODE)
    result = run(fields, SESSIONS, kv_offloading_blocks_per_chunk=chunk, **OFFLOADING)
    assert result.summary["sessions"]["completed"] == 12


def test_host_memory_ends_with_a_layout() -> None:
    """Engines of the next layout are processes of their own, whose host memory begins empty."""
    alone, never = (
        run(fields, SESSIONS, **OFFLOADING)
        for fields in (
            pinned(MANY, cpu_mem=NODE["cpu_mem"]),
            cluster({"at_s": 1e5}, node=NODE),
        )
    )
    assert_same_times(never, alone)
    assert never.summary["kv_offloading"] == alone.summary["kv_offloading"]
    switched = run(cluster({"at_s": 0.3}, node=NODE), SESSIONS, **OFFLOADING)
    stored, loaded = (
        switched.summary["kv_offloading"][name] for name in ("stored_tokens", "loaded_tokens")
    )
    assert stored > alone.summary["kv_offloading"]["stored_tokens"] > 0 and loaded > 0


def test_one_layout_offloads() -> None:
    """Its option is that of its instances; before the switch, nothing is stored."""
    key = {"engine_profile": "vllm-0.33"}
    first = [instance(count=2, **key)]
    second = [instance(tp_size=2, kv_offloading_size=1.0, **key)]
    small = {name: OFFLOADING[name] for name in ("num_gpu_blocks_override",)}
    for at_s, stores in ((0.2, True), (1e5, False)):
        fields = cluster({"at_s": at_s}, first=first, second=second, node=NODE)
        result = run(fields, SESSIONS, max_num_batched_tokens=512, **small)
        assert ("kv_offloading" in result.summary) == stores


def test_clients_that_leave_before_their_prompts_are_read() -> None:
    """A process takes 20 ms for a prompt, so that many wait at a switch, and clients wait 0.1 s."""
    engine = {"endpoint": "chat", "api_server_count": 1, "api_request_ns": 20_000_000}
    whens = ({"at_s": 0.05}, {"at_s": 0.2})
    for kv in ("move", "recompute", "drop"):
        fields = cluster(*whens, reconfiguration={"kv": kv}, engine=engine)
        summary = run(fields, request_timeout=0.1).summary
        assert summary["completed"] + summary["cancelled"] == 40


def test_host_memory_is_somewhere() -> None:
    for node in ({}, {"node": {"devices": 8}}):
        with pytest.raises(InputError, match="or the node of layouts, has no cpu_mem"):
            run(cluster({"at_s": 0.3}, **node), SESSIONS, **OFFLOADING)


def test_errors_name_the_place_in_the_layout() -> None:
    small = {"mem_size": 2, "mem_bw": 100, "mem_latency": 0}
    with pytest.raises(InfeasibleError, match=r"layouts\.second\[0\]: .* does not fit"):
        run(cluster(second=[instance(tp_size=2, npu_mem=small)]))


def test_shards_of_all_layouts_need_room() -> None:
    """16 GB in each of three layouts, on devices of 40 GiB."""
    llama = {**instance(), "model_name": "meta-llama/Llama-3.1-8B", "hardware": "A100-40GB-SXM"}
    layouts = {
        name: [{**llama, "max_num_seqs": seqs}]
        for name, seqs in zip("abc", (8, 9, 10), strict=True)
    }
    with pytest.raises(InfeasibleError, match=r"all 3 layouts take 44.* say links or host"):
        run({**LINKS, "layouts": layouts, "reconfiguration": {"weights": "cached"}})

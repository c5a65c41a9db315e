"""SGLang's hierarchical cache (HiCache): what goes to the host, what comes back, and when."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.test_nothing_lost import requests_strategy
from scheduling.tiny import MS, Options, run
from token_balance import assert_nothing_is_lost

from llmsim import LlmsimError, _native
from llmsim import run as simulate
from llmsim.config.engine.sglang.host_cache import HOST_WRITES, host_pages
from llmsim.lowering.scheduler import acceptance

CLUSTER = "cluster_config/h100_cpu_prefix_pool.json"
LOAD = "synthetic:n=60,rate=20,input=lognormal:200,output=lognormal:60,prefixes=8:tokens=512,seed=1"
EAGLE = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": [0.5]}
ENGINE = {"scheduler": "sglang", "num_gpu_blocks_override": 6001, "max_model_len": 4096}
KEYS = {"A": 0, "B": 1 << 20, "C": 1 << 21}
"""Of the first tokens of three prompts that share nothing."""


def host(pages: int, write: str = "write_through", **fields: Any) -> Any:
    """A host pool whose copies take no time, unless `fields` say so."""
    native = _native.HostCacheConfig()
    native.pages, native.write = pages, HOST_WRITES[write]
    for name, value in fields.items():
        setattr(native, name, value)
    return native


def asked(prompts: str, cache: Any, blocks: int = 151, **fields: Any) -> Any:
    """Prompts of 100 tokens, one after the other, with answers of 10, in a pool of so many tokens;
    equal letters mean equal prompts. Returns the simulation.
    """
    keys = [[KEYS[letter] + j + 1 for j in range(100)] for letter in prompts]
    options = Options(
        "sglang",
        block_size=1,
        blocks=blocks,
        caching=True,
        keys=keys,
        extra={"host_cache": cache, "sglang_new_tokens": 8},
        **fields,
    )
    return run([(100 * i, 100, 10) for i in range(len(prompts))], options)


@pytest.mark.parametrize("write", list(HOST_WRITES))
def test_what_was_evicted_comes_back_from_the_host(write: str) -> None:
    """Of A, B, A, B, A the third and later find theirs on the host; selective, once it has been
    found there a second time.
    """
    sim = asked("AABABA", host(1000, write))
    loads = sim.counters()["host_cache_loaded_tokens"][0]
    without = asked("AABABA", host(0))
    assert without.counters()["host_cache_loaded_tokens"][0] == 0
    assert loads >= 90
    hits = sim.counters()["prefix_hit_tokens"][0]
    assert hits > without.counters()["prefix_hit_tokens"][0]
    assert_nothing_is_lost(sim, 151, [(0, 100, 10)] * 6)


def test_selective_write_through_waits_for_the_second_use() -> None:
    """Once each, nothing of a prompt goes to the host."""
    assert asked("ABC", host(1000)).counters()["host_cache_written_tokens"][0] > 300
    sim = asked("ABC", host(1000, "write_through_selective"))
    assert sim.counters()["host_cache_written_tokens"][0] == 0
    assert sim.counters()["host_cache_dropped_tokens"][0] > 0


def test_write_back_copies_only_what_leaves_the_device() -> None:
    sim = asked("ABC", host(1000, "write_back"), blocks=1001)
    assert sim.counters()["host_cache_written_tokens"][0] == 0
    sim = asked("ABC", host(1000, "write_back"))
    assert sim.counters()["host_cache_written_tokens"][0] > 0
    assert sim.counters()["host_cache_dropped_tokens"][0] == 0


def test_fewer_tokens_than_the_threshold_are_computed_again() -> None:
    many = asked("AABABA", host(1000, load_back_tokens=10))
    none = asked("AABABA", host(1000, load_back_tokens=1000))
    assert many.counters()["host_cache_loaded_tokens"][0] > 0
    assert none.counters()["host_cache_loaded_tokens"][0] == 0


def test_a_full_host_pool_gives_up_what_was_used_least_recently() -> None:
    small = asked("ABCABC", host(120))
    large = asked("ABCABC", host(1000))
    assert small.counters()["host_cache_evicted_tokens"][0] > 0
    assert large.counters()["host_cache_evicted_tokens"][0] == 0
    assert (
        large.counters()["host_cache_loaded_tokens"][0]
        > (small.counters()["host_cache_loaded_tokens"][0])
    )


@pytest.mark.parametrize(("layers", "end_ms"), [(1, 21), (10, 20 + 0.1), (100, 20 + 0.01)])
def test_a_step_waits_for_the_layers_that_are_loaded(layers: int, end_ms: float) -> None:
    """Loading 90 tokens and more takes 20 ms, a step 1 ms: the last layer runs behind the load."""
    sim = asked("ABA", host(1000, copy_latency_ps=20 * MS, layers=layers))
    columns = sim.schedule(0)
    began = next(at for at in columns["time_ps"].tolist() if at >= 200 * MS)
    ended = columns["end_ps"].tolist()[columns["time_ps"].tolist().index(began)]
    assert (ended - began) / MS == pytest.approx(end_ms, rel=1e-9)


def test_a_request_waits_for_copies_that_hold_the_memory() -> None:
    """Nothing runs while the only memory is being copied, until the copy has ended."""
    sim = asked("AB", host(1000, copy_latency_ps=500 * MS))
    assert sim.requests()["first_token_ps"][1] > 500 * MS
    assert not sim.counters()["idle_with_work"].any()


def test_a_request_that_is_alone_beside_copies_is_computed_again() -> None:
    """The second one grows into what is being copied; nobody else could give it memory."""
    keys = [[KEYS["A"] + j + 1 for j in range(100)], [KEYS["B"] + j + 1 for j in range(30)]]
    cache = host(1000, copy_latency_ps=500 * MS)
    options = Options(
        "sglang",
        block_size=1,
        blocks=151,
        caching=True,
        keys=keys,
        extra={"host_cache": cache, "sglang_new_tokens": 8},
    )
    requests = [(0, 100, 10), (100, 30, 60)]
    sim = run(requests, options)
    assert sim.requests()["preemptions"].tolist() == [0, 1]
    assert_nothing_is_lost(sim, 151, requests)


def sharing(
    requests: list[tuple[int, int, int]],
    cache: Any,
    tokens: int,
    page: int,
    depth: int,
    shared: int,
) -> Options:
    """A small pool of so many tokens, and so many prompts and one more that requests share."""
    keys = [
        [(i % (shared + 1)) * 1000 + j + 1 for j in range(n)]
        for i, (_, n, _) in enumerate(requests)
    ]
    return Options(
        "sglang",
        block_size=page,
        blocks=tokens // page + 1,
        caching=True,
        keys=keys,
        depth=depth,
        max_seqs=6,
        budget=64,
        extra={"host_cache": cache, "sglang_new_tokens": 8},
    )


@settings(max_examples=80)
@given(
    requests_strategy,
    st.sampled_from(list(HOST_WRITES)),
    st.sampled_from([1, 16]),
    st.integers(400, 900),
    st.sampled_from([0.1, 1, 4]),
    st.sampled_from([0, MS // 100, MS]),
    st.sampled_from([1, 2]),
    st.integers(0, 3),
)
def test_nothing_is_lost(
    requests: list[tuple[int, int, int]],
    write: str,
    page: int,
    tokens: int,
    ratio: float,
    token_ps: int,
    depth: int,
    shared: int,
) -> None:
    cache = host(
        host_pages(int(tokens * ratio), page),
        write,
        copy_latency_ps=MS // 2,
        write_ps_per_token=token_ps,
        load_ps_per_token=token_ps,
        layers=4,
    )
    options = sharing(requests, cache, tokens, page, depth, shared)
    sim = run(requests, options)  # type: ignore[arg-type]
    assert_nothing_is_lost(sim, options.blocks, requests)


def test_a_run_loads_from_the_host_and_says_so() -> None:
    plain = simulate(CLUSTER, LOAD, **ENGINE)
    result = simulate(CLUSTER, LOAD, enable_hierarchical_cache=True, hicache_ratio=4.0, **ENGINE)
    assert "host_cache" not in plain.summary
    assert result.summary["host_cache"]["loaded_tokens"] > 0
    assert result.summary["mean_ttft_ms"] < plain.summary["mean_ttft_ms"]


@settings(max_examples=40)
@given(
    requests_strategy,
    st.sampled_from(list(HOST_WRITES)),
    st.sampled_from([1, 16]),
    st.integers(500, 900),
    st.sampled_from([0, MS // 100, MS]),
    st.sampled_from([2, 3]),
    st.booleans(),
)
def test_nothing_is_lost_with_stages_or_drafts(
    requests: list[tuple[int, int, int]],
    write: str,
    page: int,
    tokens: int,
    token_ps: int,
    number: int,
    staged: bool,
) -> None:
    """So many stages, or drafts of which half hold."""
    copies = {"write_ps_per_token": token_ps, "load_ps_per_token": token_ps}
    cache = host(host_pages(tokens, page), write, copy_latency_ps=MS // 2, **copies)
    options = sharing(requests, cache, tokens, page, number if staged else 2, 2)
    if staged:
        options.extra |= {"stages": number, "micro_batches": number}
    else:
        native = _native.SpeculationConfig()
        native.tokens, native.acceptance = number, acceptance([0.5] * number)
        options.extra["speculation"] = native
    sim = run(requests, options)  # type: ignore[arg-type]
    assert_nothing_is_lost(sim, options.blocks, requests)


def test_a_run_with_drafts_or_stages_loads_from_the_host(tmp_path: Path) -> None:
    asked = {"enable_hierarchical_cache": True, "hicache_ratio": 4.0, **ENGINE}
    drafts = simulate(CLUSTER, LOAD, speculative_config=EAGLE, **asked)
    assert drafts.summary["host_cache"]["loaded_tokens"] > 0
    cluster = json.loads(Path(CLUSTER).read_text(encoding="utf-8"))
    cluster["nodes"][0]["num_instances"] = 1
    cluster["nodes"][0]["instances"] = cluster["nodes"][0]["instances"][:1]
    cluster["nodes"][0]["instances"][0] |= {"num_npus": 2, "pp_size": 2}
    other = tmp_path / "cluster.json"
    other.write_text(json.dumps(cluster), encoding="utf-8")
    stages = simulate(str(other), LOAD, **asked)
    assert stages.summary["host_cache"]["loaded_tokens"] > 0


def test_a_drafters_pool_lies_beside_the_bytes_that_hicache_size_counts() -> None:
    taken = []
    for fields in ({}, {"speculative_config": EAGLE}):
        with pytest.raises(LlmsimError, match="lower hicache_ratio") as refused:
            asked = {"enable_hierarchical_cache": True, "hicache_size": 5000, **ENGINE, **fields}
            simulate(CLUSTER, LOAD, **asked)  # type: ignore[arg-type]
        taken.append(float(str(refused.value).split("takes ")[1].split(" GB")[0]))
    assert taken[0] == pytest.approx(5000, abs=0.1)
    assert taken[1] > 5050


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hicache_ratio": 2.0}, "has an effect only with enable_hierarchical_cache true"),
        ({"enable_hierarchical_cache": True, "scheduler": "vllm_v1"}, "of the scheduler sglang"),
        ({"enable_hierarchical_cache": True, "enable_prefix_caching": False}, "set that true"),
        ({"enable_hierarchical_cache": True, "skip_prefill": True}, "set that false"),
        (
            {"enable_hierarchical_cache": True, "hicache_ratio": 2.0, "hicache_size": 4},
            "contradicts hicache_ratio",
        ),
        ({"enable_hierarchical_cache": True, "hicache_size": 5000}, "lower hicache_ratio"),
        ({"enable_hierarchical_cache": True, "hicache_size": 1 << 20}, "takes 1048576.0 GB"),
        ({"enable_hierarchical_cache": True, "prefix_storage": "CPU"}, "prefix_storage is given"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(LlmsimError, match=words):
        simulate(CLUSTER, LOAD, **{**ENGINE, **fields})


@pytest.mark.parametrize(
    ("prefill", "words"),
    [
        ({"pp_size": 2}, r"pipeline stages \(pp_size\) of a prefill instance"),
        ({"attn_dp_size": 2, "num_npus": 2}, "data-parallel ranks of a prefill instance"),
        ({"pd_type": "decode"}, "the role decode"),
    ],
)
def test_roles_that_were_not_compared_are_refused(
    prefill: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = {"model_name": "Qwen/Qwen3-30B-A3B", "hardware": "H100"}
    hicache = {"enable_hierarchical_cache": True, "pd_type": "prefill"}
    other = {"pd_type": "prefill" if "pd_type" in prefill else "decode"}
    node = {
        "cpu_mem": {"mem_size": 512, "mem_bw": 256, "mem_latency": 0},
        "instances": [{**model, **hicache, **prefill}, {**model, **other}],
    }
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"link_bw": 450, "link_latency": 1000, "nodes": [node]}))
    with pytest.raises(LlmsimError, match=words):
        simulate(str(path), LOAD, scheduler="sglang")


def test_more_pages_than_the_pool_can_count_are_refused(tmp_path: Path) -> None:
    cluster = json.loads(Path(CLUSTER).read_text(encoding="utf-8"))
    cluster["nodes"][0]["cpu_mem"]["mem_size"] = 1 << 20
    other = tmp_path / "cluster.json"
    other.write_text(json.dumps(cluster), encoding="utf-8")
    fields = {"enable_hierarchical_cache": True, "hicache_size": 500_000, "block_size": 1}
    with pytest.raises(LlmsimError, match="and the most is 2147483647"):
        simulate(str(other), LOAD, **{**ENGINE, **fields})


def test_a_node_without_host_memory_is_refused(tmp_path: Path) -> None:
    cluster = json.loads(Path(CLUSTER).read_text(encoding="utf-8"))
    del cluster["nodes"][0]["cpu_mem"]
    other = tmp_path / "cluster.json"
    other.write_text(json.dumps(cluster), encoding="utf-8")
    with pytest.raises(LlmsimError, match="has no cpu_mem"):
        simulate(str(other), LOAD, enable_hierarchical_cache=True, **ENGINE)

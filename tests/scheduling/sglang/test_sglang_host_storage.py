"""Storage behind the host pool of SGLang's hierarchical cache: who looks there, and who waits."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.sglang.test_sglang_host_cache import asked, host, sharing
from scheduling.test_nothing_lost import requests_strategy
from scheduling.tiny import MS, run
from token_balance import assert_nothing_is_lost

from llmsim import LlmsimError, _native
from llmsim import run as simulate
from llmsim.config.engine.sglang.host_cache import HOST_WRITES, PREFETCHES, host_pages

CLUSTER = "cluster_config/h100_ssd_prefix_pool.json"
LOAD = (
    "synthetic:n=200,rate=10,input=lognormal:200,output=lognormal:60,prefixes=20:tokens=2048,seed=1"
)
ENGINE = {"scheduler": "sglang", "num_gpu_blocks_override": 24001, "max_model_len": 4096}
HICACHE = {"enable_hierarchical_cache": True, "hicache_ratio": 0.5}
FILES = {**HICACHE, "hicache_storage_backend": "file"}


def stored(prefetch: str = "wait_complete", **fields: Any) -> Any:
    """Storage in which everything takes no time, unless `fields` say so."""
    native = _native.HostStorageConfig()
    native.prefetch_threshold, native.prefetch = 16, PREFETCHES[prefetch]
    for name, value in fields.items():
        setattr(native, name, value)
    return native


def first_tokens_ms(sim: Any) -> list[float]:
    return [at / MS for at in sim.requests()["first_token_ps"].tolist()]


def test_what_has_left_the_host_comes_back_from_storage() -> None:
    """The host holds two prompts with their answers: of A, B, C, A, B, C the later ones find theirs
    in storage alone.
    """
    without = asked("ABCABC", host(230))
    sim = asked("ABCABC", host(230, storage=stored()))
    counters = sim.counters()
    assert without.counters()["host_cache_prefetched_tokens"][0] == 0
    assert counters["host_cache_prefetched_tokens"][0] >= 3 * 90
    assert counters["host_cache_stored_tokens"][0] >= 3 * 100
    assert counters["host_cache_erased_tokens"][0] == 0
    hits = counters["prefix_hit_tokens"][0]
    assert hits >= without.counters()["prefix_hit_tokens"][0] + 2 * 90
    assert_nothing_is_lost(sim, 151, [(0, 100, 10)] * 6)


@pytest.mark.parametrize(
    ("prefetch", "most_ms", "comes"),
    [("wait_complete", 1000, True), ("timeout", 30, False), ("best_effort", 15, False)],
)
def test_a_request_waits_as_the_policy_says(prefetch: str, most_ms: float, comes: bool) -> None:
    """A read takes 50 ms, and a request waits for all of that, for 20 ms, or not."""
    storage = stored(prefetch, read_latency_ps=50 * MS, timeout_ps=20 * MS)
    sim = asked("ABCA", host(230, storage=storage))
    waited = first_tokens_ms(sim)[3] - 300
    assert waited < most_ms
    assert (waited > 50) == comes
    assert (waited > 20) == (prefetch != "best_effort")
    assert (sim.counters()["host_cache_prefetched_tokens"][0] > 0) == comes


@pytest.mark.parametrize(("capacity", "comes"), [(0, True), (250, False)])
def test_full_storage_gives_up_what_was_used_least_recently(capacity: int, comes: bool) -> None:
    """It holds two prompts and their answers; A has gone when it is asked for again."""
    storage = stored(capacity_bytes=capacity, page_bytes=1)
    counters = asked("ABCA", host(230, storage=storage)).counters()
    assert (counters["host_cache_prefetched_tokens"][0] > 0) == comes
    assert (counters["host_cache_erased_tokens"][0] > 0) == (not comes)


@pytest.mark.parametrize(("threshold", "comes"), [(99, True), (100, False)])
def test_fewer_tokens_than_the_threshold_are_not_looked_for(threshold: int, comes: bool) -> None:
    """The last of 100 tokens is always computed."""
    storage = stored(prefetch_threshold=threshold)
    sim = asked("ABCA", host(230, storage=storage))
    assert (sim.counters()["host_cache_prefetched_tokens"][0] > 0) == comes


@pytest.mark.parametrize("prefetch", PREFETCHES)
def test_who_looks_again_in_an_idle_engine_goes_on_in_the_next_pass(prefetch: str) -> None:
    """Others take the pages that the last prompt has seen; too few are left to look for, and when
    the device is empty nothing else happens that it could wait for.
    """
    requests = [(0, 220, 37), (86, 9, 42), (87, 9, 42), (114, 268, 4)]
    latencies = {"query_latency_ps": MS // 2, "read_latency_ps": MS // 3}
    storage = stored(prefetch, timeout_ps=5 * MS, **latencies)
    cache = host(host_pages(120, 16), "write_through", copy_latency_ps=MS // 2, storage=storage)
    sim = run(requests, sharing(requests, cache, 400, 16, 1, 0))
    assert_nothing_is_lost(sim, 26, requests)


@settings(max_examples=80)
@given(
    requests_strategy,
    st.sampled_from(list(HOST_WRITES)),
    st.sampled_from(list(PREFETCHES)),
    st.sampled_from([1, 16]),
    st.integers(400, 900),
    st.sampled_from([0.3, 1, 2]),
    st.sampled_from([0, MS // 100, MS]),
    st.sampled_from([0, 100, 10_000]),
    st.sampled_from([1, 2]),
    st.integers(0, 3),
)
def test_nothing_is_lost(
    requests: list[tuple[int, int, int]],
    write: str,
    prefetch: str,
    page: int,
    tokens: int,
    ratio: float,
    token_ps: int,
    capacity: int,
    depth: int,
    shared: int,
) -> None:
    """Unless pages that are being written to storage leave no memory at all."""
    storage = stored(
        prefetch,
        query_latency_ps=MS // 2,
        read_latency_ps=MS // 3,
        read_ps_per_token=token_ps,
        write_ps_per_token=token_ps,
        timeout_ps=5 * MS,
        capacity_bytes=capacity,
    )
    pages = host_pages(int(tokens * ratio), page)
    cache = host(pages, write, copy_latency_ps=MS // 2, load_ps_per_token=token_ps, storage=storage)
    options = sharing(requests, cache, tokens, page, depth, shared)
    try:
        sim = run(requests, options)  # type: ignore[arg-type]
    except _native.OutOfKvMemory:
        assert write == "write_back"
        return
    assert_nothing_is_lost(sim, options.blocks, requests)


def test_a_run_reads_from_storage_and_says_so() -> None:
    plain = simulate(CLUSTER, LOAD, **HICACHE, **ENGINE)
    files = {**FILES, "hicache_storage_prefetch_policy": "wait_complete"}
    result = simulate(CLUSTER, LOAD, **files, **ENGINE)
    assert plain.summary["host_cache"]["prefetched_tokens"] == 0
    assert result.summary["host_cache"]["prefetched_tokens"] > 0
    assert (
        result.summary["host_cache"]["loaded_tokens"]
        > (plain.summary["host_cache"]["loaded_tokens"])
    )


def test_storage_of_the_cluster_keeps_the_files_of_a_node_without_one(tmp_path: Path) -> None:
    cluster = json.loads(Path(CLUSTER).read_text(encoding="utf-8"))
    near = simulate(CLUSTER, LOAD, **FILES, **ENGINE)
    cluster["storage"] = cluster["nodes"][0].pop("storage")
    other = tmp_path / "cluster.json"
    other.write_text(json.dumps(cluster), encoding="utf-8")
    far = simulate(str(other), LOAD, **FILES, **ENGINE)
    assert far.summary["host_cache"] == near.summary["host_cache"]
    for result, storage in ((near, "storage holds nothing"), (far, "cluster holds nothing")):
        assert not any(storage in note for note in result.summary["notes"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hicache_storage_backend": "file"}, "has an effect only with enable_hierarchical_cache"),
        ({**HICACHE, "hicache_storage_backend": "mooncake"}, "mooncake"),
        (
            {**HICACHE, "hicache_storage_prefetch_policy": "best_effort"},
            "has an effect only with hicache_storage_backend",
        ),
        ({**HICACHE, "hicache_prefetch_threshold": 16}, "only with hicache_storage_backend"),
        ({**FILES, "hicache_prefetch_threshold": 0}, "hicache_prefetch_threshold"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(LlmsimError, match=words):
        simulate(CLUSTER, LOAD, **{**ENGINE, **fields})


def edited(tmp_path: Path, edit: Any) -> str:
    cluster = json.loads(Path(CLUSTER).read_text(encoding="utf-8"))
    edit(cluster["nodes"][0])
    other = tmp_path / "cluster.json"
    other.write_text(json.dumps(cluster), encoding="utf-8")
    return str(other)


def test_a_node_without_storage_is_refused(tmp_path: Path) -> None:
    other = edited(tmp_path, lambda node: node.pop("storage"))
    with pytest.raises(LlmsimError, match="nor the cluster has a storage"):
        simulate(other, LOAD, **FILES, **ENGINE)


def test_storage_that_holds_no_page_is_refused(tmp_path: Path) -> None:
    other = edited(tmp_path, lambda node: node["storage"].update(mem_size=0.001))
    with pytest.raises(LlmsimError, match="a page of HiCache takes 2097152 B"):
        simulate(other, LOAD, block_size=16, **FILES, **ENGINE)


def test_prefill_instances_read_from_storage(tmp_path: Path) -> None:
    files = {**FILES, "hicache_storage_prefetch_policy": "wait_complete"}

    def apart(node: dict[str, Any]) -> None:
        (instance,) = node["instances"]
        node["instances"] = [instance | {"pd_type": "prefill"} | files]
        node["instances"].append(instance | {"pd_type": "decode"})
        node["num_instances"] = 2

    other = edited(tmp_path, apart)
    result = simulate(other, LOAD, **ENGINE)
    assert result.summary["host_cache"]["prefetched_tokens"] > 0
    with pytest.raises(LlmsimError, match="HiCache with the role decode"):
        simulate(other, LOAD, **FILES, **ENGINE)


def test_memory_that_never_comes_back_ends_a_run_with_a_sentence(tmp_path: Path) -> None:
    """Pages that are being written to slow storage cannot leave a full device."""
    other = edited(tmp_path, lambda node: node["storage"].update(write_bw=0.001))
    fields = {"hicache_write_policy": "write_back", "hicache_ratio": 0.1}
    with pytest.raises(LlmsimError, match="SGLang would end with 'out of memory'"):
        simulate(other, LOAD, **{**FILES, **ENGINE, **fields})

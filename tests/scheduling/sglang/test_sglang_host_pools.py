"""HiCache beside SGLang's pools of windows and states: host pools of their own, and what goes there
with a copy and comes back with a load.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.sglang.test_sglang_host_cache import KEYS, host, sharing
from scheduling.test_nothing_lost import requests_strategy
from scheduling.tiny import MS, Options, run
from token_balance import assert_nothing_is_lost

import llmsim
from llmsim import LlmsimError, _native
from llmsim.config.engine.sglang.host_cache import HOST_WRITES, host_pages

WINDOW = 16
OSS, NEXT = "openai/gpt-oss-20b", "Qwen/Qwen3-Next-80B-A3B-Instruct"
LOAD = "synthetic:n=60,rate=20,input=fixed:3000,output=fixed:100,prefixes=8:tokens=2500"


def windows(pages: int) -> Any:
    native = _native.WindowPoolConfig()
    native.window, native.pages = WINDOW, pages
    return native


def states(slots: int, spare: int = 2) -> Any:
    native = _native.StatePoolConfig()
    native.slots, native.spare = slots, spare
    native.prompt_interval = native.answer_interval = 32
    return native


def asked(prompts: str, cache: Any, blocks: int = 151, **pools: Any) -> Any:
    """Prompts of 100 tokens, one after the other, with answers of 10, in a pool of so many tokens
    beside `pools`; equal letters mean equal prompts. Returns the simulation.
    """
    keys = [[KEYS[letter] + j + 1 for j in range(100)] for letter in prompts]
    extra = {"host_cache": cache, "sglang_new_tokens": 8, **pools}
    options = Options(
        "sglang", block_size=1, blocks=blocks, caching=True, keys=keys, depth=2, extra=extra
    )
    requests = [(100 * i, 100, 10) for i in range(len(prompts))]
    sim = run(requests, options)
    assert_nothing_is_lost(sim, blocks, requests)
    return sim


def counted(sim: Any, name: str) -> int:
    return int(sim.counters()[name][0])


@pytest.mark.parametrize("write", ["write_through", "write_back"])
@pytest.mark.parametrize("kind", ["windows", "states"])
def test_what_was_evicted_comes_back_with_its_window_or_state(write: str, kind: str) -> None:
    pools = {"window_pool": windows(200)} if kind == "windows" else {"state_pool": states(20)}
    cache = host(1000, write, window_pages=1000, states=100)
    sim = asked("AABABA", cache, **pools)
    without = asked("AABABA", host(0), **pools)
    assert counted(sim, "host_cache_loaded_tokens") >= 64
    assert counted(sim, "prefix_hit_tokens") > counted(without, "prefix_hit_tokens")


def test_without_room_for_a_window_or_a_state_its_node_is_not_copied() -> None:
    pool = {"window_pool": windows(200)}
    every = counted(
        asked("ABA", host(1000, window_pages=1000), **pool), "host_cache_written_tokens"
    )
    some = counted(asked("ABA", host(1000, window_pages=5), **pool), "host_cache_written_tokens")
    assert 0 < some < every
    sim = asked("ABA", host(1000), state_pool=states(20))
    assert counted(sim, "host_cache_written_tokens") == 0


def test_a_state_that_left_the_device_alone_comes_back_alone() -> None:
    """Five slots hold what runs and two states. Of the first prompt, with which the second one goes
    on, all KV stays on the device, and its state is loaded for the last one.
    """
    first, other = ([KEYS[letter] + j + 1 for j in range(100)] for letter in "AB")
    keys = [first, [*first, *range(1 << 22, (1 << 22) + 100)], other, first]
    loads, hits = [], []
    for cache in (host(1000, states=100), host(0)):
        extra = {"host_cache": cache, "sglang_new_tokens": 8, "state_pool": states(5)}
        options = Options(
            "sglang", block_size=1, blocks=2001, caching=True, keys=keys, depth=2, extra=extra
        )
        sim = run([(100 * i, len(one), 10) for i, one in enumerate(keys)], options)
        loads.append(counted(sim, "host_cache_loaded_tokens"))
        hits.append(sim.requests()["cached_tokens"].tolist())
    assert loads == [0, 0]
    assert hits == [[0, 96, 0, 96], [0, 96, 0, 0]]


def test_a_load_takes_longer_by_its_windows() -> None:
    """16 tokens of a window behind 96 and more tokens of a prefix, whose own copy takes no time."""
    slow = {"load_ps_per_window_token": MS}
    ends = []
    for fields in ({}, slow):
        sim = asked("ABA", host(1000, window_pages=1000, **fields), window_pool=windows(200))
        ends.append(int(sim.requests()["first_token_ps"][2]))
    assert 16 * MS <= ends[1] - ends[0] <= 17 * MS


def test_a_prompt_in_chunks_goes_on_when_a_copy_has_ended() -> None:
    """Its chunks of 64 tokens are copied as they are inserted, and the small pool of windows waits
    for that, though nobody else runs or waits.
    """
    cache = host(1000, window_pages=1000, copy_latency_ps=50 * MS)
    options = Options(
        "sglang",
        block_size=1,
        blocks=1001,
        caching=True,
        keys=[[j + 1 for j in range(600)]],
        budget=64,
        extra={"host_cache": cache, "sglang_new_tokens": 8, "window_pool": windows(150)},
    )
    sim = run([(0, 600, 10)], options)
    assert_nothing_is_lost(sim, 1001, [(0, 600, 10)])
    assert not sim.counters()["idle_with_work"].any()
    assert sim.requests()["first_token_ps"][0] > 100 * MS


@settings(max_examples=60, deadline=None)
@given(
    requests_strategy,
    st.sampled_from(list(HOST_WRITES)),
    st.sampled_from([1, 16]),
    st.integers(500, 900),
    st.sampled_from([0.1, 1, 4]),
    st.sampled_from([0, MS // 100, MS]),
    st.sampled_from([1, 2]),
    st.integers(0, 3),
    st.sampled_from([0, 300, 400]),
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
    window_tokens: int,
) -> None:
    """With a pool of windows, or with one of states."""
    copies = {
        f"{way}_ps_per_{what}": token_ps
        for way in ("write", "load")
        for what in ("token", "window_token", "state")
    }
    slots = 6 * 5 + 4
    cache = host(
        host_pages(int(tokens * ratio), page),
        write,
        copy_latency_ps=MS // 2,
        window_pages=host_pages(int(window_tokens * ratio), page),
        states=host_pages(int(slots * ratio), 1),
        **copies,
    )
    options = sharing(requests, cache, tokens, page, depth, shared)
    if window_tokens > 0:
        options.extra |= {"window_pool": windows(window_tokens // page)}
    else:
        options.extra |= {"state_pool": states(slots, spare=depth)}
    sim = run(requests, options)  # type: ignore[arg-type]
    assert_nothing_is_lost(sim, options.blocks, requests)


def hosted(tmp_path: Path, model: str, **options: Any) -> Any:
    fields = llmsim.Cluster.build(model, "H100", tp=4).fields()
    fields["nodes"][0]["cpu_mem"] = {"mem_size": 1024, "mem_bw": 256, "mem_latency": 0}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return llmsim.run(
        str(path), LOAD, scheduler="sglang", enable_hierarchical_cache=True, **options
    )


def test_runs_of_models_with_windows_or_states_load_from_the_host(tmp_path: Path) -> None:
    result = hosted(tmp_path, OSS, num_gpu_blocks_override=12000)
    assert set(result.summary["invariants"].values()) == {"ok"}
    assert result.summary["host_cache"]["loaded_tokens"] > 0
    assert not any("keeps a request waiting" in note for note in result.summary["notes"])
    few = {"max_num_seqs": 8, "max_mamba_cache_size": 40}
    result = hosted(tmp_path, NEXT, **few)
    assert set(result.summary["invariants"].values()) == {"ok"}
    assert result.summary["host_cache"]["written_tokens"] > 0


def test_storage_behind_pools_of_windows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LlmsimError, match="storage behind layers with states or windows"):
        hosted(tmp_path, OSS, hicache_storage_backend="file")


def test_the_bytes_of_all_host_pools_count(tmp_path: Path) -> None:
    """1,024 GB hold hicache_size for each of four devices as long as it is below 253 GB."""
    for model in (OSS, NEXT):
        with pytest.raises(LlmsimError, match=r"takes 300\.\d GB for each of the 4 devices"):
            hosted(tmp_path, model, hicache_size=300)

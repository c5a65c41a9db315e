"""SGLang's pools apart: KV of layers with a window, and states of linear attention."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.sglang.servers import DECODE_SERVER
from scheduling.test_nothing_lost import requests_strategy
from scheduling.tiny import Options, run
from token_balance import assert_nothing_is_lost

import llmsim
from llmsim import LlmsimError, _native
from llmsim.scheduling.conformance.sglang.ours import our_run, window_tokens

LOAD = "synthetic:n=4,rate=2,input=fixed:300,output=fixed:20"
KEYS = {"A": 0, "B": 1 << 20, "C": 1 << 21}
"""Of the first tokens of prompts that share nothing."""


def pool(window: int, pages: int) -> Any:
    native = _native.WindowPoolConfig()
    native.window, native.pages = window, pages
    return native


def hits_of(prompts: str, windows: Any, blocks: int = 2001) -> list[int]:
    """Cached tokens of prompts of 400 tokens, one after the other, with answers of 10; equal
    letters mean equal prompts.
    """
    keys = [[KEYS[letter] + j + 1 for j in range(400)] for letter in prompts]
    extra = {"window_pool": windows, "sglang_new_tokens": 8}
    options = Options("sglang", block_size=1, blocks=blocks, caching=True, keys=keys, extra=extra)
    requests = [(200 * i, 400, 10) for i in range(len(prompts))]
    sim = run(requests, options)  # type: ignore[arg-type]
    assert_nothing_is_lost(sim, blocks, requests)
    return [int(cached) for cached in sim.requests()["cached_tokens"]]


def test_a_prompt_is_found_as_far_as_a_window_of_it_is_left() -> None:
    """The second A computes its last token alone; in a pool of 330 tokens B and C take the windows
    of A, whose other layers are still there.
    """
    assert hits_of("AA", pool(50, 2000)) == [0, 399]
    plenty, few = hits_of("ABCABA", pool(50, 4000)), hits_of("ABCABA", pool(50, 330))
    assert plenty == [0, 0, 0, 399, 399, 399]
    assert sum(few) < sum(plenty)


def test_a_pool_as_large_as_the_others_changes_nothing_that_fits() -> None:
    assert hits_of("ABAB", pool(500, 2000)) == hits_of("ABAB", pool(0, 0))


@settings(max_examples=40)
@given(
    requests_strategy,
    st.sampled_from([1, 16]),
    st.integers(1, 200),
    st.integers(500, 900),
    st.booleans(),
    st.booleans(),
)
def test_nothing_is_lost_with_windows(
    requests: list[tuple[int, int, int]],
    page: int,
    window: int,
    tokens: int,
    caching: bool,
    overlaps: bool,
) -> None:
    """With any window and any pool that holds two of them; equal prompts share their pages."""
    keys = [list(range(1, prompt // page + 1)) for _, prompt, _ in requests]
    windows = pool(window, (2 * window + 128) // page + 8 + 300 // page)
    options = Options(
        "sglang",
        block_size=page,
        blocks=tokens // page + 2,
        caching=caching,
        keys=keys,
        extra={"window_pool": windows, "sglang_overlap": int(overlaps)},
    )
    sim = run(requests, options)  # type: ignore[arg-type]
    assert_nothing_is_lost(sim, options.blocks, requests)


def run_of(model: str, **options: Any) -> Any:
    cluster = llmsim.Cluster.build(model, "H100", tp=4)
    return llmsim.run(cluster, LOAD, **{"scheduler": "sglang", **options})


def blocks_of(model: str, **options: Any) -> int:
    blocks: int = run_of(model, **options).summary["kv_cache"][0]["num_blocks"]
    return blocks


def ledger_of(result: Any) -> dict[str, int]:
    lines = result.summary["kv_cache"][0]["ledger"]
    return {line["label"]: line["bytes"] for line in lines}


def test_windows_take_their_share_of_memory() -> None:
    """gpt-oss has as many layers of either kind, which store the same: a token of the other pool
    takes 1 + ratio times its own bytes.
    """
    model = "openai/gpt-oss-20b"
    whole = blocks_of(model, swa_full_tokens_ratio=1.0)
    assert blocks_of(model, swa_full_tokens_ratio=0.5) / whole == pytest.approx(2 / 1.5, rel=1e-4)
    assert blocks_of(model) / whole == pytest.approx(2 / 1.8, rel=1e-4)


def test_models_without_a_pool_keep_whole_sequences() -> None:
    """Gemma 3 stores 62 layers of 16 heads of 128 in bf16, a quarter of them on each of four."""
    result = run_of("google/gemma-3-27b-it")
    assert result.summary["kv_cache"][0]["block_bytes"] == 62 * 4 * 2 * 128 * 2
    assert any("as SGLang does" in note for note in result.summary["notes"])


def test_sequences_run_as_far_as_there_are_states() -> None:
    """With the prefix cache a sequence takes three states, without spare slots for them."""
    asked = {"engine_profile": "sglang-0.5.10", "max_mamba_cache_size": 60}
    cluster = llmsim.Cluster.build("Qwen/Qwen3-Next-80B-A3B-Instruct", "H100", tp=4)
    many = "synthetic:n=100,rate=inf,input=fixed:50,output=fixed:50"
    result = llmsim.run(cluster, many, scheduler="sglang", log_interval=0.05, **asked)
    assert result.series["running"].max() == 60 // 3
    (label,) = [name for name in ledger_of(result) if name.startswith("linear-attention state, 60")]
    assert -ledger_of(result)[label] % 61 == 0


def test_too_few_states_for_one_sequence_are_refused() -> None:
    with pytest.raises(LlmsimError, match="too few for one running sequence"):
        run_of("Qwen/Qwen3-Next-80B-A3B-Instruct", max_mamba_cache_size=2)


NO_OVERLAP = "each step waits for the one before"


@pytest.mark.parametrize(
    ("model", "profile", "options", "waits"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "sglang-0.5.6", {}, True),
        (
            "Qwen/Qwen3-Next-80B-A3B-Instruct",
            "sglang-0.5.6",
            {"enable_prefix_caching": False},
            False,
        ),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "sglang-0.5.10", {}, True),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "sglang-0.5.23", {}, False),
        (
            "Qwen/Qwen3-Next-80B-A3B-Instruct",
            "sglang-0.5.23",
            {"mamba_radix_cache_strategy": "no_buffer"},
            True,
        ),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "sglang-0.5.6", {}, False),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "sglang-0.5.10", {}, True),
        ("LiquidAI/LFM2-8B-A1B", "sglang-0.5.23", {}, True),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "sglang-0.5.10", {}, False),
        ("Qwen/Qwen3-8B", "sglang-0.5.10", {}, False),
    ],
)
def test_steps_wait_for_states_where_sglang_says_so(
    model: str, profile: str, options: dict[str, Any], waits: bool
) -> None:
    result = run_of(model, engine_profile=profile, **options)
    assert any(NO_OVERLAP in note for note in result.summary["notes"]) == waits


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scheduler": "vllm_v1", "swa_full_tokens_ratio": 0.5}, "is an option of the scheduler"),
        (
            {"mamba_full_memory_ratio": 0.5, "max_mamba_cache_size": 9},
            "contradicts mamba_full_memory_ratio",
        ),
        (
            {"mamba_radix_cache_strategy": "extra_buffer", "enable_prefix_caching": False},
            "refuses without a prefix cache",
        ),
    ],
)
def test_options_of_pools_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(LlmsimError, match=said):
        run_of("openai/gpt-oss-20b", **options)


def test_a_pool_of_windows_that_no_request_fits_is_refused() -> None:
    with pytest.raises(LlmsimError, match="raise swa_full_tokens_ratio"):
        run_of("openai/gpt-oss-20b", num_gpu_blocks_override=400)


DECODES = {
    **DECODE_SERVER,
    "page_size": 16,
    "max_running_requests": 8,
    "context_length": 2048,
    "clip_max_new_tokens": 4096,
    "num_reserved_decode_tokens": 0,
    "max_total_tokens": 4096,
    "sliding_window": 32,
    "swa_full_tokens_ratio": 0.125,
}
"""A decode server whose pool of windows holds 512 tokens."""


def taken_at_once(requests: int, prompt: int, answer: int, **options: Any) -> int:
    """Of so many requests that come together, those that get memory first; all of them end."""
    asked = [
        {"id": f"r{i}", "arrival": 0.001, "segments": [[i, prompt]], "output_len": answer}
        for i in range(requests)
    ]
    ran = our_run({"config": DECODES | options, "requests": asked})
    assert len({name for step in ran.steps for name in step["finished"]}) == requests
    (server,) = ran.servers
    told_ps: list[int] = server["told_ps"]
    return told_ps.count(min(told_ps))


def test_a_decode_server_takes_the_end_of_a_prompt_of_the_pool_of_windows() -> None:
    """Of 400 tokens the last 48 are needed, in pages of 16: seven requests fit in 512. In pages of
    one token each takes 400, and the next one does not fit beside it.
    """
    assert taken_at_once(7, prompt=400, answer=8) == 7
    assert taken_at_once(7, prompt=400, answer=8, page_size=1) == 1


def test_a_request_waits_for_its_windows_and_the_reserve_beside_them() -> None:
    """Of 100 tokens each request takes 48 of the pool of windows, and 200 more have to be free.
    Those that are taken hold a window of 32 already, so that nothing is kept free for them.
    """
    reserve = {"num_reserved_decode_tokens": 200, "max_total_tokens": 8192}
    ratio = {"swa_full_tokens_ratio": 512 / 8192}
    taken = taken_at_once(8, prompt=100, answer=8, **reserve, **ratio)
    assert 48 * (taken - 1) + 48 + 200 <= 512 < 48 * taken + 48 + 200


def test_who_decodes_alone_gets_on_with_an_answer_longer_than_the_pool() -> None:
    """SGLang lets it wait for ever."""
    options = {"disaggregation_decode_enable_radix_cache": False, "max_running_requests": 1}
    assert window_tokens(DECODES | options) < 700
    assert taken_at_once(1, prompt=100, answer=700, **options) == 1
    whole = DECODES | options | {"page_size": 1}
    assert window_tokens(whole) < 700
    assert taken_at_once(1, prompt=100, answer=700, **options, page_size=1) == 1


def test_a_decode_server_without_a_cache_has_windows_for_running_and_coming_requests() -> None:
    """A window, 128 tokens that have left it and two pages for each of 8 requests, and a window and
    a page for each of 16 more; none for more beside 33.
    """
    without = DECODES | {"disaggregation_decode_enable_radix_cache": False}
    many = {"max_total_tokens": 1 << 20}
    assert window_tokens(without | many) == 8 * (32 + 128 + 2 * 16) + 16 * (32 + 16)
    of_33 = without | many | {"max_running_requests": 33}
    assert window_tokens(of_33) == 33 * (32 + 128 + 2 * 16)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300), st.integers(1, 200)), min_size=1),
    st.sampled_from([1, 16]),
    st.integers(1, 100),
    st.sampled_from([0, 8, 100]),
    st.booleans(),
    st.booleans(),
)
def test_everybody_ends_on_a_decode_server_with_windows(
    requests: list[tuple[int, int, int]],
    page: int,
    window: int,
    reserved: int,
    caching: bool,
    in_turn: bool,
) -> None:
    """With any window and a pool that holds one request; equal letters share their prompts."""
    asked = [
        {"id": f"r{i}", "arrival": 0.001, "segments": [[letter, prompt]], "output_len": answer}
        for i, (letter, prompt, answer) in enumerate(requests)
    ]
    config = DECODES | {
        "page_size": page,
        "sliding_window": window,
        "max_total_tokens": 800,
        "swa_full_tokens_ratio": 0.6,
        "num_reserved_decode_tokens": reserved,
        "disaggregation_decode_enable_radix_cache": caching,
        "disable_overlap_schedule": in_turn,
    }
    steps = our_run({"config": config, "requests": asked}).steps
    assert {name for step in steps for name in step["finished"]} == {one["id"] for one in asked}


def pool_notes(**options: Any) -> list[str]:
    cluster = llmsim.Cluster.build("openai/gpt-oss-20b", "H100", tp=4, prefill=1, decode=1)
    result = llmsim.run(cluster, LOAD, scheduler="sglang", **options)
    assert len(result.requests) == 4
    return [note for note in result.summary["notes"] if "keeps a request waiting" in note]


def test_decode_instances_have_the_pool_unless_they_run_in_outline() -> None:
    assert pool_notes() == []
    assert len(pool_notes(scheduling_policy="priority")) == 1

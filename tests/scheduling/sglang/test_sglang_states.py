"""SGLang's cache of states of linear attention and Mamba layers."""

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
from llmsim.lowering.scheduler import acceptance
from llmsim.scheduling.conformance.sglang.ours import our_run

INTERVAL = 64
BLOCKS = 4001


def pool(slots: int, spare: int = 2, answer_interval: int = 256, *, lazy: bool = False) -> Any:
    native = _native.StatePoolConfig()
    native.slots, native.spare, native.lazy = slots, spare, lazy
    native.prompt_interval, native.answer_interval = INTERVAL, answer_interval
    return native


def prompt(*parts: tuple[str, int]) -> list[int]:
    """The keys of a prompt whose parts have so many tokens; equal letters mean equal parts."""
    keys, key = [], 0
    for letter, tokens in parts:
        for _ in range(tokens):
            key = (key * 1_000_003 + ord(letter)) % (1 << 40)
            keys.append(key)
    return keys


def hits_of(prompts: list[list[int]], states: Any, answer: int = 10) -> list[int]:
    """Cached tokens of prompts, one after the other."""
    overlaps = int(states.spare > 0)
    extra = {"state_pool": states, "sglang_new_tokens": 8, "sglang_overlap": overlaps}
    options = Options(
        "sglang", block_size=1, blocks=BLOCKS, caching=True, keys=prompts, extra=extra
    )
    requests = [(400 * i, len(keys), answer) for i, keys in enumerate(prompts)]
    sim = run(requests, options)  # type: ignore[arg-type]
    assert_nothing_is_lost(sim, BLOCKS, requests)
    return [int(cached) for cached in sim.requests()["cached_tokens"]]


A, B, C = (prompt((letter, 400)) for letter in "abc")


def test_a_hit_ends_with_the_last_state_that_was_saved() -> None:
    """The last whole interval of 400 tokens ends at 384."""
    assert hits_of([A, A], pool(20)) == [0, 384]


def test_schedules_count_the_free_slots() -> None:
    """A request holds its own and two spare ones, and behind its prompt the prefix cache one."""
    short = prompt(("a", 200))
    extra = {"state_pool": pool(20), "sglang_new_tokens": 8, "sglang_overlap": 1}
    options = Options(
        "sglang", block_size=1, blocks=BLOCKS, caching=True, keys=[short], extra=extra
    )
    schedule = run([(0, len(short), 3)], options).schedule(0)
    assert schedule["free_states"].tolist() == [17, 16, 16]
    assert schedule["free_states_after"].tolist() == [16, 16, 19]
    apart = Options("sglang", block_size=1, blocks=BLOCKS, extra={"sglang_new_tokens": 8})
    schedule = run([(0, 400, 3)], apart).schedule(0)
    assert {*schedule["free_states"].tolist(), *schedule["free_states_after"].tolist()} == {-1}


def test_without_spare_slots_a_state_stands_where_the_prompt_ended() -> None:
    """Or a chunk of it, of 256 tokens. The last token of a prompt is always computed, and no state
    stands in front of it.
    """
    longer = prompt(("a", 400), ("b", 100))
    assert hits_of([A, A], pool(20, spare=0)) == [0, 256]
    assert hits_of([A, longer], pool(20, spare=0)) == [0, 400]


def test_a_state_is_saved_where_prompts_part() -> None:
    """The first prompt saves one at 256, where its chunk ends, and at 384. The second finds 200
    tokens without a state, and saves one at 192 in place of 256.
    """
    prompts = [prompt(("a", 200), (letter, 200)) for letter in "bcd"]
    assert hits_of([*prompts, prompts[1]], pool(40)) == [0, 0, 192, 384]


def test_an_answer_saves_states_at_its_own_interval() -> None:
    """An answer that reaches 499 tokens has one at 448 or none. It takes a slot of the cache, so
    that others lose theirs.
    """
    prompts = [A, B, A]
    few = {"slots": 6, "answer_interval": 64}
    assert hits_of(prompts, pool(**few)) == [0, 0, 384]
    assert hits_of(prompts, pool(**few), answer=100)[-1] < 384


def test_a_second_spare_slot_is_taken_where_one_is_free() -> None:
    """The first answer saves a state at 448. In three slots, of which the prompt's state takes one,
    it writes over its only spare one: either way the prompt is found.
    """
    few = pool(3, spare=1, answer_interval=64, lazy=True)
    many = pool(5, spare=1, answer_interval=64, lazy=True)
    assert hits_of([A, A], many, answer=100) == hits_of([A, A], few, answer=100) == [0, 384]


def test_states_go_by_their_own_order_of_use() -> None:
    """Seven slots hold three of one request, and four in the cache, of which one is its own; three
    hold only what runs.
    """
    prompts = [A, B, C, A, B, A]
    plenty, few = hits_of(prompts, pool(40)), hits_of(prompts, pool(5))
    assert plenty == [0, 0, 0, 384, 384, 384]
    assert sum(few) < sum(plenty)


def test_a_request_that_finds_no_slot_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match="pool of states"):
        hits_of([A], pool(2))


@settings(max_examples=40, deadline=None)
@given(
    requests_strategy,
    st.sampled_from([(0, False), (1, False), (2, False), (1, True)]),
    st.integers(0, 10),
    st.integers(500, 900),
    st.sampled_from([64, 256]),
)
def test_nothing_is_lost_with_states(
    requests: list[tuple[int, int, int]],
    strategy: tuple[int, bool],
    more: int,
    tokens: int,
    interval: int,
) -> None:
    """With each strategy and any pool that SGLang takes; equal prompts share their tokens."""
    keys = [list(range(1, prompt + 1)) for _, prompt, _ in requests]
    sequences = Options("sglang").max_seqs
    spare, lazy = strategy
    states = pool(sequences * (3 + spare) + more, spare, interval, lazy=lazy)
    options = Options(
        "sglang",
        block_size=1,
        blocks=tokens + 2,
        caching=True,
        keys=keys,
        extra={"state_pool": states, "sglang_overlap": int(lazy or spare == 2)},
    )
    sim = run(requests, options)  # type: ignore[arg-type]
    assert_nothing_is_lost(sim, options.blocks, requests)


def test_with_drafts_the_second_slot_is_taken_before_a_state_is_due() -> None:
    """Behind two chunks of the prompt the cache has two states, beside two slots of the request.
    Verifications of four tokens, which all hold, may save the state at 448 from 440 tokens on: two
    steps see a slot less.
    """
    native = _native.SpeculationConfig()
    native.tokens, native.acceptance = 3, acceptance([1.0] * 3)
    states = pool(20, spare=1, answer_interval=64, lazy=True)
    states.verified = 4
    extra = {"state_pool": states, "sglang_new_tokens": 8, "sglang_overlap": 1}
    extra["speculation"] = native
    prompt_keys = prompt(("a", 400))
    options = Options(
        "sglang", block_size=1, blocks=BLOCKS, caching=True, keys=[prompt_keys], extra=extra
    )
    sim = run([(0, 400, 100)], options)
    assert_nothing_is_lost(sim, BLOCKS, [(0, 400, 100)])
    free = sim.schedule(0)["free_states"].tolist()
    assert [20 - slots for slots in free] == [2, 3, *10 * [4], 5, 5, *13 * [4]]


LOAD = "synthetic:n=6,rate=2,input=fixed:700,output=fixed:20,prefixes=1:tokens=400"
QWEN = "Qwen/Qwen3-Next-80B-A3B-Instruct"


def run_of(model: str, **options: Any) -> Any:
    cluster = llmsim.Cluster.build(model, "H100", tp=4)
    return llmsim.run(cluster, LOAD, scheduler="sglang", **options)


def test_hits_of_a_run_end_with_states() -> None:
    """The second request saves a state at 384 of the 400 tokens that all share."""
    cached = run_of(QWEN).requests["cached_tokens"]
    assert [int(tokens) for tokens in cached] == [0, 0, 384, 384, 384, 384]


@pytest.mark.parametrize(
    ("model", "hit"),
    [("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 384), ("tiiuae/Falcon-H1-7B-Base", 256)],
)
def test_kernels_of_state_spaces_hand_out_states_farther_apart(model: str, hit: int) -> None:
    """128 tokens where config.json says so, and 256 where it says nothing, as SGLang takes it."""
    cached = run_of(model).requests["cached_tokens"]
    assert [int(tokens) for tokens in cached] == [0, 0, hit, hit, hit, hit]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"block_size": 96}, "must divide the 64 tokens"),
        ({"block_size": 16, "mamba_track_interval": 100}, "must divide mamba_track_interval"),
        (
            {"block_size": 16, "mamba_radix_cache_strategy": "no_buffer"},
            "no spare slots",
        ),
    ],
)
def test_blocks_that_sglang_refuses_beside_states_are_refused(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(LlmsimError, match=said):
        run_of(QWEN, **options)


def test_lazy_slots_need_steps_that_overlap() -> None:
    lazy = {"mamba_radix_cache_strategy": "extra_buffer_lazy"}
    assert "4 for each running" in " ".join(run_of(QWEN, **lazy).summary["notes"])
    with pytest.raises(LlmsimError, match="needs steps that overlap"):
        run_of(QWEN, **lazy, sglang_overlap=False)
    drafts = {"method": "mtp", "num_speculative_tokens": 1, "acceptance_rate": 0.7}
    result = run_of(QWEN, **lazy, speculative_config=drafts)
    assert [int(tokens) for tokens in result.requests["cached_tokens"]] == [0, 0, *4 * [384]]


def test_lazy_slots_do_not_run_with_roles() -> None:
    cluster = llmsim.Cluster.build(QWEN, "H100", tp=4, prefill=1, decode=1)
    with pytest.raises(LlmsimError, match="does not run on instances with the pd_type prefill"):
        llmsim.run(
            cluster, LOAD, scheduler="sglang", mamba_radix_cache_strategy="extra_buffer_lazy"
        )


@pytest.mark.parametrize("caches", [None, True])
def test_roles_hand_over_the_state_at_the_end_of_a_prompt(caches: bool | None) -> None:
    """A decode instance finds nothing of a prompt where kernels have saved no state: without a
    copy of the state that came, a prefix cache changes nothing here.
    """
    cluster = llmsim.Cluster.build(QWEN, "H100", tp=4, prefill=1, decode=1)
    options = {} if caches is None else {"enable_prefix_caching": caches}
    result = llmsim.run(cluster, LOAD, scheduler="sglang", **options)
    assert set(result.summary["invariants"].values()) == {"ok"}
    assert [int(tokens) for tokens in result.requests["cached_tokens"]] == [0, 0, *4 * [384]]
    assert any("B of state" in note for note in result.summary["notes"])


DECODES_STATES = {
    **DECODE_SERVER,
    "page_size": 1,
    "max_running_requests": 2,
    "max_total_tokens": 3000,
    "context_length": 1000,
    "clip_max_new_tokens": 64,
    "num_reserved_decode_tokens": 8,
    "max_mamba_cache_size": 6,
    "mamba_radix_cache_strategy": "no_buffer",
    "mamba_track_interval": 64,
    "mamba_chunk_size": 64,
}


def test_a_decode_server_without_a_slot_for_a_copy_goes_on() -> None:
    """Six requests hold its six slots, so the prefix cache gets no state; SGLang ends there."""
    asked = [
        {"id": f"r{i}", "arrival": 0.0, "segments": [[i, 100]], "output_len": 40} for i in range(9)
    ]
    steps = our_run({"config": DECODES_STATES, "requests": asked}).steps
    assert {name for step in steps for name in step["finished"]} == {one["id"] for one in asked}
    assert min(step["free_states"] for step in steps) == 0


def test_verified_tokens_have_states_of_their_own() -> None:
    """Three drafts and the token before them: four for each of so many sequences, and padding."""
    drafts = {"method": "mtp", "num_speculative_tokens": 3, "acceptance_rate": 0.7}
    result = run_of(QWEN, speculative_config=drafts, max_num_seqs=8, max_mamba_cache_size=100)
    lines = result.summary["kv_cache"][0]["ledger"]
    labels = [line["label"] for line in lines]
    assert any(f"verified tokens, {4 * (8 + 1)} x" in label for label in labels)

"""Layers that see a window or keep a state, in tables of blocks of their own: steps by hand, and
under pressure.
"""

from typing import Any

import pytest

from llmsim import _native
from llmsim.scheduling.conformance.cases import run_case
from llmsim.scheduling.conformance.random_cases import random_case

SIZE = 4


def case(
    windows: list[int], requests: list[tuple[float, int, int]], blocks: int, **config: Any
) -> dict[str, Any]:
    """Requests of one content: (arrival in s, prompt, answer)."""
    options = {
        "max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 200, "block_size": SIZE,
        "enable_prefix_caching": False, "num_gpu_blocks": blocks, "kv_windows": windows, **config,
    }  # fmt: skip
    listed = [
        {"id": str(i), "arrival": arrival, "segments": [[1, prompt]], "output_len": output}
        for i, (arrival, prompt, output) in enumerate(requests)
    ]
    return with_resolved({"name": "by hand", "config": options, "requests": listed})


def with_resolved(case: dict[str, Any]) -> dict[str, Any]:
    config = case["config"]
    return case | {
        "resolved": {
            "max_num_scheduled_tokens": config["max_num_batched_tokens"],
            "watermark": config.get("watermark", 0.0),
            "max_concurrent_batches": 2 if config.get("async_scheduling") else 1,
            "num_lookahead_tokens": 0,
            "num_spec_tokens": 0,
            "reserve_full_isl": config.get("scheduler_reserve_full_isl", True),
        }
    }


def used(one: dict[str, Any]) -> list[int]:
    """Blocks in use at each step."""
    return [one["config"]["num_gpu_blocks"] - 1 - step["free_blocks"] for step in run_case(one)]


def test_layers_that_attend_in_chunks_keep_the_last_one_begun() -> None:
    """A prompt of 10 with chunks of 12 in blocks of 4, beside a table of everything: the first
    chunk is given back in the step after 12 tokens are computed.
    """
    prompt, answer, chunk = 10, 20, 12
    slots = [prompt + k for k in range(answer)]
    computed = [0, *slots[:-1]]
    given_back = [done // chunk * chunk // SIZE for done in computed]
    held = [-(-tokens // SIZE) - gone for tokens, gone in zip(slots, given_back, strict=True)]
    everything = [-(-tokens // SIZE) for tokens in slots]
    for windows in ([-chunk, 0], [0, -chunk]):
        one = case(windows, [(0, prompt, answer)], 50)
        assert used(one) == [a + b for a, b in zip(held, everything, strict=True)]
    assert min(held) == 1 and max(held) == 3


@pytest.mark.parametrize(("prompt", "hit"), [(13, 12), (25, 24), (23, 20)])
def test_a_prefix_needs_no_block_of_chunks_that_are_over(prompt: int, hit: int) -> None:
    """The second request of one content hits whole blocks, wherever its chunk begins."""
    one = case(
        [-12, 0],
        [(0, prompt, 1), (10, prompt, 1)],
        50,
        enable_prefix_caching=True,
        max_num_batched_tokens=64,
    )
    first, second = (step["scheduled"] for step in run_case(one) if step["scheduled"])
    assert [tokens for _, tokens, _ in first] == [prompt]
    assert [tokens for _, tokens, _ in second] == [prompt - hit]


def test_chunks_with_a_drafter_that_reads_hidden_states_are_refused() -> None:
    one = case([-12, 0], [(0, 8, 1)], 50, enable_prefix_caching=True)
    one["resolved"] |= {"use_eagle": True}
    with pytest.raises(ValueError, match="tables of chunks keep no hidden states"):
        list(run_case(one))


def test_blocks_of_several_sizes_are_taken_and_given_back_table_by_table() -> None:
    """A prompt of 8 with a window of 4 in blocks of 4, beside everything in blocks of 12."""
    answer = 10
    everything = [-(-(8 + k) // 12) for k in range(answer)]
    window = [-(-(8 + k) // 4) - (max(0, 8 + k - 4) // 4 if k else 0) for k in range(answer)]
    for windows, sizes in (([4, 0], [4, 12]), ([0, 4], [12, 4])):
        one = case(windows, [(0, 8, answer)], 50, kv_block_sizes=sizes)
        assert used(one) == [a + b for a, b in zip(everything, window, strict=True)]


def test_a_prefix_of_several_block_sizes_ends_where_all_of_them_do() -> None:
    """Of 33 equal tokens, blocks of 4 and 12 have 24 in common; a window of 4 then has its last
    block there, and everything its two.
    """
    one = case(
        [4, 0], [(0, 33, 1), (1, 33, 1)], 50, enable_prefix_caching=True, kv_block_sizes=[4, 12]
    )
    last = list(run_case(one))[-1]
    assert last["scheduled"] == [("1", 9, 24)]
    assert used(one)[-1] == 1 + 3 + 2 + 1  # hit and new blocks of the window, and of everything


def test_a_window_gives_blocks_back_when_no_token_sees_them() -> None:
    """Window 4, blocks of 4, prompt 8: before the step of token t the window has left (t - 3) // 4
    blocks behind.
    """
    answer = 10
    everything = [-(-(8 + k) // SIZE) for k in range(answer)]
    behind = [0] + [(8 + k - 4) // SIZE for k in range(1, answer)]
    one = case([0, 4], [(0, 8, answer)], 50)
    assert used(one) == [2 * blocks - gone for blocks, gone in zip(everything, behind, strict=True)]
    assert used(case([4], [(0, 8, answer)], 50)) == [
        b - g for b, g in zip(everything, behind, strict=True)
    ]
    assert used(case([0, 4, -1, -1], [(0, 8, answer)], 50)) == [blocks + 2 for blocks in used(one)]


def test_a_prefix_is_hit_where_the_window_before_it_is_cached() -> None:
    """The second of two equal prompts of 33 tokens finds 8 blocks, of which it takes the last one
    of the window.
    """
    one = case([0, 4], [(0, 33, 1), (1, 33, 1)], 50, enable_prefix_caching=True)
    last = list(run_case(one))[-1]
    assert last["scheduled"] == [("1", 1, 32)]
    assert (
        used(one)[-1] == 8 + 1 + 1 + 1
    )  # all hits of one table, one of the other, and a new block of each


def test_a_prefix_is_not_hit_where_its_window_has_been_evicted() -> None:
    """A pool of 24 blocks: a prompt in between takes what the windows gave back, and then some of
    the rest.
    """
    requests = [(0, 33, 1), (1, 60, 1), (2, 33, 1)]
    config = case([0, 4], requests, 26, enable_prefix_caching=True)
    config["requests"][1]["segments"] = [[2, 60]]
    cached = [
        step["scheduled"][0][2] for step in run_case(config) if step["scheduled"][0][0] == "2"
    ]
    plain = case([0], requests, 26, enable_prefix_caching=True)
    plain["requests"][1]["segments"] = [[2, 60]]
    assert (
        next(step["scheduled"][0][2] for step in run_case(plain) if step["scheduled"][0][0] == "2")
        > cached[0]
    )


def test_admission_counts_what_windows_hold_at_most() -> None:
    """With the whole prompt reserved, 100 tokens of a window of 4 need (3 + 16) / 4 + 1 blocks, not
    25.
    """
    fits = case([0, 4], [(0, 100, 2)], 26 + 6 + 2)
    assert sum(tokens for step in run_case(fits) for _, tokens, _ in step["scheduled"]) == 101


@pytest.mark.parametrize(
    ("windows", "prompt", "most"),
    [
        ([8], 100, 7),
        ([8], 20, 6),
        ([0, 8], 100, 26 + 7),
        ([8, -1], 100, 7 + 1),
        ([0, -1], 100, 26 + 1),
        ([5, 17], 100, 6 + 9),
    ],
)
def test_a_request_runs_in_the_blocks_that_it_ever_holds_and_in_no_fewer(
    windows: list[int], prompt: int, most: int
) -> None:
    """A window of w before a step of 16 tokens spans (w - 1 + 16) / 4 blocks and one more, a state
    one.
    """
    for reserve in (False, True):
        for blocks, scheduled in ((most + 1, prompt + 1), (most, 0)):  # one is the null block
            steps = run_case(
                case(windows, [(0, prompt, 2)], blocks, scheduler_reserve_full_isl=reserve)
            )
            assert sum(tokens for step in steps for _, tokens, _ in step["scheduled"]) == scheduled


@pytest.mark.parametrize("seed", range(0, 400, 8))
def test_every_request_ends_and_every_block_comes_back(seed: int) -> None:
    sampled = random_case(seed, 25)
    config = sampled["config"]
    for option in (
        "speculative",
        "pipeline_parallel_size",
        "use_v2_model_runner",
        "max_num_scheduled_tokens",
        "connector",
        "kv_block_sizes",
    ):
        config.pop(option, None)
    windows = [[17, 0], [0, 128, 300], [2], [0, 17, 17], [-48, 0], [0, -20, 17]][seed // 8 % 6]
    config["kv_windows"] = windows + ([] if config["enable_prefix_caching"] else [-1])
    config["num_gpu_blocks"] *= len(config["kv_windows"])
    if seed % 16 == 0 and min(config["kv_windows"]) >= 0:  # of every other one three kinds of sizes
        times = {window: 1 + place for place, window in enumerate(dict.fromkeys(windows))}
        config["kv_block_sizes"] = [config["block_size"] * times[window] for window in windows]
        config.pop("prefix_cache_retention_interval", None)
    steps = list(run_case(with_resolved(sampled)))
    gone = {name for step in steps for name in step["finished"]}
    patient = {
        one["id"]
        for one in sampled["requests"]
        if not set(one) & {"cancel_after", "cancel_after_tokens"}
    }
    assert patient <= gone
    assert all(0 <= step["free_blocks"] < config["num_gpu_blocks"] for step in steps)


@pytest.mark.parametrize(
    ("windows", "caching", "words"),
    [
        ([-1, 0], False, "first table"),
        ([0, 1], False, "at least 2"),
        ([0, -1], True, "no prefix cache"),
        ([0, -1, 4], False, "come last"),
    ],
)
def test_tables_that_cannot_be_are_refused(windows: list[int], caching: bool, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(run_case(case(windows, [(0, 8, 1)], 50, enable_prefix_caching=caching)))
    assert _native.KvTables().windows == [0]


@pytest.mark.parametrize(
    ("sizes", "windows", "words"),
    [
        ([4, 8, 4], [0, 4], "3 block sizes are given for 2 tables"),
        ([4, 6], [0, 4], "blocks of 6 tokens, which are no multiple of 4"),
        ([8, 12], [0, 4], "no table has blocks of 4 tokens"),
        ([4, 0], [0, 4], "blocks of 0 tokens"),
    ],
)
def test_block_sizes_that_cannot_be_are_refused(
    sizes: list[int], windows: list[int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        list(run_case(case(windows, [(0, 8, 1)], 50, kv_block_sizes=sizes)))


def test_steps_that_are_larger_than_windows_are_counted_for_are_refused() -> None:
    one = case([0, 4], [(0, 8, 2)], 50)
    one["resolved"]["max_num_scheduled_tokens"] = 17
    with pytest.raises(ValueError, match="steps of 17 tokens, but windows are to hold those of 16"):
        list(run_case(one))

"""Random configurations and workloads for conformance: every option of the scheduler under every
pressure.
"""

import math
from typing import Any

import numpy as np

from llmsim.model.memory.hybrid_groups import KEEPS_STATE
from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.connectors import FAIL, HANDOVER, OFFLOADING, RECOMPUTE


def random_case(seed: int, num_requests: int) -> Case:
    """A case without its `resolved` part; the same seed and number give the same case."""
    rng = np.random.Generator(np.random.PCG64(seed))
    config = _options(rng)
    longest = config["max_model_len"]
    _leave_room_for_drafts(config)
    if rng.random() < 0.3:
        _pipeline(rng, config)
    by_priority = config.get("policy") == "priority"
    requests = random_requests(rng, num_requests, longest, by_priority=by_priority)
    most = max(_prompt(request) + request["output_len"] for request in requests)
    # From barely enough for the largest request, and the slots of its drafts, to plenty.
    drafts = config.get("speculative", {}).get("num_speculative_tokens", 0)
    drafts *= 2 + config.get("pipeline_parallel_size", 1)
    need = -(-(min(most, longest) + 8 + drafts) // config["block_size"]) + 2
    blocks = int(need * rng.choice([1.0, 1.05, 1.3, 2.0, 4.0, 20.0])) + 1
    config["num_gpu_blocks"] = int(blocks / (1 - config.get("watermark", 0.0))) + 2
    case: Case = {"name": f"random {seed}", "config": config, "requests": requests}
    if "speculative" in config:
        _acceptance(rng, case, config["speculative"])
    if rng.random() < 0.4:
        give_up(rng, requests)
    if rng.random() < 0.3:
        _windows(rng, config, min(most, longest) + 8 + drafts)
    if rng.random() < 0.3:
        config["ends_with_stop_token"] = True
    _later_options(np.random.default_rng([seed, 33]), config, requests)
    rng = np.random.default_rng([seed, 34])
    if rng.random() < 0.25:
        _images(rng, config, requests)
    rng = np.random.default_rng([seed, 35])
    if rng.random() < 0.4 and not {"kv_windows", "encoder_tokens"} & set(config):
        _connector(rng, config, requests)
        _load_failures(np.random.default_rng([seed, 36]), config["connector"])
    rng = np.random.default_rng([seed, 36])
    if rng.random() < 0.5 and _sizes_differ(config):
        _block_sizes(rng, config)
    _match_unit(np.random.default_rng([seed, 37]), config)
    rng = np.random.default_rng([seed, 38])
    if rng.random() < 0.3 and not _OTHER_PLACES & set(config) and config["enable_prefix_caching"]:
        config["connector"] = offloading(rng)
    _chunks(np.random.default_rng([seed, 39]), config)
    _runner(np.random.default_rng([seed, 40]), config)
    _ranks(np.random.default_rng([seed, 41]), config)
    return case


def _runner(rng: np.random.Generator, config: dict[str, Any]) -> None:
    """Model Runner V2 without pipeline stages; with drafts by n-grams, for which asynchronous
    scheduling does not wait then.
    """
    if "pipeline_parallel_size" in config or rng.random() < 0.6:
        return
    if config.get("speculative", {}).get("method") == "ngram":
        config |= {"use_v2_model_runner": True, "async_scheduling": True}
    elif _runs_under_v2(config):
        config["use_v2_model_runner"] = True


def _match_unit(rng: np.random.Generator, config: dict[str, Any]) -> None:
    """Hits inside of blocks, where some layers keep states in the prefix cache: each table copies
    a block for them, and holds the one that it copies.
    """
    windows, size = config.get("kv_windows", []), config["block_size"]
    states = config["enable_prefix_caching"] and -1 in windows
    if not states or "connector" in config or rng.random() < 0.3:
        return
    units = [unit for unit in range(1, size + 1) if size % unit == 0]
    config["prefix_match_unit"] = int(rng.choice(units))
    config["num_gpu_blocks"] += 2 * len(windows)


def _chunks(rng: np.random.Generator, config: dict[str, Any]) -> None:
    """Layers of some window attend in chunks of as many tokens instead, which vLLM has with
    neither EAGLE nor blocks of several sizes.
    """
    windows = config.get("kv_windows", [])
    seen = sorted({window for window in windows if window > 0})
    eagle = config.get("speculative", {}).get("method") == "eagle"
    refused = eagle or "kv_block_sizes" in config
    if not seen or refused or rng.random() < 0.6:
        return
    chunk = int(rng.choice(seen))
    config["kv_windows"] = [-window if window == chunk else window for window in windows]
    has_ends_of_its_own = any(map(_ends_apart, config["kv_windows"]))
    if not has_ends_of_its_own and "prefix_cache_retention_interval" in config:
        config["prefix_cache_retention_interval"] = 0  # vLLM refuses one that has no effect


def _ends_apart(window: int) -> bool:
    """Whether cached prefixes of a layer end elsewhere than blocks: of a window, or a state."""
    return window > 0 or window == KEEPS_STATE


def _sizes_differ(config: dict[str, Any]) -> bool:
    """Blocks of several sizes keep neither states nor, before 0.33, what a drafter reads."""
    windows = config.get("kv_windows", [])
    eagle = config.get("speculative", {}).get("method") == "eagle"
    return len(set(windows)) > 1 and -1 not in windows and not eagle


def _block_sizes(rng: np.random.Generator, config: dict[str, Any]) -> None:
    """Layers of some windows store less of a token, so that their blocks hold several times as
    many; the pool still holds the largest request, since no table needs more blocks.
    """
    windows, size = config["kv_windows"], config["block_size"]
    kinds = list(dict.fromkeys(windows))
    widest = int(rng.integers(len(kinds)))
    times = {
        window: 1 if number == widest else int(rng.choice([1, 2, 2, 3, 4, 8]))
        for number, window in enumerate(kinds)
    }
    config["kv_block_sizes"] = [size * times[window] for window in windows]
    if config.get("prefix_cache_retention_interval", 0) > 0:
        config["prefix_cache_retention_interval"] *= math.lcm(*times.values())


def _connector(rng: np.random.Generator, config: dict[str, Any], requests: list[Case]) -> None:
    """A pair of groups that hands KV over, or a pool below the group."""
    link = {
        "bytes_per_s": int(rng.choice([10**6, 10**7, 10**8, 10**10])),
        "latency_ns": int(rng.choice([0, 1000, 10**6])),
    }
    size = config["block_size"]
    if not config["enable_prefix_caching"] or rng.random() < 0.5:
        longest = -(-max(_prompt(request) for request in requests) // size)
        drafts = config.get("speculative", {}).get("num_speculative_tokens", 0)
        slots = -(-(8 + drafts * (2 + config.get("pipeline_parallel_size", 1))) // size)
        need = (longest + slots) * rng.choice([1.0, 1.3, 2.0, 4.0, 20.0])
        blocks = int(need / (1 - config.get("watermark", 0.0))) + 3
        push = bool(rng.random() < 0.3)
        config["connector"] = {"kind": "handover", "prefill_blocks": blocks, "push": push} | link
        if not config["enable_prefix_caching"] and rng.random() < 0.3:
            config["connector"]["state_bytes"] = 20_000
        return
    config["connector"] = {
        "kind": "pool",
        "chunk_blocks": int(rng.choice([1, 1, 2, 4])),
        "pool_chunks": int(rng.choice([4, 40, 400, 10**5])),
        "parks": bool(rng.random() < 0.7),
        "selective": bool(rng.random() < 0.3),
    } | link


_OTHER_PLACES = {"kv_windows", "encoder_tokens", "connector"}
"""Options that do not go with KV offloading here."""


def offloading(rng: np.random.Generator) -> dict[str, Any]:
    """vLLM's own offloading to host memory."""
    return {
        "kind": OFFLOADING,
        "chunk_blocks": int(rng.choice([1, 1, 2, 4])),
        "pool_chunks": int(rng.choice([4, 20, 60, 200, 1000, 10**5])),
        "eviction": str(rng.choice(["lru", "lru", "arc"])),
        "store_threshold": int(rng.choice([0, 0, 0, 0, 2, 3])),
        "prompt_only": bool(rng.random() < 0.5),
        "bytes_per_s": int(rng.choice([10**6, 10**7, 10**8, 10**10])),
        "latency_ns": int(rng.choice([0, 1000, 10**6])),
        "sync_load_tokens": int(rng.choice([0, 0, 40, 200, 10**6])),
        "max_tracker_size": int(rng.choice([8, 40, 64_000, 64_000])),
    }


def _load_failures(rng: np.random.Generator, connector: dict[str, Any]) -> None:
    """Loads that fail, of those that requests are parked for."""
    if rng.random() < 0.5 or not connector.get("parks", True):
        return
    chance = int(rng.choice([0.05, 0.3, 0.9]) * (1 << 53))
    policy = str(rng.choice([RECOMPUTE, RECOMPUTE, FAIL]))
    connector["load_failures"] = {"chance": chance, "policy": policy}


def _ranks(rng: np.random.Generator, config: dict[str, Any]) -> None:
    """Several data-parallel ranks on a side of a hand-over, or on both, in lock-step."""
    connector = config.get("connector", {})
    beside = {"pipeline_parallel_size", "speculative"} & set(config)
    alone = connector.get("kind") != HANDOVER or connector["push"] or beside
    if alone or rng.random() < 0.4:
        return
    connector["ranks"] = [int(rng.choice([1, 2, 2, 4])), int(rng.choice([1, 2, 2, 4]))]
    connector["sync_interval"] = int(rng.choice([1, 4, 16]))


def _later_options(rng: np.random.Generator, config: dict[str, Any], requests: list[Case]) -> None:
    """Options of 0.33, drawn by themselves so that each seed's other options stay."""
    if config.get("speculative", {}).get("method") == "eagle" and rng.random() < 0.4:
        modules = int(rng.integers(2, 5))
        # vLLM wants a block of a cached prefix to hold what the modules read ahead.
        drafts = config["speculative"]["num_speculative_tokens"]
        holds = not config["enable_prefix_caching"] or config["block_size"] >= drafts
        # Steps that take less of a prompt than the modules read never end it, in vLLM either.
        if holds and config.get("long_prefill_token_threshold", modules) >= modules:
            config["speculative"]["num_nextn_predict_layers"] = modules
    if "long_prefill_token_threshold" in config:
        # A cached prompt takes a whole verification; cut by the threshold, vLLM 0.33 asserts.
        drafts = config.get("speculative", {}).get("num_speculative_tokens", 0)
        threshold = max(config["long_prefill_token_threshold"], 1 + drafts)
        config["long_prefill_token_threshold"] = threshold
    if rng.random() < 0.2 and _starts_with_adapters(config):
        config["max_loras"] = int(rng.choice([1, 2, 4]))
        for request in requests:
            request["lora"] = int(rng.integers(0, 2 + config["max_loras"]))
    if config["enable_prefix_caching"] and "kv_windows" in config:
        _cached_states(rng, config)
        _retention(rng, config)


def _images(rng: np.random.Generator, config: dict[str, Any], requests: list[Case]) -> None:
    """Images in front of the last part of prompts, some of them the same, with an encoder from
    barely enough for the largest to plenty.
    """
    longest, before = config["max_model_len"], _most(config, requests)
    tokens = [int(rng.integers(1, max(2, longest // 8))) for _ in range(int(rng.integers(1, 9)))]
    chance = float(rng.choice([0.1, 0.5, 0.9]))
    for request in requests:
        request["images"] = []
        while rng.random() < chance and len(request["images"]) < _MOST_IMAGES:
            image = int(rng.integers(len(tokens)))
            if _prompt(request) + tokens[image] > longest - 1:
                break
            place = len(request["segments"]) - 1
            request["segments"].insert(place, [_FIRST_IMAGE + image, tokens[image]])
            request["images"].append(place)
    more = -(-(_most(config, requests) - before) // config["block_size"])
    room = more * len(config.get("kv_windows", [0])) / (1 - config.get("watermark", 0.0))
    config["num_gpu_blocks"] += int(room) + 1
    largest = max(tokens)
    config["encoder_tokens"] = largest * int(rng.choice([1, 2, 20]))
    config["encoder_cache_tokens"] = largest * int(rng.choice([2, 4, 20]))
    chunk = config.get("long_prefill_token_threshold", config["max_num_batched_tokens"])
    scheduled = config.get("max_num_scheduled_tokens", config["max_num_batched_tokens"])
    # Else some prompts never end, in vLLM either.
    ends = 2 * largest + 16 <= min(chunk, scheduled) and -1 not in config.get("kv_windows", ())
    config["disable_chunked_mm_input"] = bool(ends and rng.random() < 0.4)


def _most(config: dict[str, Any], requests: list[Case]) -> int:
    """Tokens of the longest request, prompt and answer."""
    most = max(_prompt(request) + request["output_len"] for request in requests)
    return int(min(most, config["max_model_len"]))


_FIRST_IMAGE = 10_000
"""Segments from here on are images."""
_MOST_IMAGES = 5
"""Of one request."""


def _starts_with_adapters(config: dict[str, Any]) -> bool:
    """vLLM refuses adapters where a step of verifications alone may not fit its budget."""
    drafts = config.get("speculative", {}).get("num_speculative_tokens", 0)
    return bool(config["max_num_batched_tokens"] >= config["max_num_seqs"] * (drafts + 1))


def _cached_states(rng: np.random.Generator, config: dict[str, Any]) -> None:
    """States in the prefix cache, of which each takes a block at the end of every step."""
    if "speculative" in config or rng.random() < 0.5:
        return
    windows, number = config["kv_windows"], int(rng.integers(1, 4))
    if 0 in windows and rng.random() < 0.5:
        windows = [0]
    config["kv_windows"] = [*windows, *[-1] * number]
    config["num_gpu_blocks"] += 4 * number * config.get("pipeline_parallel_size", 1)
    if rng.random() < 0.6:
        config["checkpoint_alignment"] = int(rng.choice([1, 4, 64]))


def _retention(rng: np.random.Generator, config: dict[str, Any]) -> None:
    """Where cached prefixes of layers with a window or a state end, in releases that say so."""
    interval = int(rng.choice([-1, 0, 0, 0, 2, 5, 20])) * config["block_size"]
    config["prefix_cache_retention_interval"] = max(-1, interval)


def _windows(rng: np.random.Generator, config: dict[str, Any], slots: int) -> None:
    """Layers that see windows of one size or two, or keep states, beside those that see everything,
    if there are any.

    The pool keeps its size relative to what the largest request needs at once.
    """
    size, step = config["block_size"], config["max_num_batched_tokens"]
    one, two = (int(window) for window in rng.choice([2, 17, 128, 300, 1024], 2, replace=False))
    tables = [[one], [0, one], [one, one, one, 0], [0, one, two], [one, two]][int(rng.integers(5))]
    if not config["enable_prefix_caching"] and rng.random() < 0.4:
        tables = [*tables, *[-1] * int(rng.integers(1, 4))]
    whole = -(-slots // size)
    held = {
        window: min(whole, -(-(window - 1 + step + slots - 1) // size) + 1)
        for window in tables
        if window > 0
    }
    need = sum(held.get(window, whole if window == 0 else 1) for window in tables)
    config["kv_windows"] = tables
    config["num_gpu_blocks"] = int(config["num_gpu_blocks"] * (need + 2) / (whole + 2)) + 2


def _leave_room_for_drafts(config: dict[str, Any]) -> None:
    """A draft model's slots come off the budget for every sequence; vLLM refuses to start where
    nothing is left.
    """
    drafts = config.get("speculative", {})
    if drafts.get("method") != "draft_model":
        return
    slots = drafts["num_speculative_tokens"] if drafts.get("parallel_drafting") else 1
    if slots * config["max_num_seqs"] >= config["max_num_batched_tokens"]:
        config["max_num_seqs"] = max(1, config["max_num_batched_tokens"] // slots // 2)


def _pipeline(rng: np.random.Generator, config: dict[str, Any]) -> None:
    """Several batches in flight; Model Runner V2 takes one more, with asynchronous scheduling.

    With drafts vLLM 0.24 runs these under V2 alone: a step behind one whose drafts are rejected
    would have less than no tokens, which it asserts not to happen.
    """
    v2 = _runs_under_v2(config) and bool(rng.random() < 0.6)
    if "speculative" in config and not (v2 and config["async_scheduling"]):
        return
    config["pipeline_parallel_size"] = int(rng.integers(2, 5))
    config["use_v2_model_runner"] = v2


def _runs_under_v2(config: dict[str, Any]) -> bool:
    """Whether every release's Model Runner V2 has the drafts of a case."""
    speculative = config.get("speculative")
    if speculative is None:
        return True
    return speculative["method"] == "eagle" and not set(speculative) & set(_NOT_V2)


def _acceptance(rng: np.random.Generator, case: Case, config: dict[str, Any]) -> None:
    """How many drafts hold: a fixed number, or by chance at every position; and whether ngram finds
    any.
    """
    tokens = config["num_speculative_tokens"]
    if rng.random() < 0.3:
        case["accepted_draft_tokens"] = int(rng.integers(0, tokens + 1))
    else:
        case["acceptance"] = [int(share * (1 << 53)) for share in rng.random(tokens)]
    if config["method"] == "ngram":
        case["proposal_chance"] = int(rng.choice([0.3, 0.7, 1.0]) * (1 << 53))


_NOT_V2 = ("parallel_drafting", "num_speculative_tokens_per_batch_size")
"""What vLLM's Model Runner V2 does not run of a speculative_config."""


def _speculative(rng: np.random.Generator, config: dict[str, Any]) -> dict[str, Any]:
    method = ("draft_model", "eagle", "ngram")[int(rng.integers(3))]
    tokens = int(rng.choice([1, 2, 3, 5, 8]))
    chosen: dict[str, Any] = {"method": method, "num_speculative_tokens": tokens}
    if method == "ngram":
        config["async_scheduling"] = False  # it proposes on the host, between two steps
        return chosen | {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    if method == "draft_model" and rng.random() < 0.25:
        return chosen | {"parallel_drafting": True}
    if rng.random() < 0.25:
        fewer = int(rng.integers(0, tokens + 1))
        chosen["num_speculative_tokens_per_batch_size"] = [
            [1, 4, tokens],
            [8, config["max_num_seqs"] + 8, fewer],
        ]
    return chosen


def give_up(rng: np.random.Generator, requests: list[Case]) -> None:
    """Some clients lose patience: after a time, with some tokens, or both."""
    for request in requests:
        if rng.random() < 0.25:
            request["cancel_after"] = (
                round(1 + float(rng.exponential(rng.choice([3e3, 3e5, 3e6])))) / 1e6
            )
        if rng.random() < 0.15:
            request["cancel_after_tokens"] = 1 + int(rng.integers(0, request["output_len"]))


def _options(rng: np.random.Generator) -> dict[str, Any]:
    def chance(share: float) -> bool:
        return bool(rng.random() < share)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    longest = pick(200, 1000, 2048, 4096, 8192)
    chunked = chance(0.85)
    budget = pick(40, 256, 512, 1024, 2048, 2048, 8192)
    budget = budget if chunked else max(budget, longest)
    config: dict[str, Any] = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(pick(1, 2, 8, 32, 64, 128, 256), budget),
        "block_size": pick(16, 16, 16, 1, 3, 8, 24, 32, 64, 100, 128, 256),
        "max_model_len": longest,
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": chance(0.6),
        "async_scheduling": chance(0.5),
        "scheduler_reserve_full_isl": chance(0.7),
    }
    if chunked and chance(0.3):
        config["long_prefill_token_threshold"] = min(pick(1, 7, 64, 128, 256), longest)
    if chance(0.3):
        config["policy"] = "priority"
    if chance(0.3):
        config["watermark"] = pick(0.01, 0.05, 0.1)
    if chance(0.35):
        config["speculative"] = _speculative(rng, config)
    if chance(0.2):
        config["prefill_schedule_interval"] = pick(2, 4, 16)
    if chunked and chance(0.15):
        config["max_num_scheduled_tokens"] = max(1, int(budget * pick(0.3, 0.9)))
    return config


def random_requests(
    rng: np.random.Generator, number: int, longest: int, *, by_priority: bool
) -> list[Case]:
    rate = float(rng.choice([5, 20, 50, 5000]))
    prompt, output = float(rng.choice([3, 100, 200, 400])), float(rng.choice([1, 30, 80, 150]))
    edges = rng.random() < 0.3
    sharing = rng.random() < 0.6
    prefixes = {1: min(200, longest // 4), 2: min(333, longest // 4), 3: 77}
    requests: list[Case] = []
    arrival_us = 0
    for i in range(number):
        arrival_us += 1 + int(rng.exponential(1e6 / rate))
        own = int(np.clip(rng.lognormal(0, 0.9) * prompt, 1, longest // 2))
        segments = [[1000 + i, own]]
        if sharing:
            group = int(rng.integers(1, 4))
            segments.insert(0, [group, prefixes[group]])
            if requests and rng.random() < 0.2:
                segments = [
                    list(part) for part in requests[int(rng.integers(len(requests)))]["segments"]
                ]
        request: Case = {
            "id": f"r{i:05d}",
            "arrival": arrival_us / 1e6,
            "segments": segments,
            "output_len": int(np.clip(rng.lognormal(0, 0.7) * output, 1, longest // 4)),
        }
        if edges and rng.random() < 0.2:  # as long as the model reads, or answers that it cuts off
            request["segments"][-1][1] += int(rng.choice([0, longest]))
            request["output_len"] = int(rng.choice([1, 2, longest // 4, longest]))
        request["segments"][-1][1] -= max(0, _prompt(request) - (longest - 1))
        if by_priority:
            request["priority"] = int(rng.integers(0, 4))
        requests.append(request)
    return requests


def _prompt(request: Case) -> int:
    return sum(length for _, length in request["segments"])

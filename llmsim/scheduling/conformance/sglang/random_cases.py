"""Random configurations and workloads for SGLang's scheduler: small pools, long queues, shared
prompts.
"""

from typing import Any

import numpy as np

from llmsim.config.engine.options import (
    HICACHE_PREFETCH_POLICIES,
    HICACHE_WRITE_POLICIES,
    SGLANG_BY_PRIORITY,
    SGLANG_POLICIES,
)
from llmsim.config.engine.sglang.state_pool import LAZY, states_of_request
from llmsim.config.engine.sglang.window_pool import SLIDE_INTERVAL
from llmsim.scheduling.conformance.cases import Case, by_arrival
from llmsim.scheduling.conformance.random_cases import give_up, random_requests
from llmsim.scheduling.conformance.sglang.ours import (
    HANDED_OVER,
    PAIR,
    caches,
    keeps_states,
    servers,
    spare_states_of,
    window_tokens,
)

_DRAWN_POLICIES = SGLANG_POLICIES[:4]
"""The others take the place of these in some cases."""
_BY_WORK = SGLANG_POLICIES[4:]


def random_case(seed: int, requests: int) -> Case:
    """A case in which every request fits the pool; the same for the same arguments."""
    rng = np.random.default_rng([seed, 23])
    config = _options(rng)
    longest = config["context_length"]
    case: Case = {"config": config}
    later = np.random.default_rng([seed, 29])
    ahead = _drafts(later, case)
    if ahead == 0 and later.random() < 0.3:
        config |= {"pp_size": int(later.choice([2, 2, 3, 4])), "disable_overlap_schedule": True}
    _host_cache(np.random.default_rng([seed, 31]), config)
    plays_role = ahead == 0 and _role(np.random.default_rng([seed, 41]), config)
    plays_role |= _role_beside(np.random.default_rng([seed, 109]), config)
    plays_role |= _role_of_stages(np.random.default_rng([seed, 131]), config)
    if ahead == 0:
        _ranks(np.random.default_rng([seed, 43]), config)
    _ranks_beside(np.random.default_rng([seed, 113]), config)
    _ranks_of_roles(np.random.default_rng([seed, 127]), config)
    if not plays_role and "dp_size" not in config:
        _receiving(np.random.default_rng([seed, 47]), config)
    _queue_order(np.random.default_rng([seed, 53]), config)
    _host_cache_beside(np.random.default_rng([seed, 71]), config)
    _host_storage(np.random.default_rng([seed, 59]), config)
    _layers_with_states(seed, config)
    by_priority = config["enable_priority_scheduling"]
    case["requests"] = random_requests(rng, requests, longest - 8 - ahead, by_priority=by_priority)
    if config["schedule_policy"] == "hrrn":
        _name_by_arrival(case)
    _come_back(seed, case, longest - 8 - ahead)
    if by_priority and rng.random() < 0.6:  # else who is important waits with its like
        _rise(case)
    if later.random() < 0.25 and not plays_role:
        give_up(later, case["requests"])
    for request in case["requests"] if ahead > 0 else ():
        prompt = sum(length for _, length in request["segments"])
        request["output_len"] = min(request["output_len"], longest - 8 - ahead - prompt)
    most = max(
        sum(length for _, length in request["segments"]) + request["output_len"]
        for request in case["requests"]
    )
    page = config["page_size"]
    least = min(most, longest) + 3 * page + 8 + ahead
    if config.get("disaggregation_mode") in HANDED_OVER:
        least += config["num_reserved_decode_tokens"] + page
    factor = float(rng.choice([1, 1.2, 2, 4, 20]))
    if "hicache_storage_backend" in config:  # what is asked again has left device and host
        factor = float(np.random.default_rng([seed, 61]).choice([1, 1.2, 2]))
    config["max_total_tokens"] = -(-int(least * factor) // page) * page
    most_running = config["max_total_tokens"] // 2  # as SGLang bounds it
    least_running = config.get("pp_size", 1)  # one of each stage
    config["max_running_requests"] = min(
        max(config["max_running_requests"], least_running), most_running
    )
    _layers_with_windows(seed, config, least)
    _state_pool(np.random.default_rng([seed, 89]), config)
    return case


def _drafts(rng: np.random.Generator, case: Case) -> int:
    """Adds drafts to a third of the cases; returns the slots that each decode reserves.

    SGLang loses slots of branches that do not fit a row of its table, which is the context length
    and a little more: prompts and answers are shorter by what decodes reserve.
    """
    if rng.random() < 2 / 3:
        return 0
    config = case["config"]
    steps = int(rng.choice([1, 2, 3, 5]))
    branches = int(rng.choice([1, 1, 4])) if config["page_size"] == 1 else 1
    tokens = 1 + steps if branches == 1 else int(rng.choice([6, 8, 16]))
    eagle = bool(rng.random() < 0.7)
    config |= {
        "speculative_algorithm": "EAGLE" if eagle else "STANDALONE",
        "speculative_num_steps": steps,
        "speculative_eagle_topk": branches,
        "speculative_num_draft_tokens": tokens,
        "enable_mixed_chunk": config["enable_mixed_chunk"] and eagle,
    }
    case["acceptance"] = [int(share * (1 << 53)) for share in rng.random(steps)]
    return 2 * max(steps * branches, tokens)


def _host_cache(rng: np.random.Generator, config: Case) -> None:
    """Adds a hierarchical cache to half of the cases that can have one, and neither drafts nor
    stages.
    """
    if rng.random() < 1 / 2 or config["disable_radix_cache"] or "pp_size" in config:
        return
    if "speculative_algorithm" in config:
        return
    _draw_host_cache(rng, config)


def _host_cache_beside(rng: np.random.Generator, config: Case) -> None:
    """Adds a hierarchical cache to half of the cases with drafts, ranks or stages, but to no decode
    servers, and to no ranks that draft.
    """
    beside = ("speculative_algorithm", "dp_size", "pp_size")
    apart = config.get("disaggregation_mode") in HANDED_OVER
    apart = apart or ("dp_size" in config and "speculative_algorithm" in config)
    apart = apart or ("pp_size" in config and "disaggregation_mode" in config)
    if rng.random() < 1 / 2 or config["disable_radix_cache"] or apart:
        return
    if any(name in config for name in beside):
        _draw_host_cache(rng, config)


def _draw_host_cache(rng: np.random.Generator, config: Case) -> None:
    config |= {
        "enable_hierarchical_cache": True,
        "hicache_ratio": float(rng.choice([0.3, 1, 2, 8])),
        "hicache_write_policy": str(rng.choice(HICACHE_WRITE_POLICIES)),
        "hicache_copy_ps": int(rng.choice([100_000, 2_000_000, 50_000_000])),
    }


def _host_storage(rng: np.random.Generator, config: Case) -> None:
    """Adds storage behind the host pool to two thirds of the cases that can have it."""
    hosted = config.get("enable_hierarchical_cache", False)
    if rng.random() < 1 / 3 or not hosted:
        return
    us = 1_000_000
    config |= {
        "hicache_ratio": float(rng.choice([0.3, 0.6, 1, 1.5])),
        "hicache_storage_backend": "file",
        "hicache_storage_prefetch_policy": str(rng.choice(HICACHE_PREFETCH_POLICIES)),
        "hicache_storage_prefetch_retry_poll_interval": int(rng.choice([8, 1, 3, 0])),
        "hicache_storage_prefetch_retry_max_attempts": int(rng.choice([8, 1, 2, 0])),
        "prefetch_threshold": int(rng.choice([256, 1, 1, 16, 64])),
        "storage_ps": int(rng.choice([1, 10, 100])) * us // 100 + 7,
        "storage_pages": 0 if rng.random() < 1 / 2 else int(rng.choice([50, 500, 5000])),
        "storage_timeout_ps": int(rng.choice([1, 1_000, 100_000, 1_000_000])) * us + 3,
        "storage_timeout_per_page_ps": int(rng.choice([0, 1, 100])) * us,
    }


def _role(rng: np.random.Generator, config: Case) -> bool:
    """Makes half of the cases prefill servers, decode servers, or a pair, where they can be; of
    those with a hierarchical cache, a sixth prefill servers.
    """
    if rng.random() < 1 / 2 or "pp_size" in config:
        return False
    mode = str(rng.choice(["prefill", "decode", PAIR]))
    if config.get("enable_hierarchical_cache", False) and mode != "prefill":
        return False
    _draw_role(rng, config, mode)
    return True


def _role_beside(rng: np.random.Generator, config: Case) -> bool:
    """Makes a third of the cases with drafts by EAGLE, whose hidden states go along with the KV,
    prefill servers, decode servers, or a pair.
    """
    if rng.random() < 2 / 3 or config.get("speculative_algorithm") != "EAGLE":
        return False
    _draw_role(rng, config, str(rng.choice(["prefill", "decode", PAIR])))
    return True


def _role_of_stages(rng: np.random.Generator, config: Case) -> bool:
    """Makes half of the cases with pipeline stages prefill servers, decode servers, or a pair."""
    if rng.random() < 1 / 2 or "pp_size" not in config:
        return False
    _draw_role(rng, config, str(rng.choice(["prefill", "decode", PAIR])))
    if "prefill_server" in config:
        most_running = max(config["prefill_server"]["max_running_requests"], config["pp_size"])
        config["prefill_server"] = {
            "max_running_requests": most_running,
            "disable_overlap_schedule": True,
        }
    return True


def _draw_role(rng: np.random.Generator, config: Case, mode: str) -> None:
    config |= {
        "disaggregation_mode": mode,
        "transfer_ps": int(rng.choice([1, 20, 500])) * 1_000_000_000,
    }
    if mode == "prefill":
        return
    config |= {
        "num_reserved_decode_tokens": int(rng.choice([512, 64, 8, 0])),
        "disaggregation_decode_enable_radix_cache": bool(rng.random() < 0.3),
    }
    if mode == PAIR:
        config["prefill_server"] = {
            "max_running_requests": int(rng.choice([1, 4, 16, 64])),
            "disable_overlap_schedule": bool(rng.random() < 0.5),
        }


def _ranks(rng: np.random.Generator, config: Case) -> None:
    """Gives half of the cases that can have them ranks with data-parallel attention."""
    apart = ("pp_size", "enable_hierarchical_cache", "disaggregation_mode")
    if rng.random() < 1 / 2 or any(name in config for name in apart):
        return
    config["dp_size"] = int(rng.choice([2, 2, 3]))


def _ranks_beside(rng: np.random.Generator, config: Case) -> None:
    """Gives half of the cases with drafts by EAGLE and no role ranks with data-parallel attention,
    which SGLang refuses with a draft model.
    """
    drafts = config.get("speculative_algorithm") == "EAGLE"
    if rng.random() < 1 / 2 or not drafts or "disaggregation_mode" in config:
        return
    config["dp_size"] = int(rng.choice([2, 2, 3]))


def _ranks_of_roles(rng: np.random.Generator, config: Case) -> None:
    """Gives a third of the cases with a role, and neither a hierarchical cache nor stages, such
    ranks.
    """
    apart = config.get("enable_hierarchical_cache", False) or "pp_size" in config
    if rng.random() < 2 / 3 or apart or "disaggregation_mode" not in config:
        return
    config["dp_size"] = int(rng.choice([2, 2, 3]))


def _layers_with_windows(seed: int, config: Case, request_tokens: int) -> None:
    """Draws whether there are some; a hierarchical cache has them beside no storage."""
    hosted = config.get("enable_hierarchical_cache", False)
    if not hosted or _hosted_alone(config):
        rng = np.random.default_rng([seed, 107 if hosted else 73])
        _windows(rng, config, request_tokens)


def _layers_with_states(seed: int, config: Case) -> None:
    """Draws whether there are some, and how the prefix cache gets their states."""
    _states(np.random.default_rng([seed, 79]), config)
    _states_of_roles(np.random.default_rng([seed, 101]), config)
    _states_with_host(np.random.default_rng([seed, 103]), config)
    _lazy_states(np.random.default_rng([seed, 97]), config)


def _windows(rng: np.random.Generator, config: Case, request_tokens: int) -> None:
    """Gives a third of the cases that can have them layers with a window, and a pool for those in
    which each server can run any request alone; the longest one takes at most `request_tokens`.
    """
    is_drawn = rng.random() >= 2 / 3
    drafts_alone = "speculative_algorithm" in config and config["disable_radix_cache"]
    if not is_drawn or keeps_states(config) or drafts_alone:
        return
    cut = config["chunked_prefill_size"] > 0
    ratio = float(rng.choice([0.2, 0.5, 0.8, 1])) if cut else 1.0
    config_of_ratio = config | {"swa_full_tokens_ratio": ratio}
    computing: list[Case] = []
    decoding: list[Case] = []
    for _, server in servers(config_of_ratio):
        decodes = server.get("disaggregation_mode") == "decode"
        (decoding if decodes else computing).append(server)
    most = min(map(_longest_window, computing), default=config["context_length"])
    if most < 1:
        return
    window = {"sliding_window": min(int(rng.choice([1, 16, 127, 128, 500])), most)}
    if all(_decodes_alone(server | window, request_tokens) for server in decoding):
        config |= config_of_ratio | window


def _states(rng: np.random.Generator, config: Case) -> None:
    """Gives half of the cases that can have them layers that keep states, a sixth of those without
    a prefix cache; most have so few running requests that the cache loses some.
    """
    apart = ("enable_hierarchical_cache", "disaggregation_mode")
    share = 1 / 6 if config["disable_radix_cache"] else 1 / 2
    if rng.random() >= share or any(name in config for name in apart):
        return
    copies = config["page_size"] == 1 and rng.random() < 0.4
    _draw_states(rng, config, copies=copies)


def _draw_states(rng: np.random.Generator, config: Case, *, copies: bool) -> None:
    """Without spare slots where requests copy their states for the prefix cache."""
    most_running = int(rng.choice([1, 2, 4, 8, 64]))
    config |= {
        "mamba_radix_cache_strategy": "no_buffer" if copies else "extra_buffer",
        "mamba_track_interval": int(rng.choice([256, 256, 64, 128])),
        "mamba_chunk_size": int(rng.choice([64, 64, 64, 16, 128, 256])),
        "disable_overlap_schedule": config["disable_overlap_schedule"] or copies,
        "max_running_requests": min(config["max_running_requests"], most_running),
    }


def _lazy_states(rng: np.random.Generator, config: Case) -> None:
    """Lets a quarter of the cases with spare slots for states that can do so take the second one
    for the steps alone that write there.
    """
    apart = config["disable_overlap_schedule"] or config["disable_radix_cache"]
    apart = apart or "disaggregation_mode" in config
    if rng.random() < 1 / 4 and keeps_states(config) and not apart:
        config["mamba_radix_cache_strategy"] = LAZY


def _states_of_roles(rng: np.random.Generator, config: Case) -> None:
    """Gives half of the cases with a role layers that keep states."""
    apart = config.get("enable_hierarchical_cache", False)
    if rng.random() < 1 / 2 or "disaggregation_mode" not in config or apart:
        return
    copies = config["page_size"] == 1 and rng.random() < 0.4
    _draw_states(rng, config, copies=copies)
    if copies and config["disaggregation_mode"] == PAIR:
        config["prefill_server"] |= {"disable_overlap_schedule": True}


def _states_with_host(rng: np.random.Generator, config: Case) -> None:
    """Gives a third of the cases with a hierarchical cache, and no storage behind it, layers that
    keep states.
    """
    if rng.random() < 2 / 3 or not _hosted_alone(config):
        return
    copies = config["page_size"] == 1 and rng.random() < 0.4
    _draw_states(rng, config, copies=copies)


def _hosted_alone(config: Case) -> bool:
    """Whether there is a hierarchical cache, but no storage behind it."""
    hosted: bool = config.get("enable_hierarchical_cache", False)
    return hosted and "hicache_storage_backend" not in config


def _state_pool(rng: np.random.Generator, config: Case) -> None:
    """Gives layers that keep states a pool of as many as SGLang wants at least, or more."""
    if not keeps_states(config):
        return
    factor = float(rng.choice([1, 1, 1, 1.3, 2, 8]))
    config["max_mamba_cache_size"] = max(
        int(server["max_running_requests"] * _states_of_request(server) * factor)
        for _, server in servers(config)
    )


def _states_of_request(config: Case) -> int:
    return states_of_request(spare_states_of(config), caches=caches(config))


def _longest_window(config: Case) -> int:
    """Tokens of a window of which the pool of a server that computes prompts holds two, with what
    one request writes until its window slides, and prompts that come whole.
    """
    width = config.get("speculative_num_draft_tokens", 1)
    room: int = window_tokens(config | {"sliding_window": 1}) - SLIDE_INTERVAL - 4 * width
    room -= 6 * int(config["page_size"])
    if config["chunked_prefill_size"] <= 0:
        room -= int(config["context_length"])
    return room // 2


def _decodes_alone(config: Case, request_tokens: int) -> bool:
    """Whether a decode server's pool holds what it wants to be free before it takes a request: the
    end of a prompt, and what its answer or its reserve takes; pages of one token hold all of it.
    """
    page, window = config["page_size"], config["sliding_window"]
    if page == 1:
        return window_tokens(config) >= request_tokens
    answer = min(config["context_length"], config["clip_max_new_tokens"])
    reserved = config["num_reserved_decode_tokens"] if caches(config) else 0
    beside = max(answer, reserved, SLIDE_INTERVAL + page)
    needed: int = max(window, page) + 2 * page + beside
    return window_tokens(config) >= needed


def _receiving(rng: np.random.Generator, config: Case) -> None:
    """Lets a quarter of the cases look for requests every few steps alone."""
    if rng.random() < 1 / 4:
        config["scheduler_recv_interval"] = int(rng.choice([2, 5, 30]))


def _queue_order(rng: np.random.Generator, config: Case) -> None:
    """Orders the queue of a third of the cases that can have it so by what is left to compute."""
    takes_over = config.get("disaggregation_mode") in HANDED_OVER
    apart = config["enable_priority_scheduling"] or config["disable_radix_cache"] or takes_over
    if rng.random() < 2 / 3 or apart:
        return
    config["schedule_policy"] = str(rng.choice(_BY_WORK))


def _name_by_arrival(case: Case) -> None:
    """SGLang orders equal ratios of `hrrn` by the requests' names."""
    for row, index in enumerate(by_arrival(case)):
        case["requests"][index]["id"] = f"r{row:05d}"


def _come_back(seed: int, case: Case, longest: int) -> None:
    """Lets prompts come again where a cache keeps or loses more of them than KV on the device."""
    config, requests = case["config"], case["requests"]
    if keeps_states(config):
        again = np.random.default_rng([seed, 83])
        _ask_again(again, requests, longest, 0.5)
        _ask_more(again, requests, longest)
    if config.get("enable_hierarchical_cache", False):
        stored = "hicache_storage_backend" in config
        share, factors = (0.8, [1, 3, 10]) if stored else (0.5, [1])
        _ask_again(np.random.default_rng([seed, 37]), requests, longest, share)
        _stretch(np.random.default_rng([seed, 67]), requests, factors)


def _rise(case: Case) -> None:
    """Who comes later is the more important."""
    sign = -1 if case["config"]["schedule_low_priority_values_first"] else 1
    for i, request in enumerate(case["requests"]):
        request["priority"] += sign * (i // 3)


def _ask_again(rng: np.random.Generator, requests: list[Case], longest: int, share: float) -> None:
    """Some requests have the prompt of an earlier one, which may have left the device."""
    for i in range(1, len(requests)):
        if rng.random() < share:
            request = requests[i]
            request["segments"] = requests[int(rng.integers(i))]["segments"]
            room = longest - sum(length for _, length in request["segments"])
            request["output_len"] = min(request["output_len"], room)


def _ask_more(rng: np.random.Generator, requests: list[Case], longest: int) -> None:
    """Some prompts go on behind what others ask, too."""
    for i, request in enumerate(requests):
        room = longest - sum(length for _, length in request["segments"])
        more = min(int(rng.choice([0, 0, 30, 64, 200, 700])), room - 1)
        if more > 0:
            request["segments"] = [*request["segments"], [5_000 + i, more]]
            request["output_len"] = min(request["output_len"], room - more)


def _stretch(rng: np.random.Generator, requests: list[Case], factors: list[int]) -> None:
    """Requests come later, so that what they ask for has been written before."""
    factor = int(rng.choice(factors))
    for request in requests:
        request["arrival"] = round(request["arrival"] * factor, 6)


def _options(rng: np.random.Generator) -> dict[str, Any]:
    def chance(share: float) -> bool:
        return bool(rng.random() < share)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    page = pick(1, 1, 16, 64)
    seqs = pick(1, 2, 8, 32, 64, 128, 256)
    chunk = max(pick(256, 512, 1024, 2048, 8192), 2 * seqs)
    policy = pick(*_DRAWN_POLICIES)
    by_priority = policy in SGLANG_BY_PRIORITY and chance(0.5)
    if by_priority and chance(0.6):  # somebody runs who is less important than who waits
        seqs = min(seqs, pick(1, 2, 4))
    return {
        "page_size": page,
        "chunked_prefill_size": -1 if chance(0.15) else -(-chunk // page) * page,
        "max_prefill_tokens": pick(512, 2048, 16384, 16384),
        "max_running_requests": seqs,
        "context_length": pick(1000, 2048, 4096, 8192),
        "schedule_policy": policy,
        "enable_mixed_chunk": chance(0.25),
        "disable_overlap_schedule": chance(0.5),
        "disable_radix_cache": chance(0.25),
        "ends_with_stop_token": chance(0.3),
        "clip_max_new_tokens": pick(4096, 4096, 64, 8),
        "enable_priority_scheduling": by_priority,
        "schedule_low_priority_values_first": by_priority and chance(0.5),
        "disable_priority_preemption": by_priority and chance(0.25),
        "priority_scheduling_preemption_threshold": pick(0, 0, 1, 2) if by_priority else 10,
        "retraction_policy": "priority" if by_priority and chance(0.5) else "length",
    }

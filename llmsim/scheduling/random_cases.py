"""Random configurations and workloads for conformance: every option of the scheduler under every pressure."""

from typing import Any

import numpy as np

from llmsim.scheduling.cases import Case


def random_case(seed: int, num_requests: int) -> Case:
    """A case without its `resolved` part; the same seed and number give the same case."""
    rng = np.random.Generator(np.random.PCG64(seed))
    config = _options(rng)
    longest = config["max_model_len"]
    requests = _requests(rng, num_requests, longest, by_priority=config.get("policy") == "priority")
    most = max(_prompt(request) + request["output_len"] for request in requests)
    # From barely enough for the largest request, and the slots of its drafts, to plenty.
    drafts = config.get("speculative", {}).get("num_speculative_tokens", 0)
    need = -(-(min(most, longest) + 8 + 3 * drafts) // config["block_size"]) + 2
    blocks = int(need * rng.choice([1.05, 1.3, 2.0, 4.0, 20.0])) + 1
    config["num_gpu_blocks"] = int(blocks / (1 - config.get("watermark", 0.0))) + 2
    case: Case = {"name": f"random {seed}", "config": config, "requests": requests}
    if "speculative" in config:
        _acceptance(rng, case, config["speculative"])
    if rng.random() < 0.4:
        _give_up(rng, requests)
    return case


def _acceptance(rng: np.random.Generator, case: Case, config: dict[str, Any]) -> None:
    """How many drafts hold: a fixed number, or by chance at every position; and whether ngram finds any."""
    tokens = config["num_speculative_tokens"]
    if rng.random() < 0.3:
        case["accepted_draft_tokens"] = int(rng.integers(0, tokens + 1))
    else:
        case["acceptance"] = [int(share * (1 << 53)) for share in rng.random(tokens)]
    if config["method"] == "ngram":
        case["proposal_chance"] = int(rng.choice([0.3, 0.7, 1.0]) * (1 << 53))


def _speculative(rng: np.random.Generator, config: dict[str, Any]) -> dict[str, Any]:
    method = ("draft_model", "eagle", "ngram")[int(rng.integers(3))]
    tokens = int(rng.choice([1, 2, 3, 5]))
    chosen: dict[str, Any] = {"method": method, "num_speculative_tokens": tokens}
    if method == "ngram":
        config["async_scheduling"] = False  # it proposes on the host, between two steps
        return chosen | {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    if rng.random() < 0.25:
        fewer = int(rng.integers(0, tokens + 1))
        chosen["num_speculative_tokens_per_batch_size"] = [[1, 4, tokens], [8, config["max_num_seqs"] + 8, fewer]]
    return chosen


def _give_up(rng: np.random.Generator, requests: list[Case]) -> None:
    """Some clients lose patience: after a time, with some tokens, or both."""
    for request in requests:
        if rng.random() < 0.25:
            request["cancel_after"] = round(1 + float(rng.exponential(3e6))) / 1e6
        if rng.random() < 0.15:
            request["cancel_after_tokens"] = 1 + int(rng.integers(0, request["output_len"]))


def _options(rng: np.random.Generator) -> dict[str, Any]:
    def chance(share: float) -> bool:
        return bool(rng.random() < share)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    longest = pick(2048, 4096, 8192)
    chunked = chance(0.85)
    budget = pick(256, 512, 1024, 2048, 2048, 8192)
    budget = budget if chunked else max(budget, longest)
    config: dict[str, Any] = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(pick(2, 8, 32, 64, 128, 256), budget),
        "block_size": pick(16, 16, 16, 1, 8, 32, 64, 128, 256),
        "max_model_len": longest,
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": chance(0.6),
        "async_scheduling": chance(0.5),
        "scheduler_reserve_full_isl": chance(0.7),
    }
    if chunked and chance(0.3):
        config["long_prefill_token_threshold"] = pick(64, 128, 256)
    if chance(0.3):
        config["policy"] = "priority"
    if chance(0.3):
        config["watermark"] = pick(0.01, 0.05, 0.1)
    if chance(0.35):
        config["speculative"] = _speculative(rng, config)
    if chance(0.2):
        config["prefill_schedule_interval"] = pick(2, 4, 16)
    return config


def _requests(rng: np.random.Generator, number: int, longest: int, *, by_priority: bool) -> list[Case]:
    rate = float(rng.choice([5, 20, 50]))
    prompt, output = float(rng.choice([100, 200, 400])), float(rng.choice([30, 80, 150]))
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
                segments = [list(part) for part in requests[int(rng.integers(len(requests)))]["segments"]]
        request: Case = {
            "id": f"r{i:05d}",
            "arrival": arrival_us / 1e6,
            "segments": segments,
            "output_len": int(np.clip(rng.lognormal(0, 0.7) * output, 1, longest // 4)),
        }
        request["segments"][-1][1] -= max(0, _prompt(request) - (longest - 2))
        if by_priority:
            request["priority"] = int(rng.integers(0, 4))
        requests.append(request)
    return requests


def _prompt(request: Case) -> int:
    return sum(length for _, length in request["segments"])

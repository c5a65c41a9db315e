"""Random options of a run and random traces, drawn independently of each other."""

import json
import random

from mixes.clusters import RARE, Json, instances_of

Choices = tuple[tuple[str, tuple[str, ...]], ...]


def _drafter(method: str, **more: object) -> str:
    return json.dumps(
        {"method": method, "num_speculative_tokens": 2, "acceptance_rate": 0.5, **more}
    )


ENGINE: Choices = (
    ("--num-gpu-blocks-override", ("250", "1000")),
    ("--scheduler", ("sarathi", "orca", "sglang", "static", "mlfq", "tensorrt_llm")),
    ("--engine-profile", ("vllm-0.19", "vllm-0.33")),
    ("--scheduling-policy", ("priority", "sjf", "slack")),
    ("--max-num-batched-tokens", ("256", "2048")),
    ("--max-num-seqs", ("4", "64")),
    ("--long-prefill-token-threshold", ("100",)),
    ("--prefill-schedule-interval", ("3",)),
    ("--speculative-config", (_drafter("ngram"), _drafter("eagle"), _drafter("mtp"))),
    ("--cudagraph-mode", ("NONE", "PIECEWISE", "FULL_DECODE_ONLY")),
    ("--kv-cache-dtype", ("fp8",)),
    ("--block-size", ("1", "48", "256")),
    ("--watermark", ("0.05",)),
    ("--queue-order", ("mixes.policies:LongestFirst",)),
    ("--preemption-victim", ("mixes.policies:Shortest",)),
    ("--admission", ("QUEUE_LIMIT:requests=6",)),
)
ROUTING: Choices = (
    ("--request-routing-policy", ("RR", "RAND", "LOR", "P2C", "SESSION", "PREFIX", "VLLM_DP")),
    ("--decode-routing-policy", ("RR", "LOR", "P2C")),
    ("--expert-routing-policy", ("RR", "RAND", "ZIPF:s=1.2", "POWER_LAW:alpha=1.2")),
)
CLIENTS: Choices = (
    ("--request-timeout", ("0.2",)),
    ("--max-concurrency", ("3",)),
    ("--horizon", ("5",)),
)
NETWORK: Choices = (
    ("--network-backend", ("congestion-aware", "congestion-unaware", "fair-share")),
    ("--collective-costs", ("links", "measured")),
)
STORES: Choices = (("--prefix-storage", ("CPU", "CXL", "CPU+CXL", "SSD", "CPU+SSD", "NVMEOF")),)
TIERS: Choices = (
    ("--kv-tier-write", ("write-through-selective", "write-back")),
    ("--kv-tier-eviction", ("lfu", "cost")),
    ("--kv-tier-recall", ("async",)),
    ("--kv-chunk-size", ("16", "64")),
)
TRANSFERS: Choices = (("--kv-transfer", ("layerwise",)), ("--kv-transfer-mode", ("push",)))
FLAGS = (
    "--async-scheduling",
    "--no-async-scheduling",
    "--prioritize-prefill",
    "--gen",
    "--no-enable-prefix-caching",
    "--no-reserve-full-isl",
    "--enforce-eager",
)
OFTEN = 0.4


def draw_trace(draw: random.Random) -> str:
    """A generator of requests: lengths, arrivals, shared prefixes, sessions."""
    size = f"n={draw.choice([1, 7, 30])},rate={draw.choice([1, 20, 200])},seed=1"
    prompt = f"input=lognormal:{draw.choice([50, 600])}:max=2000"
    output = f"output=lognormal:{draw.choice([5, 60])}:max=300"
    extra = draw.choice(["", "", "", ",prefixes=3:tokens=256"])
    return f"synthetic:{size},{prompt},{output}{extra}"


def draw_options(draw: random.Random, document: Json) -> list[str]:
    """Command-line options for `document`, the trace among them; --exact is up to the caller."""
    chosen = ["--dataset", draw_trace(draw), "--max-model-len", "4096", "--cost-source"]
    chosen.append(draw.choice(["roofline", "roofline", "auto"]))
    chosen += _drawn(draw, (*ENGINE, *ROUTING, *CLIENTS, *NETWORK, *STORES), RARE)
    if "--prefix-storage" in chosen:
        chosen += _drawn(draw, TIERS, OFTEN)
        chosen += ["--enable-prefix-sharing"] if draw.random() < OFTEN else []
    if "--max-concurrency" in chosen and draw.random() < OFTEN:
        chosen += ["--think-time", "exponential:50"]
    if any("pd_type" in instance for instance in instances_of(document)):
        chosen += _drawn(draw, TRANSFERS, OFTEN)
    return chosen + [flag for flag in FLAGS if draw.random() < RARE / 2]


def _drawn(draw: random.Random, choices: Choices, probability: float) -> list[str]:
    found = []
    for name, values in choices:
        if draw.random() < probability:
            found += [name, draw.choice(values)]
    return found

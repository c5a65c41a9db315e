"""The runs that `make replay` compares, each with a name that does not change."""

import json
from dataclasses import dataclass
from pathlib import Path

from bench.examples import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
CHAT = ("--dataset", "dataset/chat_h100_300.jsonl")
SESSIONS = ("--dataset", "dataset/sessions_20.jsonl")
SHARED_PREFIX = ("--dataset", "dataset/shared_prefix_200.jsonl")
BUSY = (
    "--dataset",
    "synthetic:n=120,rate=60,input=lognormal:300:max=2000,output=lognormal:60:max=300,seed=3",
)
ROOFLINE = ("--cost-source", "roofline")
FEW_BLOCKS = ("--num-gpu-blocks-override", "500", "--max-model-len", "4096")
"""A KV cache that preempts under the load of BUSY."""


@dataclass(frozen=True)
class Run:
    """One run of `main.py`: its name in the list of digests, and its options."""

    name: str
    options: tuple[str, ...]


def _on(cluster: str, *options: str) -> tuple[str, ...]:
    return ("--cluster-config", f"cluster_config/{cluster}.json", *options)


def _examples() -> list[Run]:
    """The documented examples, folded and expanded."""
    runs = []
    for example in EXAMPLES:
        changed = [option for option in example.options if option not in ROOFLINE]
        name = "-".join([example.file, *(option.strip("-") for option in changed)])
        runs.append(Run(name, example.arguments))
        runs.append(Run(f"{name}-exact", (*example.arguments, "--exact")))
    return runs


def _schedulers() -> list[Run]:
    cluster = _on("h100_llama31_8b", *BUSY, *ROOFLINE, *FEW_BLOCKS)
    plain = [
        Run(f"scheduler-{name}", (*cluster, "--scheduler", name))
        for name in ("vllm_v1", "sarathi", "orca", "static", "mlfq", "tensorrt_llm")
    ]
    tokens = (
        "--num-gpu-blocks-override",
        "8000",
        "--max-model-len",
        "4096",
    )  # SGLang's blocks hold one token
    plain.append(
        Run(
            "scheduler-sglang",
            _on("h100_llama31_8b", *BUSY, *ROOFLINE, *tokens, "--scheduler", "sglang"),
        )
    )
    ordered = [
        Run(f"policy-{name}", (*cluster, "--scheduling-policy", name))
        for name in ("priority", "sjf", "slack")
    ]
    profiles = [
        Run(f"engine-{name}", (*cluster, "--engine-profile", name))
        for name in ("vllm-0.19", "vllm-0.33")
    ]
    drafts = [
        Run(f"drafts-{method}", (*cluster, "--speculative-config", _drafter(method)))
        for method in ("ngram", "eagle")
    ]
    return plain + ordered + profiles + drafts


def _drafter(method: str) -> str:
    return json.dumps({"method": method, "num_speculative_tokens": 3, "acceptance_rate": 0.7})


def _routers() -> list[Run]:
    cluster = _on("h100_multi_instance", *SHARED_PREFIX, *ROOFLINE)
    return [
        Run(f"router-{name}", (*cluster, "--request-routing-policy", name))
        for name in ("LOAD", "RR", "RAND", "LOR", "P2C", "SESSION", "VLLM_DP", "PREFIX")
    ]


def _kv() -> list[Run]:
    tiers = _on(
        "h100_multi_shared_prefix_pool", *SHARED_PREFIX, *ROOFLINE, "--enable-prefix-sharing"
    )
    full = (
        "--num-gpu-blocks-override",
        "400",
        "--max-model-len",
        "4096",
        "--prefix-storage",
        "CPU+CXL",
    )
    runs = [
        Run(
            f"tiers-{mode}-{recall}",
            (*tiers, *full, "--kv-tier-write", mode, "--kv-tier-recall", recall),
        )
        for mode in ("write-through", "write-through-selective", "write-back")
        for recall in ("sync", "async")
    ]
    offloaded = _on("h100_cpu_prefix_pool", *SHARED_PREFIX, *ROOFLINE, *full[:4])
    size = ("--engine-profile", "vllm-0.33", "--kv-offloading-size", "1")
    runs += [
        Run(f"offloading-{policy}", (*offloaded, *size, "--kv-offloading-eviction-policy", policy))
        for policy in ("lru", "arc")
    ]
    apart = _on("h100_llama31_8b_pd_2p1d", *BUSY, *ROOFLINE)
    runs += [
        Run(f"transfer-{name}", (*apart, "--kv-transfer-mode", mode, "--kv-transfer", how))
        for name, mode, how in (
            ("pull", "pull", "whole"),
            ("push", "push", "whole"),
            ("layers", "push", "layerwise"),
        )
    ]
    return runs


def _clients() -> list[Run]:
    cluster = _on("h100_multi_instance", *SESSIONS, *ROOFLINE)
    return [
        Run("sessions", cluster),
        Run("closed-loop", (*cluster, "--max-concurrency", "4", "--think-time", "exponential:500")),
        Run("timeouts", (*_on("h100_llama31_8b", *BUSY, *ROOFLINE), "--request-timeout", "1.5")),
        Run("horizon", (*_on("h100_llama31_8b", *BUSY, *ROOFLINE), "--horizon", "1")),
    ]


def _measured() -> list[Run]:
    """Runs of the larger trace on measured kernels, with experts balanced and not."""
    runs = [
        Run(f"chat-{name}", _on(name, *CHAT))
        for name in (
            "h100_llama31_8b",
            "h100_llama31_70b_tp4_pp2",
            "h100_qwen3_30b_a3b_pd",
            "h200_deepseek_v32_tp8",
        )
    ]
    experts = _on("single_node_moe_dp_ep_instance", *BUSY, *ROOFLINE)
    runs += [
        Run(f"experts-{name.partition(':')[0]}", (*experts, "--expert-routing-policy", name))
        for name in ("RR", "RAND", "ZIPF:s=1.2")
    ]
    links = _on("l40s_llama31_8b_tp4_pcie", *BUSY, *ROOFLINE)
    runs += [
        Run(f"network-{name}", (*links, "--network-backend", name))
        for name in ("congestion-aware", "fair-share")
    ]
    return runs


RUNS = (*_examples(), *_schedulers(), *_routers(), *_kv(), *_clients(), *_measured())
